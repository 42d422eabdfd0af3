"""From a label to what every GPU should look like; refused before anything moves."""

from __future__ import annotations

from typing import Dict, List, NamedTuple, Optional, Tuple

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
    shapes: Tuple[Shape, ...] = ()


def resolve(label: Label, gpus: List[Gpu]) -> Dict[int, Wanted]:
    """What a label asks of these GPUs; GPUs it does not address are left out.

    Raises MigError when it addresses none, or an index or slice that is not there.
    """
    capable = [g for g in gpus if g.capable]
    indices = {g.index for g in gpus}
    wanted: Dict[int, Wanted] = {}
    for entry in label.entries:
        missing = [i for i in entry.devices or () if i not in indices]
        if missing and not entry.filters:
            raise MigError(
                "{}: label {!r} names GPU {}, this machine has {}".format(
                    entry.where, label.name, missing[0], len(gpus)
                ),
                "GPU indices start at 0; `devices: all` addresses every GPU.",
            )
        for gpu in capable:
            chosen = entry.devices is None or gpu.index in entry.devices
            if chosen and entry.addresses(gpu.device_id, gpu.subsystem_id):
                shapes = shape_all(entry.mig_devices, entry.where)
                wanted[gpu.index] = Wanted(gpu.index, entry.enabled, shapes)
    if not wanted:
        raise MigError(
            "label {!r} ({}) matches no GPU of this machine: {}".format(
                label.name, label.where, describe(gpus)
            ),
            "its device-filter must name one of these PCI device ids.",
        )
    return wanted


def from_partition(partition: str, gpus: List[Gpu], types) -> Dict[int, Wanted]:
    """The original's MIG_PARTITION (`19,19,19` or names): the same instances on every GPU."""
    wanted = {}
    for gpu in gpus:
        if not gpu.capable:
            continue
        kind = by_device_id(types, gpu.device_id)
        ids = {str(p.id): p.name for p in kind.profiles.values()} if kind else {}
        names = []
        for token in _tokens(partition):
            if token.isdigit():
                if token not in ids:
                    known = ["{} ({})".format(i, n) for i, n in ids.items() if i != "None"]
                    raise MigError(
                        "MIG_PARTITION: {} is no profile id of {}".format(token, gpu.name),
                        "ids: {}. It takes ids, not a count of slices.".format(", ".join(known))
                        if known
                        else "its ids are not known here: write profile names.",
                    )
                token = ids[token]  # noqa: PLW2901
            names.append((token, 1))
        wanted[gpu.index] = Wanted(gpu.index, True, shape_all(names, "MIG_PARTITION"))
    return wanted


def check_partition(partition: str, types) -> None:
    """Raises MigError for what no GPU we know can mean by it: no GPU is asked."""
    every = [p for kind in types.values() for p in kind.profiles.values()]
    known = {str(p.id) for p in every if p.id is not None} | {p.name for p in every}
    for token in _tokens(partition):
        name = token if token.isdigit() else parse(token).gpu_instance
        if name not in known:
            raise MigError(
                "MIG_PARTITION: {} is a profile of no GPU known here".format(token),
                "write profile ids or names, as in 19,19,19 or 1g.5gb,1g.5gb.",
            )


def _tokens(partition):
    """Ids as typed and names as they are spelled. Raises MigError for what is neither."""
    found = []
    for token in partition.replace(" ", "").strip(",").split(","):
        try:
            found.append(token if token.isdigit() else str(parse(token)))
        except MigError as e:
            raise MigError("MIG_PARTITION={}: {}".format(partition, e.message), e.hint) from e
    return found


def shape_all(devices, where="") -> Tuple[Shape, ...]:
    """(name, count) pairs as GPU instances; `1c.3g.20gb` × 3 share one 3g.20gb, first fit.

    Raises MigError, with `where`, for a compute instance of a size there is none of.
    """
    full: List[Shape] = []
    packed: Dict[str, List[List[int]]] = {}
    for name, count in devices:
        p = parse(name)
        if not p.c or p.c == p.g:
            full += [(p.gpu_instance, (p.g,))] * count
        else:
            packed.setdefault(p.gpu_instance, []).extend([[p.c]] * count)
    _refuse_odd_sizes(packed, where)
    for name, wishes in packed.items():
        room = parse(name).g
        instances: List[List[int]] = []
        for (size,) in sorted(wishes, reverse=True):
            for instance in instances:
                if sum(instance) + size <= room:
                    instance.append(size)
                    break
            else:
                instances.append([size])
        full += [(name, tuple(i)) for i in instances]
    return tuple(sorted(full, key=shape_order))


def _refuse_odd_sizes(packed, where):
    for name, wishes in packed.items():
        width = parse(name).g
        sizes = compute_sizes().get(width, tuple(n for n in compute_profile_ids() if n <= width))
        odd = [size for (size,) in wishes if size not in sizes]
        if odd:
            raise MigError(
                "{}{}c.{}: no compute instance of a {}g has {} slices".format(
                    where and where + ": ", odd[0], name, width, odd[0]
                ),
                "sizes: {}.".format(", ".join("{}c".format(size) for size in sizes)),
            )


def shape_order(shape):
    """Largest first, the order of creation."""
    return by_size(shape[0]) + (shape[1],)


def check(wanted: Wanted, kind: Optional[GpuType], where: str = "") -> None:
    """Raises MigError when a GPU of this type cannot hold what is wanted. No type: no opinion."""
    reason = misfit(wanted, kind)
    if not reason or kind is None:
        return
    names = [profile for profile, _ in wanted.shapes]
    near = counted(nearest(kind, names))
    if all(name in kind.profiles for name in names):
        hint = "nearest that fits: {}.".format(near)
    else:
        known = ", ".join(sorted(kind.profiles, key=by_size))
        hint = "it has {}; nearest layout: {}.".format(known, near)
    raise MigError("{}{}".format(where + ": " if where else "", reason), hint)


def misfit(wanted: Wanted, kind: Optional[GpuType]) -> str:
    """Why a GPU of this type cannot hold what is wanted; "" when it can, or nobody knows.

    Much cheaper than `check`, which looks for the nearest layout that fits.
    """
    if kind is None or not wanted.mode:
        return ""
    names = [profile for profile, _ in wanted.shapes]
    unknown = [name for name in names if name not in kind.profiles]
    reason = "no MIG profile {}".format(unknown[0]) if unknown else why_not(kind, names)
    return "GPU {} ({}): {}".format(wanted.gpu, kind.name, reason) if reason else ""


def counted(names) -> str:
    """`['1g.5gb', '1g.5gb']` as `1g.5gb=2`, smallest first as people write it."""
    kinds = sorted(set(names), key=by_size, reverse=True)
    return ",".join("{}={}".format(k, names.count(k)) for k in kinds)


def devices_of(shapes) -> Dict[str, int]:
    """Instances back to mig-parted's `mig-devices`: {name: count}."""
    found: Dict[str, int] = {}
    for profile, compute in shapes:
        p = parse(profile)
        for size in compute:
            name = str(p._replace(c=size))
            found[name] = found.get(name, 0) + 1
    return found


def describe(gpus) -> str:
    """`8 × NVIDIA A100-SXM4-40GB (0x20B010DE)`: what is in the machine, for messages."""
    kinds: Dict[str, int] = {}
    for gpu in gpus:
        key = "{} ({})".format(gpu.name, gpu.device_id)
        kinds[key] = kinds.get(key, 0) + 1
    return ", ".join("{} × {}".format(n, k) for k, n in kinds.items()) or "no GPU"
