"""PCI devices as sysfs shows them."""

import os
from collections import namedtuple

NVIDIA = "10de"
DISPLAY_CLASSES = ("0300", "0302")  # VGA controller, 3D controller

Device = namedtuple("Device", "address vendor device pci_class subsystem")
Device.__doc__ = """One function: address "0000:00:1e.0", the rest as four lower-case hex digits.

`pci_class` is class and subclass ("0302"), `subsystem` is the subsystem device id."""


def devices(sysfs="/sys"):
    """All devices below `sysfs`/bus/pci, in the order of their addresses; [] without a PCI bus."""
    root = os.path.join(sysfs, "bus", "pci", "devices")
    try:
        addresses = sorted(os.listdir(root))
    except OSError:
        return []
    return [_device(root, address) for address in addresses]


def _device(root, address):
    def field(name):
        try:
            with open(os.path.join(root, address, name)) as stream:
                return stream.read().strip().lower().replace("0x", "", 1)
        except OSError:
            return ""

    return Device(
        address, field("vendor"), field("device"), field("class")[:4], field("subsystem_device")
    )


def nvidia_gpus(found):
    """Those that are NVIDIA GPUs."""
    return [d for d in found if d.vendor == NVIDIA and d.pci_class in DISPLAY_CLASSES]
