"""The layouts that a GPU can hold, whether slices fit, the nearest set that does, and what a label
makes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kiln import facts
from kiln.base.errors import KilnError
from kiln.base.paths import RUNTIME, runtime_module
from kiln.base.yaml_files import read_plain
from kiln.mig.profiles import NoMigError, chosen, gpu_types

if TYPE_CHECKING:
    from gpu_mig.facts import GpuType


_config = runtime_module("gpu_mig.config")
_errors = runtime_module("gpu_mig.errors")
_placement = runtime_module("gpu_mig.placement")
_profile = runtime_module("gpu_mig.profile")
_smi = runtime_module("gpu_mig.smi")
_target = runtime_module("gpu_mig.target")

SHIPPED_MAP = RUNTIME / "etc" / "kiln" / "mig-config.json"


def all_layouts(gpu: GpuType, names: Sequence[str] = ()) -> Iterator[tuple[int, ...]]:
    """Every set that fits, as counts in the order of `names` (default: all profiles by size).

    The empty set comes first. A100: 128 sets of its 7 profiles.
    """
    kinds = list(names) or sorted(gpu.profiles, key=_profile.by_size)
    known = {(0,) * len(kinds)}
    frontier = list(known)
    yield frontier[0]
    while frontier:
        counts = frontier.pop()
        for i in range(len(kinds)):
            more = (*counts[:i], counts[i] + 1, *counts[i + 1 :])
            if more not in known and _placement.fit(gpu, expand(kinds, more)) is not None:
                known.add(more)
                frontier.append(more)
                yield more


def expand(kinds: Sequence[str], counts: Sequence[int]) -> list[str]:
    """The names of a set given as counts: `(['1g.5gb'], (2,))` is `['1g.5gb', '1g.5gb']`."""
    return [kind for kind, count in zip(kinds, counts, strict=True) for _ in range(count)]


def nearest_layout(gpu: GpuType, names: Sequence[str]) -> list[str]:
    """The set that fits and is most like `names`: least change of slices, then of the number.

    Profiles that this GPU lacks are replaced by its most similar ones.
    """
    target = sorted((translate(gpu, name) for name in names), key=_profile.by_size)
    kinds = sorted(gpu.profiles, key=_profile.by_size)

    def unlike(layout: Sequence[str]) -> tuple[int, int, bool, int, int]:
        pairs = [(gpu.profile(a), gpu.profile(b)) for a, b in zip(target, layout, strict=False)]
        changed = sum(abs(a.compute - b.compute) + abs(a.memory - b.memory) for a, b in pairs)
        dropped = [gpu.profile(name) for name in target[len(layout) :]]
        lost = sum(each.compute + each.memory + 2 for each in dropped)
        renamed = [a.name.partition("b")[2] != b.name.partition("b")[2] for a, b in pairs]
        others = sum(a.name != b.name for a, b in pairs)
        return (changed + lost, len(dropped), any(renamed), len(set(layout)), others)

    if _placement.fit(gpu, target) is not None:
        return target
    layouts = (expand(kinds, counts) for counts in all_layouts(gpu))
    return min((each for each in layouts if 0 < len(each) <= len(target)), key=unlike, default=[])


def translate(gpu: GpuType, name: str) -> str:
    """The profile of this GPU that is most like a profile of another GPU."""
    asked = _profile.parse(name)
    if asked.gpu_instance in gpu.profiles:
        return str(asked.gpu_instance)

    def unlike(candidate: str) -> tuple[int, bool, bool, int, int]:
        has = _profile.parse(candidate)
        return (
            abs(has.g - asked.g),
            (has.attributes, has.without_media) != (asked.attributes, asked.without_media),
            bool(has.attributes or has.without_media),
            abs(has.gb - asked.gb),
            has.gb,
        )

    return min(gpu.profiles, key=unlike)


def parse_devices(text: str) -> list[tuple[str, int]]:
    """`2g.20gb=2,4g.40gb` as `[(name, count), …]`, in the order given. Raises MigError.

    A comma inside an attribute list (`1g.24gb+gfx,me`) belongs to the name.
    """
    wanted: list[tuple[str, int]] = []
    for part in re.split(r",(?=\s*[0-9])", text.strip(" ,")) if text.strip(" ,") else []:
        name, sep, count = part.strip().partition("=")
        spelled = str(_profile.parse(name.strip()))
        if sep and not re.fullmatch(r"[0-9]{1,9}", count.strip()):
            raise _errors.MigError(
                f"{part.strip()!r}: {count.strip()!r} is not a count",
                "write profile=count, for example 1g.10gb=7",
            )
        wanted.append((spelled, _profile.countable(spelled, int(count)) if sep else 1))
    if not any(count for _, count in wanted):
        raise _errors.MigError(f"no instance is requested in {text!r}", "write profile=count")
    return wanted


@contextmanager
def _explained() -> Iterator[None]:
    """While inside, an error of gpu-mig is a KilnError."""
    try:
        yield
    except _errors.MigError as error:
        raise KilnError(error.message, hint=error.hint) from error


def check_mig_config(
    gpu: str | None = None, instance_type: str | None = None, *, devices: str
) -> dict[str, Any]:
    """Check that one GPU can hold `devices` (`2g.20gb=2,4g.40gb=1`).

    Returns `valid`, `reason` and `nearest` (both None if valid), `placement` (profile and start of
    every GPU instance) and `warnings` about unconfirmed facts. A GPU without MIG is an answer too
    (`valid` false).
    """
    answer: dict[str, Any] = {
        "valid": False, "reason": None, "nearest": None, "gpu": gpu,
        "instance_type": instance_type, "placement": [], "warnings": [],
    }  # fmt: skip
    names = [profile for profile, _ in instances_with(devices)]
    try:
        _, kind = chosen(gpu, instance_type)
    except NoMigError as e:
        return {**answer, "reason": e.message}
    answer["gpu"] = kind.name
    unknown = sorted(set(names) - kind.profiles.keys())
    reason = (
        f"{kind.name} has no profile {', '.join(unknown)}"
        if unknown
        else _placement.why_not(kind, names)
    )
    if reason:
        nearest = _target.counted(nearest_layout(kind, names))
        return {**answer, "reason": reason, "nearest": nearest}
    placed = _placement.fit(kind, names)
    answer["placement"] = [{"profile": p.profile, "start": p.start} for p in placed]
    return {**answer, "valid": True, "warnings": warnings(kind, names)}


def instances_with(devices: str) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """The GPU instances of `1g.5gb=7`: profile, compute slices."""
    with _explained():
        shapes: tuple[tuple[str, tuple[int, ...]], ...] = _target.shape_all(parse_devices(devices))
    return shapes


def warnings(kind: GpuType, names: Iterable[str]) -> list[str]:
    """A warning for each of these profiles whose placement no public listing confirms."""
    doubtful = {n for n in names if {"starts", "memory"} & set(kind.profiles[n].unsure)}
    return [
        f"the placements of {n} on {kind.name} are unconfirmed; try them on the GPU"
        for n in sorted(doubtful)
    ]


@cache
def shipped_labels() -> dict[str, Any]:
    """The shipped map by label."""
    return dict(_config.load(str(SHIPPED_MAP)))


def label_names(kind: GpuType) -> list[str]:
    """The labels of the shipped map and those that the GPU's profiles give."""
    return sorted({*shipped_labels(), *_target.labels_of([kind])})


