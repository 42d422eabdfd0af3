#!/usr/bin/env bash
# The CUDA toolkit of one release, without a driver; compilers, the loader and shells find it.
#
#@ env CUDA_VERSION   required  release with its update: 11.6.2
#@ env CUDA_SERIES    required  release alone: 11.6
#@ env CUDA_PACKAGES  required  name=version …
# shellcheck source=provisioners/lib/kiln.sh
source "${KILN_DIR:?}/lib/kiln.sh"

kiln_install_held "$CUDA_PACKAGES"

home=/usr/local/cuda-$CUDA_SERIES
[[ -d $home ]] || kiln_die "the packages did not make $home"
ln -sfn "$home" /usr/local/cuda
printf '/usr/local/cuda/lib64\n' >/etc/ld.so.conf.d/kiln-cuda.conf
ldconfig
# The variables are for the user's shell, not for this script.
# shellcheck disable=SC2016
printf 'export CUDA_HOME=/usr/local/cuda\ncase ":$PATH:" in\n*:/usr/local/cuda/bin:*) ;;\n*) export PATH="/usr/local/cuda/bin:$PATH" ;;\nesac\n' \
    >/etc/profile.d/kiln-cuda.sh

release=$(/usr/local/cuda/bin/nvcc --version | sed -n 's/.*release \([0-9.]*\),.*/\1/p') || kiln_die "nvcc does not run"
[[ $release == "$CUDA_SERIES" ]] || kiln_die "nvcc prints release ${release:-none}, the recipe asks for $CUDA_SERIES"
kiln_record "version=$CUDA_VERSION" "home=$home"
