#!/usr/bin/env bash
# DCGM's host engine, for the CUDA major that the driver serves.
#
#@ env DCGM_VERSION   required  DCGM's version
#@ env DCGM_PACKAGES  required  name=version …
# shellcheck source=provisioners/lib/kiln.sh
source "${KILN_DIR:?}/lib/kiln.sh"

kiln_install_held "$DCGM_PACKAGES"
kiln_install_runtime etc/systemd/system/nvidia-dcgm.service.d
kiln_enable nvidia-dcgm.service
kiln_record "version=$DCGM_VERSION"