def labels_with(config: str) -> dict[str, Any]:
    """The shipped labels and those of a file, or of a folder such as /etc/kiln/mig-config.d."""
    path = Path(config)
    files = sorted(path.glob("*.[jy]*")) if path.is_dir() else [path]
    labels = dict(shipped_labels())
    with _explained():
        for file in files:
            labels |= _config.labels_of(read_plain(file), str(file))
    return labels


def label_problem(label: str, machine: facts.InstanceType) -> str:
    """Return why a label cannot be the default of an AMI for an instance type with MIG; "" if it
    can."""
    try:
        _machine_settings(label, machine)
    except _errors.MigError as e:
        return f"MIG label {label!r} on {machine.type} ({machine.gpu}): {e.message}; {e.hint}"
    return ""


def label_layout(label: str, machine: facts.InstanceType) -> tuple[bool, list[str]]:
    """Return if a label turns MIG on for a GPU of this type, and the profiles that it makes, each
    once. Off and none where there is a `label_problem`."""
    try:
        settings = _machine_settings(label, machine)
    except (_errors.MigError, KeyError):  # a GPU without MIG
        return False, []
    profiles = dict.fromkeys(name for each in settings for name, _ in each.shapes)
    return any(each.mode for each in settings), list(profiles)


def label_slices(
    label: str, count: int, kind: GpuType, labels: dict[str, Any]
) -> dict[int, dict[str, int]]:
    """The slices of every GPU in MIG mode of a machine with `count` GPUs: {index: {profile: n}}."""
    with _explained():
        settings = _settings(label, count, kind, labels)
    return {each.gpu: _target.devices_of(each.shapes) for each in settings if each.mode}


def _settings(
    label: str, count: int, kind: GpuType, labels: dict[str, Any], device_id: str = ""
) -> list[Any]:
    """Return a label's settings of each GPU; MigError for an unknown label or one that does not
    fit."""
    device = device_id or kind.pci_device_ids[0]
    gpus = [_smi.Gpu(i, "", "", device, "", kind.product, False, False) for i in range(count)]
    settings = _target.resolve(_target.find(labels, label, gpus, gpu_types()), gpus).values()
    for setting in settings:
        _target.check(setting, kind)
    return list(settings)


def _machine_settings(label: str, machine: facts.InstanceType) -> list[Any]:
    device_id = f"0x{machine.pci_device_ids[0].upper()}10DE"
    kind = gpu_types()[machine.gpu]
    return _settings(label, machine.gpu_count, kind, shipped_labels(), device_id)
