"""MIG without a GPU: the profiles of an instance type, what fits, and how to place it.

The rules are imported from `gpu-mig` on the AMI (`runtime/opt/kiln/lib/gpu_mig`).
"""
