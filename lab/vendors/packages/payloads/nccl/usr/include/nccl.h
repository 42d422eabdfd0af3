/* AMI Kiln lab stand-in */
#define NCCL_MAJOR @major@
#define NCCL_MINOR @minor@
#define NCCL_PATCH @patch@
#define NCCL_SUFFIX ""
#define NCCL_VERSION_CODE @code@
