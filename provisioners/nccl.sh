#!/usr/bin/env bash
# NCCL, library and headers, built for the recipe's CUDA.
#
#@ env NCCL_VERSION   required  version without the CUDA it is built for
#@ env NCCL_PACKAGES  required  name=version@cudaSERIES …
# shellcheck source=provisioners/lib/kiln.sh
source "${KILN_DIR:?}/lib/kiln.sh"

kiln_install_held "$NCCL_PACKAGES"
ldconfig
kiln_record "version=$NCCL_VERSION"
