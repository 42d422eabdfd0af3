/* AMI Kiln lab stand-in */
#define CUDNN_MAJOR @major@
#define CUDNN_MINOR @minor@
#define CUDNN_PATCHLEVEL @patch@
