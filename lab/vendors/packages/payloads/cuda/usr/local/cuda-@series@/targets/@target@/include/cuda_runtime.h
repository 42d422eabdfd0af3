/* AMI Kiln lab stand-in */
#include "cuda.h"
#define CUDART_VERSION @number@
