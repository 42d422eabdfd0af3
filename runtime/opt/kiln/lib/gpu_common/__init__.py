"""What gpu_boot, gpu_mig and gpu_xid share. Standard library only, Python 3.7 to 3.13."""
