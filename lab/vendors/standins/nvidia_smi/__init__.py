"""The lab's stand-in for nvidia-smi and the NVIDIA daemons; see lab/vendors/standins/nvidia-smi.md."""
