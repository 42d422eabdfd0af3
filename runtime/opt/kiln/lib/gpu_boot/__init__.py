"""What this machine's PCI devices say about the units and the kernel module it needs.

One image serves many instance types. Everything is decided from sysfs, without network: PCI ids in,
decision out (`decide`), then flags in /run/kiln/gpu-boot that units look for (`act`).
Runs on Python 3.7, stdlib only.
"""
