/* AMI Kiln lab stand-in */
#define CUDA_VERSION @number@
