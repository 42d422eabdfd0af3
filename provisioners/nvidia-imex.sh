#!/usr/bin/env bash
# IMEX lets the GPUs of several GB200 or GB300 hosts reach each other's memory. Its version is the
# driver's; started only where the boot-time selection found such a GPU.
export KILN_COMPONENT=nvidia-imex
# shellcheck source=provisioners/lib/kiln.sh
source "${KILN_DIR:?}/lib/kiln.sh"

read -ra packages <<<"$NVIDIA_IMEX_PACKAGES"
mapfile -t names < <(kiln_names "${packages[@]}")
kiln_unhold "${names[@]}"
kiln_install "${packages[@]}"
kiln_hold "${names[@]}"
kiln_install_runtime etc/systemd/system/nvidia-imex.service.d
kiln_enable nvidia-imex.service
kiln_record "version=$NVIDIA_DRIVER_VERSION" "packages+=${names[*]}"
