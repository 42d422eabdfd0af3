#!/usr/bin/env bash
# NCCL's EFA plugin from source, where the EFA installer is too old to bring one that fits.
export KILN_COMPONENT=aws-ofi-nccl
# shellcheck source=provisioners/lib/kiln.sh
source "${KILN_DIR:?}/lib/kiln.sh"

# Where the EFA installers that bring the plugin put it too.
prefix=/opt/amazon/ofi-nccl
if [[ -e $prefix/.kiln-version && $(<"$prefix/.kiln-version") == "$AWS_OFI_NCCL_VERSION" ]]; then
    kiln_say "aws-ofi-nccl $AWS_OFI_NCCL_VERSION is there already"
else
    [[ -x /opt/amazon/efa/bin/fi_info ]] || kiln_die "there is no libfabric in /opt/amazon/efa" "efa.sh has to run first"
    [[ -x /usr/local/cuda/bin/nvcc ]] || kiln_die "there is no CUDA toolkit in /usr/local/cuda" "cuda.sh has to run first"
    if [[ $KILN_FAMILY == debian ]]; then kiln_install libhwloc-dev make g++; else kiln_install hwloc-devel make gcc-c++; fi
    archive=$(kiln_download AWS_OFI_NCCL)
    tree=$(mktemp -d "$KILN_DIR/aws-ofi-nccl.XXXXXX")
    tar -xf "$archive" -C "$tree" --strip-components=1
    (
        cd "$tree"
        ./configure --prefix="$prefix" --with-libfabric=/opt/amazon/efa --with-cuda=/usr/local/cuda \
            --enable-platform-aws --disable-tests
        make -j"$(nproc)"
        make install
    ) >"$tree.log" 2>&1 || { tail -n 40 "$tree.log" >&2; kiln_die "aws-ofi-nccl $AWS_OFI_NCCL_VERSION does not build"; }
    rm -rf "$tree" "$tree.log"
    printf '%s\n' "$AWS_OFI_NCCL_VERSION" >"$prefix/.kiln-version"
fi
plugin=$(find "$prefix" -name 'libnccl-net*.so' | head -n 1)
[[ -n $plugin ]] || kiln_die "the build left no libnccl-net.so below $prefix"
printf '%s\n' "${plugin%/*}" >/etc/ld.so.conf.d/kiln-ofi-nccl.conf
ldconfig
kiln_record "version=$AWS_OFI_NCCL_VERSION" "plugin=$plugin"
