"""Whether a set of MIG slices can exist on a GPU, and which one that can is nearest."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

from kiln import facts
from kiln.base.errors import KilnError
from kiln.base.paths import RUNTIME
from kiln.base.runtime_import import load
from kiln.mig.profiles import NoMigError, chosen, gpu_types

_errors = load("gpu_mig.errors")
_profile = load("gpu_mig.profile")
_placement = load("gpu_mig.placement")
_smi = load("gpu_mig.smi")
_target = load("gpu_mig.target")
_config = load("gpu_mig.config")

SHIPPED_MAP = RUNTIME / "etc" / "kiln" / "mig-config.yaml"


def check(
    gpu: str | None = None, instance_type: str | None = None, *, devices: str
) -> dict[str, Any]:
    """Whether one GPU can hold `devices` (`2g.20gb=2,4g.40gb=1`).

    `valid`, `reason` and `nearest` (both None when valid), `placement` (profile and start of every
    GPU instance), `warnings` for what rests on unconfirmed facts. A GPU without MIG is an answer
    too (`valid` false); raises KilnError for what cannot be read: names, counts, unknown GPUs.
    """
    answer: dict[str, Any] = {
        "valid": False, "reason": None, "nearest": None, "gpu": gpu,
        "instance_type": instance_type, "placement": [], "warnings": [],
    }  # fmt: skip
    wanted = instances(devices)
    try:
        _, kind = chosen(gpu, instance_type)
    except NoMigError as error:
        return {**answer, "reason": error.message}
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


def instances(devices: str) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """`1g.5gb=7` as GPU instances (profile, compute slices). Raises KilnError on bad spelling."""
    try:
        shapes: tuple[tuple[str, tuple[int, ...]], ...] = _target.shape_all(
            _profile.parse_devices(devices)
        )
    except _errors.MigError as e:
        raise KilnError(e.message, hint=e.hint) from e
    return shapes


def warnings(kind: Any, names: Iterable[str]) -> list[str]:
    """What the answer for these profiles rests on without a public listing behind it."""
    doubtful = {n for n in names if {"starts", "memory"} & set(kind.profiles[n].unsure)}
    return [
        f"the placements of {n} on {kind.name} are unconfirmed; try them on the GPU"
        for n in sorted(doubtful)
    ]


def check_label(
    label: str, instance_types: Iterable[str], labels: dict[str, Any] | None = None
) -> list[str]:
    """Why a label cannot serve as the default of an AMI for these instance types; [] when it can.

    Types whose GPUs have no MIG are passed over (the unit does nothing there), unless none has.
    `labels`: those of `gpu_mig.config.load`, by default the map that ships.
    """
    types = [facts.instance(t) for t in instance_types]
    try:
        known = labels if labels is not None else shipped_labels()
        chosen_label = _config.choose(known, label)
    except _errors.MigError as e:
        return [f"{e.message}: {e.hint}"]
    capable = [t for t in types if t.mig]
    if not capable:
        return [
            f"MIG label {label!r}: none of {', '.join(t.type for t in types)} has a GPU with MIG"
        ]
    found = (_label_problem(chosen_label, t) for t in capable)
    return [problem for problem in found if problem]


@cache
def shipped_labels() -> dict[str, Any]:
    """The shipped map by label; the AMI's own parser is made to be small, not quick."""
    labels: dict[str, Any] = _config.load(str(SHIPPED_MAP))
    return labels


def _label_problem(label: Any, machine: facts.InstanceType) -> str:
    kind = gpu_types()[machine.gpu]
    where = f"MIG label {label.name!r} on {machine.type} ({kind.name})"
    device_id = f"0x{machine.pci_device_ids[0].upper()}10DE"
    gpus = [
        _smi.Gpu(i, "", "", device_id, "", machine.product, False, False)
        for i in range(machine.gpu_count)
    ]
    try:
        for wanted in _target.resolve(label, gpus).values():
            _target.check(wanted, kind)
    except _errors.MigError as e:
        return f"{where}: {e.message}; {e.hint}"
    return ""
