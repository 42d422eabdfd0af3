"""The machines behind instances: guests, their disks, network and names. Knows nothing of moto."""
