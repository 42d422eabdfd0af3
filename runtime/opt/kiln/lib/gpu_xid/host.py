"""What the machine says about itself without asking the driver to do anything.

Only static files: a GPU that hangs must not hang its monitor, so neither NVML nor nvidia-smi
nor /proc/driver/nvidia/gpus/*/information (which takes driver locks) is read.
"""

import os


def _first_line(path):
    try:
        with open(path) as file:
            return file.readline().strip()
    except (OSError, ValueError):
        return None


def boot_id():
    """This boot's id without dashes, as the journal writes it."""
    return (_first_line("/proc/sys/kernel/random/boot_id") or "unknown").replace("-", "")


def driver_version():
    """Version of the loaded nvidia kernel module, or None."""
    return _first_line("/sys/module/nvidia/version")


def gpu_addresses(root="/sys/bus/pci/devices"):
    """PCI addresses (`dddd:bb:dd.f`) of NVIDIA display and 3D controllers in PCI order.

    The place in this list is the index nvidia-smi uses by default.
    """
    found = []
    try:
        names = sorted(os.listdir(root))
    except OSError:
        return found
    for name in names:
        if _first_line("%s/%s/vendor" % (root, name)) == "0x10de" and (
            _first_line("%s/%s/class" % (root, name)) or ""
        ).startswith("0x03"):
            found.append(name)
    return found


class Gpus:
    """PCI address -> index and UUID. The UUIDs come from the driver's own kernel lines."""

    def __init__(self, addresses):
        self.index = {short(address): place for place, address in enumerate(addresses)}
        self.uuid = {}

    def learn(self, pci, uuid):
        if len(self.uuid) < 1024:
            self.uuid[short(pci)] = uuid

    def knows(self, pci):
        return short(pci) in self.uuid

    def add_to(self, fields):
        if fields.get("xid") is not None and fields["pci"]:
            key = short(fields["pci"])
            fields["gpu"] = self.index.get(key)
            fields["uuid"] = self.uuid.get(key)


def short(pci):
    """The part of an address that all spellings share: `0000:3b:00.0` -> `0000:3b:00`."""
    return pci.partition(".")[0].lower()
