#!/usr/bin/env bash
# NCCL's EFA plugin from source, for EFA installers that do not bring a version that fits.
#
#@ env      AWS_OFI_NCCL_VERSION      required  release, without the v and -aws of its tag
#@ env      AWS_OFI_NCCL_OS_PACKAGES  required  what it is built with
#@ download AWS_OFI_NCCL              required  source archive of that release
# shellcheck source=provisioners/lib/kiln.sh
source "${KILN_DIR:?}/lib/kiln.sh"

# EFA installers that bring the plugin put it there too.
prefix=/opt/amazon/ofi-nccl

# shellcheck disable=SC2086  # a list of names
kiln_install $AWS_OFI_NCCL_OS_PACKAGES
archive=$(kiln_download AWS_OFI_NCCL) || exit 1
tree=$(kiln_unpack "$archive" --strip-components=1) || exit 1
jobs=$(nproc) || kiln_die "nproc cannot count the CPU cores"
cd "$tree"
{
    ./configure --prefix="$prefix" --with-libfabric=/opt/amazon/efa --with-cuda=/usr/local/cuda \
        --enable-platform-aws --disable-tests && make -j"$jobs" && make install
} >"$tree.log" 2>&1 || kiln_die_with_log "$tree.log" "aws-ofi-nccl $AWS_OFI_NCCL_VERSION does not build"
cd /
rm -rf "$tree" "$tree.log"
plugin=$(find "$prefix" -name 'libnccl-net*.so' -print -quit) || kiln_die "$prefix cannot be listed"
[[ -n $plugin ]] || kiln_die "the build did not install libnccl-net.so below $prefix"
printf '%s\n' "${plugin%/*}" >/etc/ld.so.conf.d/kiln-ofi-nccl.conf
ldconfig
kiln_record "version=$AWS_OFI_NCCL_VERSION" "plugin=$plugin"
