"""An AMI of the lab as a machine of its own: a disk with a boot loader, started by qemu."""

# The tag of an instance that boots so.
TAG = "kiln-lab:own-kernel"
