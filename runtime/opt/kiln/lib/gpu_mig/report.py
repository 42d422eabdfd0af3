"""The output of gpu-mig: text for people, and the same facts as a dict for --json."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from .apply import differences, mode_words, shape_words
from .facts import GpuType
from .plan import GpuPlan, commands, same_work
from .profile import by_size
from .smi import Gpu, Instance
from .target import Shape, Wanted, devices_of, shape_order


def shapes(instances: Iterable[Instance]) -> tuple[Shape, ...]:
    return tuple(sorted((i.shape for i in instances), key=shape_order))


def state_dict(gpus: Sequence[Gpu]) -> list[dict[str, Any]]:
    """Every GPU: mode and instances."""
    return [
        {
            "gpu": g.index,
            "name": g.name,
            "device_id": g.device_id,
            "mig_capable": g.capable,
            "mode": {"current": g.current, "pending": g.pending},
            "instances": [
                {
                    "id": i.id,
                    "profile": i.profile,
                    "start": i.start,
                    "compute_slices": list(i.compute),
                }
                for i in g.instances
            ],
        }
        for g in gpus
    ]


def plan_dict(plans: list[GpuPlan], journal: list[dict[str, Any]]) -> dict[str, Any]:
    """The changes, and the commands for them."""
    return {
        "change": any(not p.nothing for p in plans),
        "needs": needs(plans),
        "gpus": [
            {
                "gpu": p.gpu,
                "mode": p.mode,
                "keep": [i.profile for i in p.keep],
                "destroy": [
                    {"id": i.id, "profile": i.profile, "start": i.start} for i in p.destroy
                ],
                "create": [
                    {"profile": c.profile, "start": c.start, "compute_slices": list(c.compute)}
                    for c in p.create
                ],
            }
            for p in plans
        ],
        "commands": [["nvidia-smi", *c] for c in commands(plans)],
        "queries": len(journal),
    }


def needs(plans: list[GpuPlan]) -> str:
    """`nothing`, `no reset`, `reset` (a reboot where the VM forbids it), or `unknown`."""
    if all(p.nothing for p in plans):
        return "nothing"
    resets = {p.reset for p in plans if p.mode is not None}
    if True in resets:
        return "reset"
    return "unknown" if None in resets else "no reset"


def plan_text(plans: list[GpuPlan]) -> str:
    """The changes, in one block for GPUs that change alike."""
    if all(p.nothing for p in plans):
        return f"Nothing to do: {len(plans)} GPU(s) are as configured."
    lines: list[str] = []
    for changes, gpus in same_work(plans, _changes):
        lines += [f"GPU {gpus}:"] + ["  " + c for c in changes]
    words = {
        "no reset": "No GPU reset and no reboot is needed.",
        "reset": "The new mode needs a GPU reset, or one reboot where the VM forbids that.",
        "unknown": "Whether the new mode needs a reset is not known for this GPU.",
    }
    lines += ["", words[needs(plans)], "Commands:"]
    return "\n".join(lines + ["  nvidia-smi " + " ".join(c) for c in commands(plans)])


def _changes(p: GpuPlan) -> tuple[str, ...]:
    """The changes of a GPU as lines: `=` is kept, `-` is destroyed, `+` is created."""
    if p.nothing:
        return ("as configured",)
    lines = [] if p.mode is None else ["MIG mode -> {}".format("on" if p.mode else "off")]
    for sign, items in (("=", p.keep), ("-", p.destroy), ("+", p.create)):
        for i in items:
            pieces = "" if len(i.compute) == 1 else f" in {len(i.compute)}"
            where = "" if i.start is None else f" at {i.start}"
            lines.append(f"{sign} {i.profile}{pieces}{where}")
    return tuple(lines)


def verify_dict(gpus: Sequence[Gpu], wanted: dict[int, Wanted]) -> dict[str, Any]:
    """Whether every addressed GPU matches the layout, and the differences."""
    problems = differences(gpus, wanted)
    left_out = [g.index for g in gpus if g.capable and g.index not in wanted]
    return {
        "ok": not problems,
        "problems": problems,
        "not_addressed": left_out,
        "gpus": state_dict(gpus),
    }


def state_text(gpus: Sequence[Gpu]) -> str:
    """One line per GPU."""
    return "\n".join(
        "GPU {}  {}  MIG {}{}".format(
            g.index,
            g.name,
            mode_words(g),
            "  " + shape_words(shapes(g.instances)) if g.current else "",
        )
        for g in gpus
    )


def export_dict(gpus: Sequence[Gpu], label: str) -> dict[str, Any]:
    """The state as a v1 configuration with one label; equal GPUs share an entry."""
    groups: dict[tuple[bool, tuple[Shape, ...]], list[int]] = {}
    for g in gpus:
        if g.capable:
            key = (bool(g.current), shapes(i for i in g.instances if i.compute))
            groups.setdefault(key, []).append(g.index)
    entries = []
    for (mode, wanted), indices in groups.items():
        entry: dict[str, Any] = {
            "devices": "all" if len(groups) == 1 else indices,
            "mig-enabled": mode,
        }
        if mode:
            entry["mig-devices"] = devices_of(wanted)
        entries.append(entry)
    return {"version": "v1", "mig-configs": {label: entries}}


def export_yaml(data: dict[str, Any]) -> str:
    """`export_dict` as YAML that miniyaml and mig-parted read."""
    lines = ["version: v1", "mig-configs:"]
    for label, entries in data["mig-configs"].items():
        lines.append(f"  {json.dumps(label, ensure_ascii=False)}:")
        for entry in entries:
            devices = entry["devices"]
            lines.append("  - devices: {}".format(devices if devices == "all" else list(devices)))
            lines.append("    mig-enabled: {}".format(str(entry["mig-enabled"]).lower()))
            if entry["mig-enabled"]:
                counts = [f'"{k}": {n}' for k, n in entry["mig-devices"].items()]
                lines.append("    mig-devices: {" + ", ".join(counts) + "}")
    return "\n".join(lines) + "\n"


def profiles_dict(kind: GpuType) -> dict[str, Any]:
    """The table of `nvidia-smi mig -lgip`, from the known facts."""
    return {
        "gpu": kind.name,
        "profiles": [kind.profiles[n]._asdict() for n in sorted(kind.profiles, key=by_size)],
    }


def profiles_text(kind: GpuType) -> str:
    """The same as a table: name, id, maximum count, memory, SMs, allowed starts."""
    rows = [kind.name, "  profile           id  max  memory GiB   SM  starts:slices"]
    for name in sorted(kind.profiles, key=by_size, reverse=True):
        p = kind.profiles[name]
        rows.append(
            "  {:16} {:>3}  {:>3}  {:>10}  {:>3}  {{{}}}:{}".format(
                name,
                str(p.id or ("?" if p.id is None else 0)),
                p.max,
                "?" if p.gib is None else p.gib,
                "?" if p.sm is None else p.sm,
                ",".join(str(s) for s in p.starts),
                p.memory,
            )
        )
    return "\n".join(rows)
