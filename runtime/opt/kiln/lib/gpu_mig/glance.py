"""Is every GPU as wanted? One query that proves it, so that a no-op asks nothing more.

`nvidia-smi -q -x` tells each GPU's mode and, of every MIG device, its ids, SMs, engines and memory.
It tells neither the profile nor the place, and a GPU instance that lost its compute instance is not
in it at all. So it proves a match only where

- every device is recognised: one profile of this GPU, and only one, has these figures, and the
  compute instance is as large as its GPU instance;
- nothing unseen has room: the instances seen use every compute slice or every memory slice, and
  there is no GPU instance that takes none.

What is not proven is not known to be wrong either: then the listings are read.
"""

from __future__ import annotations

from typing import Dict, List, NamedTuple, Optional, Tuple

from .facts import GpuType, ProfileFacts, by_device_id
from .profile import parse
from .smi import Gpu, Instance, mode_of
from .target import Wanted, shape_order

_MIB_APART = 272  # memory moves by a quarter GiB between driver branches
_ENGINES = ("decoder_count", "encoder_count", "jpg_count", "ofa_count")  # as facts.ENGINES


class Device(NamedTuple):
    """A MIG device: a compute instance. `engines`: of its GPU instance, as `facts.ENGINES`."""

    gpu_instance: int
    sm: int
    copy_engines: int
    engines: Tuple[int, ...]
    mib: int


class Seen(NamedTuple):
    """One GPU at a glance, without instances. `devices`: None when one of them cannot be read."""

    gpu: Gpu
    devices: Optional[Tuple[Device, ...]]


def look(smi) -> Optional[List[Seen]]:
    """Every GPU, by one query; None when the answer is not the document it should be."""
    from xml.etree import ElementTree  # 10 ms to import: not where there is nothing to ask

    text = smi.must("-q", "-x")
    try:
        root = ElementTree.fromstring(text)
        found = [_seen(i, element) for i, element in enumerate(root.findall("gpu"))]
        whole = int(root.findtext("attached_gpus", "")) == len(found)
    except (ElementTree.ParseError, LookupError, ValueError):
        return None
    return found if whole else None


def as_wanted(
    seen: List[Seen], wanted: Dict[int, Wanted], types: Dict[str, GpuType]
) -> Optional[Tuple[Gpu, ...]]:
    """The GPUs with their instances when it is proven that all is as wanted, else None.

    The instances have no place (`start` None). A GPU in MIG mode that nobody addresses is not
    looked into: None.
    """
    proven = [_proven(one, wanted.get(one.gpu.index), types) for one in seen]
    return None if None in proven else tuple(proven)


def _proven(one, aim, types):
    """The GPU with its instances, or None."""
    gpu, devices = one
    if aim and not gpu.current == gpu.pending == aim.mode:
        return None
    if not gpu.current:
        return gpu
    kind = by_device_id(types, gpu.device_id)
    instances = _instances(gpu, devices, kind) if aim and devices and kind else None
    if not instances or not _full(instances, kind):
        return None
    if sorted((i.shape for i in instances), key=shape_order) != list(aim.shapes):
        return None
    return gpu._replace(instances=instances)


def _seen(index, element):
    """nvidia-smi writes the GPUs in the order of their indices."""
    gpu = Gpu(
        index,
        _text(element, "uuid"),
        _text(element, "pci/pci_bus_id"),
        "0x" + _text(element, "pci/pci_device_id"),
        "0x" + _text(element, "pci/pci_sub_system_id"),
        _text(element, "product_name"),
        mode_of(_text(element, "mig_mode/current_mig"), index),
        mode_of(_text(element, "mig_mode/pending_mig"), index),
    )
    try:
        return Seen(gpu, tuple(_device(d) for d in element.findall("mig_devices/mig_device")))
    except (LookupError, ValueError):
        return Seen(gpu, None)


def _device(element):
    def count(path):
        return int(_text(element, path))

    shared = "device_attributes/shared/"
    memory, _, unit = _text(element, "fb_memory_usage/total").partition(" ")
    if unit != "MiB":
        raise ValueError(unit)
    return Device(
        count("gpu_instance_id"),
        count(shared + "multiprocessor_count"),
        count(shared + "copy_engine_count"),
        tuple(count(shared + engine) for engine in _ENGINES),
        int(memory),
    )


def _text(element, path):
    text = element.findtext(path)
    if text is None:
        raise LookupError(path)
    return text.strip()


def _instances(gpu, devices, kind) -> Optional[Tuple[Instance, ...]]:
    if len({d.gpu_instance for d in devices}) < len(devices):
        return None  # several compute instances in one: their sizes are not told
    found = []
    for device in devices:
        profile = recognised(device, kind)
        if profile is None:
            return None
        slices = (parse(profile.name).g,)
        found.append(Instance(gpu.index, device.gpu_instance, profile.name, None, slices))
    return tuple(sorted(found, key=lambda i: i.id))


def recognised(device: Device, kind: GpuType) -> Optional[ProfileFacts]:
    """The one profile whose whole-size compute instance this is; None when it may be another."""
    candidates = [p for p in kind.profiles.values() if _may_be(device, p)]
    return candidates[0] if len(candidates) == 1 and _known(candidates[0]) else None


def _may_be(device, p):
    if not _known(p):  # its name's gigabytes are all there is to go by; they are rounded up
        return abs(parse(p.name).gb * 1024 - device.mib) * 5 < device.mib
    return (device.sm, device.copy_engines, device.engines) == (p.sm, p.ce, p.engines) and abs(
        p.gib * 1024 - device.mib
    ) <= _MIB_APART


def _known(p):
    return None not in (p.gib, p.sm, p.ce) and not {"gib", "sm", "engines"} & set(p.unsure)


def _full(instances, kind):
    profiles = [kind.profiles[i.profile] for i in instances]
    return (
        sum(p.compute for p in profiles) == kind.compute_slices
        or sum(p.memory for p in profiles) == kind.memory_slices
    )
