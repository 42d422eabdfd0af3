#!/usr/bin/env bash
# The CUDA toolkit of one release, without a driver, found by compilers, the loader and shells.
export KILN_COMPONENT=cuda
# shellcheck source=provisioners/lib/kiln.sh
source "${KILN_DIR:?}/lib/kiln.sh"

read -ra packages <<<"$CUDA_PACKAGES"
mapfile -t names < <(kiln_names "${packages[@]}")
kiln_unhold "${names[@]}"
kiln_install "${packages[@]}"
kiln_hold "${names[@]}"

home=/usr/local/cuda-$CUDA_SERIES
[[ -d $home ]] || kiln_die "the packages left no $home"
ln -sfn "$home" /usr/local/cuda
printf '/usr/local/cuda/lib64\n' >/etc/ld.so.conf.d/kiln-cuda.conf
ldconfig
# The variables are for the user's shell, not for this script.
# shellcheck disable=SC2016
printf 'export CUDA_HOME=/usr/local/cuda\ncase ":$PATH:" in\n*:/usr/local/cuda/bin:*) ;;\n*) export PATH="/usr/local/cuda/bin:$PATH" ;;\nesac\n' \
    >/etc/profile.d/kiln-cuda.sh

release=$(/usr/local/cuda/bin/nvcc --version | sed -n 's/.*release \([0-9.]*\),.*/\1/p')
[[ $release == "$CUDA_SERIES" ]] || kiln_die "nvcc says release ${release:-nothing}, the recipe asks for $CUDA_SERIES"
kiln_record "version=$CUDA_VERSION" "home=$home" "packages+=${names[*]}"
