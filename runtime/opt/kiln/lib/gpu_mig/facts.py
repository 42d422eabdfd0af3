"""The MIG profiles of each GPU, from profiles.json beside this file.

profiles.json is generated from mig.yaml in the knowledge of AMI Kiln, which names the sources. The
profiles of other GPUs are listed by their driver (`Smi.gpu_type`).
"""

from __future__ import annotations

import functools
import json
import os
from typing import Any, NamedTuple

from . import paths
from .errors import MigError

PROFILES_JSON = os.path.join(os.path.dirname(os.path.abspath(__file__)), "profiles.json")
ENGINES = ("dec", "enc", "jpeg", "ofa")


class ProfileFacts(NamedTuple):
    """A GPU instance profile. `compute`, `memory`: slices; `starts`: possible first slices."""

    name: str
    id: int | None
    max: int
    compute: int
    memory: int
    starts: tuple[int, ...]
    gib: float | None = None
    sm: int | None = None
    ce: int | None = None
    engines: tuple[int, ...] = (0, 0, 0, 0)
    unsure: tuple[str, ...] = ()


class GpuType(NamedTuple):
    """A GPU model. `reset`: a mode change needs a GPU reset (Ampere); None when not known.

    `engines`: the number of each of ENGINES in the whole GPU.
    """

    name: str
    product: str
    arch: str
    pci_device_ids: tuple[str, ...]
    compute_slices: int
    memory_slices: int
    reset: bool | None
    profiles: dict[str, ProfileFacts]
    engines: tuple[int, ...]

    def profile(self, name: str) -> ProfileFacts:
        """The facts of a profile. Raises MigError, with the profiles of this GPU."""
        if name not in self.profiles:
            raise MigError(
                f"{self.name} has no MIG profile {name}",
                "it has {}".format(", ".join(self.profiles)),
            )
        return self.profiles[name]


def engines_of(profiles: dict[str, ProfileFacts]) -> tuple[int, ...]:
    """The media engines of a GPU: the most that all instances of any one profile can have."""
    most = [0] * len(ENGINES)
    for p in profiles.values():
        most = [max(m, p.max * e) for m, e in zip(most, p.engines)]
    return tuple(most)


@functools.lru_cache(maxsize=None)
def _data() -> Any:
    with open(PROFILES_JSON, encoding="utf-8") as f:
        return json.load(f)


def load() -> dict[str, GpuType]:
    """Every GPU of profiles.json as {name: GpuType}, without profiles newer than the driver."""
    branch = int(paths.read("/sys/module/nvidia/version").partition(".")[0] or 9999)
    known = {}
    for gpu in _data()["gpus"]:
        since = gpu.get("since_driver", {})
        listed = [p for p in gpu["profiles"] if int(since.get(p["profile"], 0)) <= branch]
        known[gpu["gpu"]] = gpu_type({**gpu, "profiles": listed}, _data()["mode_change"])
    return known


def load_without_mig() -> tuple[str, ...]:
    """16-bit PCI device ids (lower case, no 0x) of GPUs without MIG."""
    return tuple(_data()["without_mig_pci"])


def compute_profile_ids() -> dict[int, int]:
    """{compute slices: the profile id for `nvidia-smi mig -cci`}.

    Ids, not names: drivers differ in how they spell the name of a compute instance in a GPU
    instance with an attribute (+me).
    """
    return {int(n): i for n, i in _data()["compute_instance_profiles"].items()}


def compute_sizes() -> dict[int, tuple[int, ...]]:
    """{compute slices of a GPU instance: possible compute slices of its compute instances}."""
    return {int(n): tuple(s) for n, s in _data()["compute_instance_sizes"].items()}


def gpu_type(raw: dict[str, Any], mode_change: dict[str, Any]) -> GpuType:
    """A `gpus` record of profiles.json as a GpuType."""
    same = ("id", "max", "compute", "memory", "gib", "sm", "ce")
    profiles = {
        p["profile"]: ProfileFacts(
            name=p["profile"],
            starts=tuple(p["starts"]),
            engines=tuple(p[e] or 0 for e in ENGINES),
            unsure=tuple(p.get("unsure", ())),
            **{key: p[key] for key in same},
        )
        for p in raw["profiles"]
    }
    return GpuType(
        name=raw["gpu"],
        product=raw["product"],
        arch=raw["arch"],
        pci_device_ids=tuple(raw["pci_device_ids"]),
        compute_slices=raw["compute_slices"],
        memory_slices=raw["memory_slices"],
        reset=mode_change[raw["arch"]]["reset"],
        profiles=profiles,
        engines=engines_of(profiles),
    )


def by_device_id(gpus: dict[str, GpuType], device_id: str) -> GpuType | None:
    """The GpuType of a PCI device id such as `0x20B010DE`, or None when it is not known."""
    for gpu in gpus.values():
        if device_id.lower() in (i.lower() for i in gpu.pci_device_ids):
            return gpu
    return None
