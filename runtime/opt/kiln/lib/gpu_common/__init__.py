"""Common parts of gpu_boot, gpu_mig and gpu_xid. Standard library only, Python 3.7 to 3.13."""
