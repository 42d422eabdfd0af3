"""gpu-mig: create the NVIDIA MIG layout that a configuration file declares, at every boot.

Ships on the AMI under /opt/kiln/lib: standard library only, Python 3.7 and later. `kiln/mig` loads
modules from here, so that an AMI and the machine
that builds it use the same code.
"""
