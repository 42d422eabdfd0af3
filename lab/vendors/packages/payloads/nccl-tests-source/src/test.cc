// AMI Kiln lab stand-in for a test of nccl-tests @version@.
#include <cuda_runtime.h>
#include <nccl.h>
#include <stdio.h>
#ifdef MPI_SUPPORT
#include <mpi.h>
#endif

int main() {
    fprintf(stderr, NAME " (AMI Kiln lab stand-in, nccl-tests @version@): nothing is measured in the lab\n");
    return 1;
}
