#!/usr/bin/env bash
# DCGM's host engine, of the CUDA major the driver serves.
export KILN_COMPONENT=dcgm
# shellcheck source=provisioners/lib/kiln.sh
source "${KILN_DIR:?}/lib/kiln.sh"

read -ra packages <<<"$DCGM_PACKAGES"
mapfile -t names < <(kiln_names "${packages[@]}")
kiln_unhold "${names[@]}"
kiln_install "${packages[@]}"
kiln_hold "${names[@]}"
kiln_record "version=$DCGM_VERSION" "packages+=${names[*]}"
kiln_install_runtime etc/systemd/system/nvidia-dcgm.service.d
kiln_enable nvidia-dcgm.service
