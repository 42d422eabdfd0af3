"""Proves by one query that every GPU matches the layout, so that a no-op needs no further query.

`nvidia-smi -q -x` shows the mode of each GPU and, for every MIG device, ids, SMs, engines and
memory. It shows neither profile nor position, and omits GPU instances without compute instance. It
therefore proves a match only where

- every device is recognised: exactly one profile of this GPU has these figures, and the compute
  instance is as large as its GPU instance;
- there is no room for an omitted instance: the devices use every compute slice or every memory
  slice, and there is no GPU instance that takes none.

Without a proof the layout may still match; then the listings are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from xml.etree.ElementTree import Element

from .facts import GpuType, ProfileFacts, by_device_id
from .profile import parse
from .smi import Gpu, Instance, Smi, mode_of
from .target import Wanted, shape_order

_MIB_APART = 272  # memory moves by a quarter GiB between driver branches
_ENGINES = ("decoder_count", "encoder_count", "jpg_count", "ofa_count")  # as facts.ENGINES


class Device(NamedTuple):
    """A MIG device: a compute instance. `engines`: of its GPU instance, as `facts.ENGINES`."""

    gpu_instance: int
    sm: int
    copy_engines: int
    engines: tuple[int, ...]
    mib: int


class View(NamedTuple):
    """A GPU as this query shows it, without instances. `devices`: None if one cannot be read."""

    gpu: Gpu
    devices: tuple[Device, ...] | None


def look(smi: Smi) -> list[View] | None:
    """Every GPU, by one query; None when the output is not the expected document."""
    from xml.etree import ElementTree  # takes 10 ms, which most boots do not need

    text = smi.must("-q", "-x")
    try:
        root = ElementTree.fromstring(text)  # noqa: S314 - nvidia-smi is trusted
        views = [_view(i, element) for i, element in enumerate(root.findall("gpu"))]
        complete = int(root.findtext("attached_gpus", "")) == len(views)
    except (ElementTree.ParseError, LookupError, ValueError):
        return None
    return views if complete else None


def as_wanted(
    views: list[View], wanted: dict[int, Wanted], types: dict[str, GpuType]
) -> tuple[Gpu, ...] | None:
    """The GPUs with their instances if they are proven to match, else None.

    The instances have no position (`start` None). A GPU in MIG mode that the layout does not
    address is never proven.
    """
    proven = []
    for view in views:
        gpu = _proven(view, wanted.get(view.gpu.index), types)
        if gpu is None:
            return None
        proven.append(gpu)
    return tuple(proven)


def _proven(view: View, aim: Wanted | None, types: dict[str, GpuType]) -> Gpu | None:
    """The GPU with its instances if it is proven to match `aim`, else None."""
    gpu, devices = view
    if aim and not gpu.current == gpu.pending == aim.mode:
        return None
    if not gpu.current:
        return gpu
    kind = by_device_id(types, gpu.device_id)
    if not (aim and devices and kind):
        return None
    instances = _instances(gpu, devices, kind)
    if not instances or not _full(instances, kind):
        return None
    if sorted((i.shape for i in instances), key=shape_order) != list(aim.shapes):
        return None
    return gpu._replace(instances=instances)


def _view(index: int, element: Element) -> View:
    """One GPU element; nvidia-smi writes the GPUs in the order of their indices."""
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
        return View(gpu, tuple(_device(d) for d in element.findall("mig_devices/mig_device")))
    except (LookupError, ValueError):
        return View(gpu, None)


def _device(element: Element) -> Device:
    def count(path: str) -> int:
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


def _text(element: Element, path: str) -> str:
    text = element.findtext(path)
    if text is None:
        raise LookupError(path)
    return text.strip()


def _instances(gpu: Gpu, devices: Sequence[Device], kind: GpuType) -> tuple[Instance, ...] | None:
    if len({d.gpu_instance for d in devices}) < len(devices):
        return None  # the sizes of several compute instances in a GPU instance are not shown
    instances = []
    for device in devices:
        profile = recognised(device, kind)
        if profile is None:
            return None
        slices = (parse(profile.name).g,)
        instances.append(Instance(gpu.index, device.gpu_instance, profile.name, None, slices))
    return tuple(sorted(instances, key=lambda i: i.id))


def recognised(device: Device, kind: GpuType) -> ProfileFacts | None:
    """The only profile whose full-size compute instance this can be; None if there are several."""
    candidates = [p for p in kind.profiles.values() if _may_be(device, p)]
    return candidates[0] if len(candidates) == 1 and _known(candidates[0]) else None


def _may_be(device: Device, p: ProfileFacts) -> bool:
    if p.gib is None or not _known(p):  # only the name gives a size, which is rounded up
        return abs(parse(p.name).gb * 1024 - device.mib) * 5 < device.mib
    return (device.sm, device.copy_engines, device.engines) == (p.sm, p.ce, p.engines) and abs(
        p.gib * 1024 - device.mib
    ) <= _MIB_APART


def _known(p: ProfileFacts) -> bool:
    return None not in (p.gib, p.sm, p.ce) and not {"gib", "sm", "engines"} & set(p.unsure)


def _full(instances: Sequence[Instance], kind: GpuType) -> bool:
    profiles = [kind.profiles[i.profile] for i in instances]
    return (
        sum(p.compute for p in profiles) == kind.compute_slices
        or sum(p.memory for p in profiles) == kind.memory_slices
    )
