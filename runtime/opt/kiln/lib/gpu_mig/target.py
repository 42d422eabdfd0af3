"""From a label to the wanted state of every GPU; invalid layouts are refused before any change."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Tuple

from .config import Label
from .errors import MigError
from .facts import GpuType, by_device_id, compute_profile_ids, compute_sizes
from .placement import nearest, why_not
from .profile import by_size, parse
from .smi import Gpu

Shape = Tuple[str, Tuple[int, ...]]


class Wanted(NamedTuple):
    """The aim for one GPU: MIG mode and its GPU instances as (profile, compute slices), sorted."""

    gpu: int
    mode: bool
    shapes: tuple[Shape, ...] = ()


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


def from_partition(
    partition: str, gpus: Sequence[Gpu], types: dict[str, GpuType]
) -> dict[int, Wanted]:
    """MIG_PARTITION of the original (`19,19,19` or names): equal instances on every GPU."""
    wanted = {}
    for gpu in gpus:
        if not gpu.capable:
            continue
        kind = by_device_id(types, gpu.device_id)
        ids = {str(p.id): p.name for p in kind.profiles.values()} if kind else {}
        names = []
        for token in _tokens(partition):
            name = token
            if token.isdigit():
                if token not in ids:
                    known = [f"{i} ({n})" for i, n in ids.items() if i != "None"]
                    raise MigError(
                        f"MIG_PARTITION: {token} is not a profile id of {gpu.name}",
                        "ids: {}. MIG_PARTITION takes ids, not a number of instances".format(
                            ", ".join(known)
                        )
                        if known
                        else "its ids are not known: write profile names",
                    )
                name = ids[token]
            names.append((name, 1))
        wanted[gpu.index] = Wanted(gpu.index, True, shape_all(names, "MIG_PARTITION"))
    return wanted


def check_partition(partition: str, types: dict[str, GpuType]) -> None:
    """Raises MigError for values that no known GPU has. Queries no GPU."""
    profiles = [p for kind in types.values() for p in kind.profiles.values()]
    known = {str(p.id) for p in profiles if p.id is not None} | {p.name for p in profiles}
    for token in _tokens(partition):
        name = token if token.isdigit() else parse(token).gpu_instance
        if name not in known:
            raise MigError(
                f"MIG_PARTITION: {token} is not a profile of any known GPU",
                "write profile ids or names, as in 19,19,19 or 1g.5gb,1g.5gb",
            )


def _tokens(partition: str) -> list[str]:
    """Ids as given and names as `profile` spells them. Raises MigError for other tokens."""
    tokens = []
    for token in partition.replace(" ", "").strip(",").split(","):
        try:
            tokens.append(token if token.isdigit() else str(parse(token)))
        except MigError as e:
            raise MigError(f"MIG_PARTITION={partition}: {e.message}", e.hint) from e
    return tokens


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


def check(wanted: Wanted, kind: GpuType | None, where: str = "") -> None:
    """Raises MigError when a GPU of this type cannot hold the layout. Without a type, never."""
    reason = misfit(wanted, kind)
    if not reason or kind is None:
        return
    names = [profile for profile, _ in wanted.shapes]
    near = counted(nearest(kind, names))
    if all(name in kind.profiles for name in names):
        hint = f"nearest that fits: {near}"
    else:
        known = ", ".join(sorted(kind.profiles, key=by_size))
        hint = f"it has {known}; nearest layout: {near}"
    raise MigError("{}{}".format(where + ": " if where else "", reason), hint)


def misfit(wanted: Wanted, kind: GpuType | None) -> str:
    """Why a GPU of this type cannot hold the layout; "" when it can, or the type is not known.

    Much cheaper than `check`, which searches for the nearest layout that fits.
    """
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
