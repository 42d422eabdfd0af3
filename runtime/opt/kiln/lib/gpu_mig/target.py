"""From a label to the wanted state of every GPU; invalid layouts are refused before any change.

Besides the labels of the configuration files there are those that the GPUs themselves give:
`all-<profile>`, as many instances as a GPU holds. The files come first. For a type of GPU that a
label of theirs does not address, and for a label that they do not have, the hardware decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Tuple

from .config import Entry, Label, choose
from .errors import MigError
from .facts import GpuType, by_device_id, compute_profile_ids, compute_sizes
from .placement import why_not
from .profile import by_size, parse
from .smi import Gpu

Shape = Tuple[str, Tuple[int, ...]]


class Wanted(NamedTuple):
    """The aim for one GPU: MIG mode and its GPU instances as (profile, compute slices), sorted."""

    gpu: int
    mode: bool
    shapes: tuple[Shape, ...] = ()


def label_of(profile: str) -> str:
    """A profile in a label, as NVIDIA's map writes it: `1g.10gb+me` is all-1g.10gb.me."""
    return "all-" + profile.replace("+", ".").replace(",", ".")


def labels_of(kinds: Iterable[GpuType]) -> list[str]:
    """The labels that these GPUs give, sorted."""
    return sorted({label_of(name) for kind in kinds for name in kind.profiles})


def find(
    labels: dict[str, Label], name: str, gpus: Sequence[Gpu], types: dict[str, GpuType]
) -> Label:
    """The label of that name for these GPUs. Raises MigError with the nearest name."""
    written = labels.get(name)
    added = []
    for kind in _kinds(gpus, types):
        ids = kind.pci_device_ids
        if written and any(entry.addresses(i) for entry in written.entries for i in ids):
            continue
        added += [
            Entry(f"the profiles of {kind.name}", ids, None, True, ((profile.name, profile.max),))
            for profile in kind.profiles.values()
            if label_of(profile.name) == name
        ]
    if written:
        return written._replace(entries=written.entries + tuple(added))
    if added:
        return Label(name, "the GPUs of this machine", tuple(added))
    own = labels_of(_kinds(gpus, types))
    if name in labels_of(types.values()):
        raise MigError(f"label {name!r} is for other GPUs", "here: {}".format(", ".join(own)))
    given = {other: Label(other, "", ()) for other in own}
    return choose({**given, **labels}, name)  # raises, with the nearest of both


def _kinds(gpus: Sequence[Gpu], types: dict[str, GpuType]) -> list[GpuType]:
    """The types of the GPUs that are known and can have MIG, each once."""
    known: dict[str, GpuType] = {}
    for gpu in gpus:
        kind = by_device_id(types, gpu.device_id) if gpu.capable else None
        if kind is not None:
            known[kind.name] = kind
    return list(known.values())


def resolve(label: Label, gpus: Sequence[Gpu]) -> dict[int, Wanted]:
    """The wanted state of these GPUs for a label; GPUs that it does not address are left out.

    Raises MigError when it addresses none, or a GPU index or profile that does not exist.
    """
    capable = [g for g in gpus if g.capable]
    indices = {g.index for g in gpus}
    wanted: dict[int, Wanted] = {}
    for entry in label.entries:
        missing = [i for i in entry.devices or () if i not in indices]
        if missing and not entry.filters:
            raise MigError(
                f"{entry.where}: label {label.name!r} names GPU {missing[0]}, "
                f"this machine has {len(gpus)}",
                "GPU indices start at 0; `devices: all` addresses every GPU",
            )
        for gpu in capable:
            chosen = entry.devices is None or gpu.index in entry.devices
            if chosen and entry.addresses(gpu.device_id, gpu.subsystem_id):
                shapes = shape_all(entry.mig_devices, entry.where)
                wanted[gpu.index] = Wanted(gpu.index, entry.enabled, shapes)
    if not wanted:
        raise MigError(
            f"label {label.name!r} ({label.where}) matches no GPU of this machine: "
            f"{describe(gpus)}",
            "its device-filter must name one of these PCI device ids",
        )
    return wanted


