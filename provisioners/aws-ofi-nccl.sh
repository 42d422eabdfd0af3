#!/usr/bin/env bash
# NCCL's EFA plugin from source, for EFA installers that do not bring a version that fits.
#
#@ env      AWS_OFI_NCCL_VERSION      required  release, without the v and -aws of its tag
#@ env      AWS_OFI_NCCL_OS_PACKAGES  required  what it is built with
#@ download AWS_OFI_NCCL              required  source archive of that release
export KILN_COMPONENT=aws-ofi-nccl
# shellcheck source=provisioners/lib/kiln.sh
source "${KILN_DIR:?}/lib/kiln.sh"

# EFA installers that bring the plugin put it there too.
prefix=/opt/amazon/ofi-nccl

build() { # FOLDER
    local jobs
    jobs=$(nproc) || return 1
    cd "$1" || return 1
    ./configure --prefix="$prefix" --with-libfabric=/opt/amazon/efa --with-cuda=/usr/local/cuda \
        --enable-platform-aws --disable-tests || return 1
    make -j"$jobs" || return 1
    make install
}

if [[ -e $prefix/.kiln-version && $(<"$prefix/.kiln-version") == "$AWS_OFI_NCCL_VERSION" ]]; then
    kiln_say "aws-ofi-nccl $AWS_OFI_NCCL_VERSION is installed already"
else
    [[ -x /opt/amazon/efa/bin/fi_info ]] || kiln_die "there is no libfabric in /opt/amazon/efa" "efa.sh must run first"
    [[ -x /usr/local/cuda/bin/nvcc ]] || kiln_die "there is no CUDA toolkit in /usr/local/cuda" "cuda.sh must run first"
    # shellcheck disable=SC2086  # a list of names
    kiln_install $AWS_OFI_NCCL_OS_PACKAGES
    archive=$(kiln_download AWS_OFI_NCCL) || exit 1
    tree=$(kiln_unpack "$archive" --strip-components=1) || exit 1
    (build "$tree") >"$tree.log" 2>&1 \
        || { tail -n 40 "$tree.log" >&2 || true; kiln_die "aws-ofi-nccl $AWS_OFI_NCCL_VERSION does not build" "the end of its log is above"; }
    rm -rf "$tree" "$tree.log"
    printf '%s\n' "$AWS_OFI_NCCL_VERSION" >"$prefix/.kiln-version"
fi
plugin=$(find "$prefix" -name 'libnccl-net*.so' -print -quit) || kiln_die "$prefix cannot be listed"
[[ -n $plugin ]] || kiln_die "the build did not install libnccl-net.so below $prefix"
printf '%s\n' "${plugin%/*}" >/etc/ld.so.conf.d/kiln-ofi-nccl.conf
ldconfig
kiln_record "version=$AWS_OFI_NCCL_VERSION" "plugin=$plugin"
