#!/usr/bin/env bash
# NVIDIA's nccl-tests from their release, with the image's own CUDA and NCCL, and with Open MPI where the
# EFA installer brought it. They are where the guides for EFA look for them: /opt/nccl-tests/build.
export KILN_COMPONENT=nccl-tests
# shellcheck source=provisioners/lib/kiln.sh
source "${KILN_DIR:?}/lib/kiln.sh"

prefix=/opt/nccl-tests
mpi=/opt/amazon/openmpi
[[ -x $mpi/bin/mpirun ]] || mpi=
built_with="$NCCL_TESTS_VERSION $(readlink -f /usr/local/cuda) ${mpi:-no MPI}"

if [[ -e $prefix/.kiln-built-with && $(<"$prefix/.kiln-built-with") == "$built_with" ]]; then
    kiln_say "nccl-tests $NCCL_TESTS_VERSION are there already"
else
    [[ -x /usr/local/cuda/bin/nvcc ]] || kiln_die "there is no CUDA toolkit in /usr/local/cuda" "cuda.sh has to run first"
    # Their Makefile asks `which` for nvcc, and takes GPUs of CUDA 10's time when there is none.
    if [[ $KILN_FAMILY == debian ]]; then kiln_install make g++; else kiln_install make gcc-c++ which; fi
    archive=$(kiln_download NCCL_TESTS)
    tree=$(mktemp -d "$KILN_DIR/nccl-tests.XXXXXX")
    tar -xf "$archive" -C "$tree" --strip-components=1
    settings=(CUDA_HOME=/usr/local/cuda)
    if [[ -n $mpi ]]; then
        settings+=(MPI=1 "MPI_HOME=$mpi")
        # The tests find Open MPI by themselves, without a shell that has its paths.
        export NVCC_APPEND_FLAGS="-Xlinker -rpath=$mpi/lib64:$mpi/lib"
    fi
    make -C "$tree" -j"$(nproc)" "${settings[@]}" >"$tree.log" 2>&1 \
        || { tail -n 40 "$tree.log" >&2; kiln_die "nccl-tests $NCCL_TESTS_VERSION do not build with $(readlink -f /usr/local/cuda)"; }
    rm -rf "$prefix"
    install -d "$prefix/build"
    find "$tree/build" -maxdepth 1 -name '*_perf' -exec install -m 0755 -t "$prefix/build" {} +
    printf '%s\n' "$built_with" >"$prefix/.kiln-built-with"
    rm -rf "$tree" "$tree.log"
fi
for test in all_reduce all_gather reduce_scatter alltoall; do
    links=$(ldd "$prefix/build/${test}_perf" 2>&1) || kiln_die "the build left no ${test}_perf: $links"
    # Only the driver brings libcuda; no GPU is needed to link.
    links=$(grep 'not found' <<<"$links" | grep -v libcuda.so || true)
    [[ -z $links ]] || kiln_die "${test}_perf does not find its libraries: $links"
done
mapfile -t tests < <(find "$prefix/build" -name '*_perf' -printf '%f\n' | sort)
kiln_record "version=$NCCL_TESTS_VERSION" "folder=$prefix/build" "mpi=${mpi:-none}" "tests+=${tests[*]}"
