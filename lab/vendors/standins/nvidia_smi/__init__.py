"""The lab's stand-in for nvidia-smi and the NVIDIA daemons; see docs/lab-nvidia-smi.md."""
