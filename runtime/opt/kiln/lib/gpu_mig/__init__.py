"""gpu-mig: lay NVIDIA MIG slices out as one file declares, at every boot.

Ships on the AMI under /opt/kiln/lib: standard library only, Python 3.7 and later. The offline half
of AMI Kiln (`kiln/mig`) loads `profile`, `miniyaml`, `config`, `facts` and `placement` from here,
so an AMI and the machine that builds it answer with the same code.
"""
