"""PCI devices as sysfs shows them."""

from __future__ import annotations

import os
from typing import NamedTuple

NVIDIA = "10de"
DISPLAY_CLASSES = ("0300", "0302")  # VGA controller, 3D controller


class Device(NamedTuple):
    """A PCI function: address "0000:00:1e.0", the rest as four lower-case hex digits.

    `pci_class` is class and subclass ("0302"), `subsystem` is the subsystem device id.
    """

    address: str
    vendor: str
    device: str
    pci_class: str
    subsystem: str


def devices(sysfs: str = "/sys") -> list[Device]:
    """All devices below `sysfs`/bus/pci, in the order of their addresses; [] without a PCI bus."""
    root = os.path.join(sysfs, "bus", "pci", "devices")
    try:
        addresses = sorted(os.listdir(root))
    except OSError:
        return []
    return [_device(root, address) for address in addresses]


def _device(root: str, address: str) -> Device:
    def field(name: str) -> str:
        try:
            with open(os.path.join(root, address, name), errors="replace") as stream:
                return stream.read().strip().lower().replace("0x", "", 1)
        except OSError:
            return ""

    return Device(
        address, field("vendor"), field("device"), field("class")[:4], field("subsystem_device")
    )


def nvidia_gpus(functions: list[Device]) -> list[Device]:
    """The NVIDIA GPUs among PCI functions."""
    return [d for d in functions if d.vendor == NVIDIA and d.pci_class in DISPLAY_CLASSES]
