#!/usr/bin/env bash
# NCCL, library and headers, built for the recipe's CUDA.
export KILN_COMPONENT=nccl
# shellcheck source=provisioners/lib/kiln.sh
source "${KILN_DIR:?}/lib/kiln.sh"

read -ra packages <<<"$NCCL_PACKAGES"
mapfile -t names < <(kiln_names "${packages[@]}")
kiln_unhold "${names[@]}"
kiln_install "${packages[@]}"
kiln_hold "${names[@]}"
ldconfig
kiln_record "version=$NCCL_VERSION" "packages+=${names[*]}"
