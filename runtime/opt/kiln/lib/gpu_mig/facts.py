"""What each MIG-capable GPU can be cut into, from profiles.json beside this file.

profiles.json is made from AMI Kiln's `kiln/facts/knowledge/mig.yaml`
(`./invoke generate`); its sources are named there.
A GPU that is not in it is read from its own driver (`smi.read_gpu_type`).
"""

from __future__ import annotations

import functools
import json
import os
from typing import Dict, NamedTuple, Tuple

from .errors import MigError

PROFILES_JSON = os.path.join(os.path.dirname(os.path.abspath(__file__)), "profiles.json")
ENGINES = ("dec", "enc", "jpeg", "ofa")


class ProfileFacts(NamedTuple):
    """One GPU instance profile. `compute`, `memory`: slices; `starts`: first memory slices."""

    name: str
    id: object
    max: int
    compute: int
    memory: int
    starts: Tuple[int, ...]
    gib: object = None
    sm: object = None
    ce: object = None
    engines: Tuple[int, ...] = (0, 0, 0, 0)
    unsure: Tuple[str, ...] = ()


class GpuType(NamedTuple):
    """A GPU model. `reset`: a mode change needs a GPU reset (Ampere); None when not known.

    `engines`: how many of each of ENGINES the whole GPU has.
    """

    name: str
    product: str
    arch: str
    pci_device_ids: Tuple[str, ...]
    compute_slices: int
    memory_slices: int
    reset: object
    profiles: Dict[str, ProfileFacts]
    engines: Tuple[int, ...]

    def profile(self, name):
        """The facts of a profile. Raises MigError naming those this GPU has."""
        if name not in self.profiles:
            raise MigError(
                "{} has no MIG profile {}".format(self.name, name),
                "it has {}.".format(", ".join(self.profiles)),
            )
        return self.profiles[name]

    @property
    def starts_known(self):
        """Whether every placement was seen in a listing: only then do we dictate it."""
        return not any("starts" in p.unsure for p in self.profiles.values())


def engines_of(profiles):
    """Media engines a GPU has: the most that any one of its profiles can take all together."""
    most = [0] * len(ENGINES)
    for p in profiles.values():
        most = [max(m, p.max * e) for m, e in zip(most, p.engines)]  # noqa: B905
    return tuple(most)


def load(path=PROFILES_JSON):
    """Every GPU of profiles.json as {name: GpuType}."""
    with open(path, encoding="utf-8") as f:
        data = json.load(f)
    return {g["gpu"]: gpu_type(g, data["mode_change"]) for g in data["gpus"]}


def load_without_mig(path=PROFILES_JSON):
    """16-bit PCI device ids (lower case, no 0x) of GPUs that cannot do MIG."""
    with open(path, encoding="utf-8") as f:
        return tuple(json.load(f)["without_mig_pci"])


@functools.lru_cache(maxsize=None)
def compute_profile_ids(path=PROFILES_JSON):
    """{compute slices: the id `nvidia-smi mig -cci` takes}. Ids, not names: a compute instance's
    name is spelled differently by drivers where its GPU instance has an attribute (+me)."""
    with open(path, encoding="utf-8") as f:
        return {int(n): i for n, i in json.load(f)["compute_instance_profiles"].items()}


@functools.lru_cache(maxsize=None)
def compute_sizes(path=PROFILES_JSON):
    """{compute slices of a GPU instance: those its compute instances can have}."""
    with open(path, encoding="utf-8") as f:
        return {int(n): tuple(s) for n, s in json.load(f)["compute_instance_sizes"].items()}


def gpu_type(raw, mode_change):
    """One `gpus` record of profiles.json as a GpuType."""
    profiles = {}
    for p in raw["profiles"]:
        profiles[p["profile"]] = ProfileFacts(
            name=p["profile"],
            id=p["id"],
            max=p["max"],
            compute=p["compute"],
            memory=p["memory"],
            starts=tuple(p["starts"]),
            gib=p["gib"],
            sm=p["sm"],
            ce=p["ce"],
            engines=tuple(p[e] or 0 for e in ENGINES),
            unsure=tuple(p.get("unsure", ())),
        )
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


def by_device_id(gpus, device_id):
    """The GpuType of a PCI device id such as `0x20B010DE`, or None when it is not known."""
    for gpu in gpus.values():
        if device_id.lower() in (i.lower() for i in gpu.pci_device_ids):
            return gpu
    return None
