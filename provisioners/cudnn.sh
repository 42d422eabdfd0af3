#!/usr/bin/env bash
# cuDNN, library and headers, at exactly the recipe's version and for its CUDA major.
#
#@ env CUDNN_VERSION   required  full version: 8.5.0.96
#@ env CUDNN_PACKAGES  required  name=version[@cudaMAJOR] …
# shellcheck source=provisioners/lib/kiln.sh
source "${KILN_DIR:?}/lib/kiln.sh"

kiln_install_held "$CUDNN_PACKAGES"
kiln_record "version=$CUDNN_VERSION"
