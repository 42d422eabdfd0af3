#!/usr/bin/env bash
# NVIDIA's nccl-tests from their release, with the image's own CUDA and NCCL, and with Open MPI where the
# EFA installer brought it. They are where the guides for EFA look for them: /opt/nccl-tests/build.
#
#@ env      NCCL_TESTS_VERSION      required  release, without the v of its tag
#@ env      NCCL_TESTS_OS_PACKAGES  required  what they are built with
#@ download NCCL_TESTS              required  source archive of that release
# shellcheck source=provisioners/lib/kiln.sh
source "${KILN_DIR:?}/lib/kiln.sh"

prefix=/opt/nccl-tests
mpi=/opt/amazon/openmpi
[[ -x $mpi/bin/mpirun ]] || mpi=
[[ -x /usr/local/cuda/bin/nvcc ]] || kiln_die "there is no CUDA toolkit in /usr/local/cuda" "cuda.sh must run first"
cuda=$(readlink -f /usr/local/cuda) || kiln_die "/usr/local/cuda is a broken link"

# shellcheck disable=SC2086  # a list of names
kiln_install $NCCL_TESTS_OS_PACKAGES
archive=$(kiln_download NCCL_TESTS) || exit 1
tree=$(kiln_unpack "$archive" --strip-components=1) || exit 1
settings=(CUDA_HOME=/usr/local/cuda)
if [[ -n $mpi ]]; then
    settings+=(MPI=1 "MPI_HOME=$mpi")
    # The tests find Open MPI by themselves, without a shell that has its paths.
    export NVCC_APPEND_FLAGS="-Xlinker -rpath=$mpi/lib64:$mpi/lib"
fi
jobs=$(nproc) || kiln_die "nproc cannot count the CPU cores"
make -C "$tree" -j"$jobs" "${settings[@]}" >"$tree.log" 2>&1 \
    || kiln_die_with_log "$tree.log" "nccl-tests $NCCL_TESTS_VERSION do not build with $cuda"
rm -rf "$prefix"
install -d "$prefix/build"
find "$tree/build" -maxdepth 1 -name '*_perf' -exec install -m 0755 -t "$prefix/build" {} +
rm -rf "$tree" "$tree.log"
for test in all_reduce all_gather reduce_scatter alltoall; do
    links=$(ldd "$prefix/build/${test}_perf" 2>&1) || kiln_die "the build did not make ${test}_perf: $links"
    while read -r line; do
        # Only the driver brings libcuda; no GPU is needed to link.
        [[ $line != *'not found'* || $line == *libcuda.so* ]] || kiln_die "${test}_perf does not find a library: $line"
    done <<<"$links"
done
tests=$(find "$prefix/build" -name '*_perf' -printf '%f\n' | sort) || kiln_die "$prefix/build cannot be listed"
kiln_record "version=$NCCL_TESTS_VERSION" "folder=$prefix/build" "mpi=${mpi:-none}" "tests+=${tests//$'\n'/ }"
