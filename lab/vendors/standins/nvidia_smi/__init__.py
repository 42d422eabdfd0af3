"""The lab's stand-in for nvidia-smi and the NVIDIA daemons; see ../nvidia-smi.md."""
