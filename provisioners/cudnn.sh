#!/usr/bin/env bash
# cuDNN, library and headers, of exactly the recipe's version and for its CUDA major.
export KILN_COMPONENT=cudnn
# shellcheck source=provisioners/lib/kiln.sh
source "${KILN_DIR:?}/lib/kiln.sh"

read -ra packages <<<"$CUDNN_PACKAGES"
mapfile -t names < <(kiln_names "${packages[@]}")
kiln_unhold "${names[@]}"
kiln_install "${packages[@]}"
kiln_hold "${names[@]}"
kiln_record "version=$CUDNN_VERSION" "packages+=${names[*]}"