def shape_all(devices: Iterable[tuple[str, int]], where: str = "") -> tuple[Shape, ...]:
    """(name, count) pairs as GPU instances; 3 × `1c.3g.20gb` share a 3g.20gb, first fit.

    Raises MigError, with `where`, for a compute instance of impossible size.
    """
    full: list[Shape] = []
    packed: dict[str, list[list[int]]] = {}
    for name, count in devices:
        p = parse(name)
        if not p.c or p.c == p.g:
            full += [(p.gpu_instance, (p.g,))] * count
        else:
            packed.setdefault(p.gpu_instance, []).extend([[p.c]] * count)
    _refuse_odd_sizes(packed, where)
    for name, requests in packed.items():
        room = parse(name).g
        instances: list[list[int]] = []
        for (size,) in sorted(requests, reverse=True):
            for instance in instances:
                if sum(instance) + size <= room:
                    instance.append(size)
                    break
            else:
                instances.append([size])
        full += [(name, tuple(i)) for i in instances]
    return tuple(sorted(full, key=shape_order))


def _refuse_odd_sizes(packed: dict[str, list[list[int]]], where: str) -> None:
    for name, requests in packed.items():
        width = parse(name).g
        sizes = compute_sizes().get(width, tuple(n for n in compute_profile_ids() if n <= width))
        odd = [size for (size,) in requests if size not in sizes]
        if odd:
            raise MigError(
                "{}{}c.{}: no compute instance of a {}g has {} slices".format(
                    where and where + ": ", odd[0], name, width, odd[0]
                ),
                "sizes: {}".format(", ".join(f"{size}c" for size in sizes)),
            )


def shape_order(shape: Shape) -> tuple[int, int, int, str, tuple[int, ...]]:
    """Largest first, the order of creation."""
    return (*by_size(shape[0]), shape[1])


def check(wanted: Wanted, kind: GpuType | None) -> None:
    """Raise MigError when a GPU of this type cannot hold the layout. Without a type, never."""
    reason = misfit(wanted, kind)
    if reason and kind is not None:
        raise MigError(reason, "it has {}".format(", ".join(sorted(kind.profiles, key=by_size))))


def misfit(wanted: Wanted, kind: GpuType | None) -> str:
    """Return why a GPU of this type cannot hold the layout; "" when it can, or the type is not
    known."""
    if kind is None or not wanted.mode:
        return ""
    names = [profile for profile, _ in wanted.shapes]
    unknown = [name for name in names if name not in kind.profiles]
    reason = f"no MIG profile {unknown[0]}" if unknown else why_not(kind, names)
    return f"GPU {wanted.gpu} ({kind.name}): {reason}" if reason else ""


def counted(names: Sequence[str]) -> str:
    """`['1g.5gb', '1g.5gb']` as `1g.5gb=2`, smallest first."""
    kinds = sorted(set(names), key=by_size, reverse=True)
    return ",".join(f"{k}={names.count(k)}" for k in kinds)


def devices_of(shapes: Iterable[Shape]) -> dict[str, int]:
    """Instances as `mig-devices` of mig-parted: {name: count}."""
    counts: dict[str, int] = {}
    for profile, compute in shapes:
        p = parse(profile)
        for size in compute:
            name = str(p._replace(c=size))
            counts[name] = counts.get(name, 0) + 1
    return counts


def describe(gpus: Iterable[Gpu]) -> str:
    """`8 × NVIDIA A100-SXM4-40GB (0x20B010DE)`: the GPUs of the machine, for messages."""
    kinds: dict[str, int] = {}
    for gpu in gpus:
        key = f"{gpu.name} ({gpu.device_id})"
        kinds[key] = kinds.get(key, 0) + 1
    return ", ".join(f"{n} × {k}" for k, n in kinds.items()) or "no GPU"
