const char ofi_nccl_version[] = "NET/OFI Initializing aws-ofi-nccl @version@ (AMI Kiln lab stand-in)";
