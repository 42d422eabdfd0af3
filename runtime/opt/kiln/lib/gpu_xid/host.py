"""Facts about this machine that need no work by the driver.

Only static files are read: a hung GPU must not hang its monitor. NVML, nvidia-smi and
/proc/driver/nvidia/gpus/*/information (which takes driver locks) are not used.
"""

from __future__ import annotations

import json
import os

TYPE_CHECKING = False  # the module typing would cost the daemon 0.7 MiB
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any


# What cloud-init found about the instance; readable by all, and renewed at each boot.
# https://docs.cloud-init.io/en/latest/explanation/instancedata.html
INSTANCE_DATA = "/run/cloud-init/instance-data.json"
# Key of an event -> key of EC2's metadata.
_METADATA = {"instance_id": "instance-id", "image_id": "ami-id", "instance_type": "instance-type"}


def machine(path: str | None = None) -> dict[str, str]:
    """`instance_id`, `image_id` and `instance_type` of this EC2 instance; {} where not known (yet).

    From a file: the monitor has no network.
    """
    try:
        with open(path or INSTANCE_DATA) as file:
            source = json.load(file)["ds"]
        metadata = source.get("meta-data") or source["meta_data"]  # by the version of cloud-init
        known = {key: metadata.get(name) for key, name in _METADATA.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}
    return {key: value for key, value in known.items() if isinstance(value, str)}


def _first_line(path: str) -> str | None:
    try:
        with open(path) as file:
            return file.readline().strip()
    except (OSError, ValueError):
        return None


def boot_id() -> str:
    """The id of this boot without dashes, as the journal writes it."""
    return (_first_line("/proc/sys/kernel/random/boot_id") or "unknown").replace("-", "")


def driver_version() -> str | None:
    """Version of the loaded nvidia kernel module, or None."""
    return _first_line("/sys/module/nvidia/version")


def gpu_addresses(root: str = "/sys/bus/pci/devices") -> list[str]:
    """PCI addresses (`dddd:bb:dd.f`) of NVIDIA display and 3D controllers in PCI order.

    The position in this list is the default index of nvidia-smi.
    """
    try:
        names = sorted(os.listdir(root))
    except OSError:
        return []
    return [
        name
        for name in names
        if _first_line(f"{root}/{name}/vendor") == "0x10de"
        and (_first_line(f"{root}/{name}/class") or "").startswith("0x03")
    ]


class Gpus:
    """PCI address -> index and UUID. The UUIDs come from kernel lines of the driver."""

    def __init__(self, addresses: Iterable[str]) -> None:
        self.index = {short(address): place for place, address in enumerate(addresses)}
        self.uuid: dict[str, str] = {}

    def learn(self, pci: str, uuid: str) -> None:
        if len(self.uuid) < 1024:
            self.uuid[short(pci)] = uuid

    def knows(self, pci: str) -> bool:
        return short(pci) in self.uuid

    def add_to(self, fields: dict[str, Any]) -> None:
        if fields.get("xid") is not None and fields["pci"]:
            key = short(fields["pci"])
            fields["gpu"] = self.index.get(key)
            fields["uuid"] = self.uuid.get(key)


def short(pci: str) -> str:
    """The part that all spellings of an address share: `0000:3b:00.0` -> `0000:3b:00`."""
    return pci.partition(".")[0].lower()
