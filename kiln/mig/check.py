"""Whether a set of MIG slices fits on a GPU, and the nearest set that does."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING, Any

from kiln import facts
from kiln.base.errors import KilnError
from kiln.base.paths import RUNTIME
from kiln.base.runtime_import import runtime_module
from kiln.mig.profiles import NoMigError, chosen, gpu_types

if TYPE_CHECKING:
    from gpu_mig.facts import GpuType

_errors = runtime_module("gpu_mig.errors")
_profile = runtime_module("gpu_mig.profile")
_placement = runtime_module("gpu_mig.placement")
_smi = runtime_module("gpu_mig.smi")
_target = runtime_module("gpu_mig.target")
_hardware = runtime_module("gpu_mig.hardware")
_config = runtime_module("gpu_mig.config")

SHIPPED_MAP = RUNTIME / "etc" / "kiln" / "mig-config.yaml"


def check_mig_config(
    gpu: str | None = None, instance_type: str | None = None, *, devices: str
) -> dict[str, Any]:
    """Whether one GPU can hold `devices` (`2g.20gb=2,4g.40gb=1`).

    Returns `valid`, `reason` and `nearest` (both None if valid), `placement` (profile and start of
    every GPU instance) and `warnings` about unconfirmed facts. A GPU without MIG is an answer too
    (`valid` false). Raises KilnError for invalid names and counts, and for unknown GPUs.
    """
    answer: dict[str, Any] = {
        "valid": False, "reason": None, "nearest": None, "gpu": gpu,
        "instance_type": instance_type, "placement": [], "warnings": [],
    }  # fmt: skip
    wanted = instances_with(devices)
    try:
        _, kind = chosen(gpu, instance_type)
    except NoMigError as e:
        return {**answer, "reason": e.message}
    answer["gpu"] = kind.name
    names = [profile for profile, _ in wanted]
    unknown = sorted({n for n in names if n not in kind.profiles})
    reason = (
        f"{kind.name} has no profile {', '.join(unknown)}"
        if unknown
        else _placement.why_not(kind, names)
    )
    if reason:
        return {
            **answer,
            "reason": reason,
            "nearest": _target.counted(_placement.nearest(kind, names)),
        }
    placed = _placement.fit(kind, names)
    answer["placement"] = [{"profile": p.profile, "start": p.start} for p in placed]
    return {**answer, "valid": True, "warnings": warnings(kind, names)}


def instances_with(devices: str) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """`1g.5gb=7` as GPU instances (profile, compute slices). Raises KilnError for invalid text."""
    try:
        shapes: tuple[tuple[str, tuple[int, ...]], ...] = _target.shape_all(
            _profile.parse_devices(devices)
        )
    except _errors.MigError as e:
        raise KilnError(e.message, hint=e.hint) from e
    return shapes


def warnings(kind: GpuType, names: Iterable[str]) -> list[str]:
    """A warning for each of these profiles whose placement no public listing confirms."""
    doubtful = {n for n in names if {"starts", "memory"} & set(kind.profiles[n].unsure)}
    return [
        f"the placements of {n} on {kind.name} are unconfirmed; try them on the GPU"
        for n in sorted(doubtful)
    ]


def check_label(
    label: str, instance_types: Iterable[str], labels: dict[str, Any] | None = None
) -> list[str]:
    """Why a label cannot be the default of an AMI for these instance types; [] if it can.

    Types without MIG are ignored, since the unit does nothing there, unless no type has MIG.
    `labels` is the result of `gpu_mig.config.load`, by default of the shipped map.
    """
    types = [facts.instance(t) for t in instance_types]
    all_labels = labels if labels is not None else shipped_labels()
    capable = [t for t in types if t.mig]
    try:
        if label not in _hardware.labels_of(gpu_types()[t.gpu] for t in capable):
            _config.choose(all_labels, label)
    except _errors.MigError as e:
        return [f"{e.message}: {e.hint}"]
    if not capable:
        return [
            f"MIG label {label!r}: none of {', '.join(t.type for t in types)} has a GPU with MIG"
        ]
    label_problems = (_label_problem(all_labels, label, t) for t in capable)
    return [problem for problem in label_problems if problem]


@cache
def shipped_labels() -> dict[str, Any]:
    """The shipped map by label. Cached, since the AMI's own parser is small rather than fast."""
    labels: dict[str, Any] = _config.load(str(SHIPPED_MAP))
    return labels


def label_layout(label: str, machine: facts.InstanceType) -> tuple[bool, list[str]]:
    """Whether a label turns MIG on for a GPU of this type, and the profiles that it makes, each
    once. Off and none where `check_label` has a problem with it."""
    try:
        wanted = _wanted(shipped_labels(), label, machine)
    except _errors.MigError:
        return False, []
    profiles = dict.fromkeys(name for each in wanted for name, _ in each.shapes)
    return any(each.mode for each in wanted), list(profiles)


def _label_problem(labels: dict[str, Any], name: str, machine: facts.InstanceType) -> str:
    kind = gpu_types()[machine.gpu]
    where = f"MIG label {name!r} on {machine.type} ({kind.name})"
    try:
        for wanted in _wanted(labels, name, machine):
            _target.check(wanted, kind)
    except _errors.MigError as e:
        return f"{where}: {e.message}; {e.hint}"
    return ""


def _wanted(labels: dict[str, Any], name: str, machine: facts.InstanceType) -> list[Any]:
    """What a label wants of each GPU of this type. Raises MigError where it does not fit."""
    device_id = f"0x{machine.pci_device_ids[0].upper()}10DE"
    gpus = [
        _smi.Gpu(i, "", "", device_id, "", machine.product, False, False)
        for i in range(machine.gpu_count)
    ]
    label = _hardware.find(labels, name, gpus, gpu_types())
    return list(_target.resolve(label, gpus).values())
