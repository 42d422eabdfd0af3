"""The units and the kernel module that this machine needs, from its PCI devices.

One image serves many instance types. Everything is decided from sysfs, without network: PCI ids to
a decision (`decide`), then flags in /run/kiln/gpu-boot on which units depend (`act`).
Python 3.7 and later, standard library only.
"""
