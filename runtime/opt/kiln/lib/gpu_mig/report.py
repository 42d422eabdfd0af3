"""What gpu-mig prints: text for people, the same facts as a dict for --json."""

from __future__ import annotations

from typing import List

from .apply import differences, mode_words, shape_words
from .facts import GpuType
from .plan import GpuPlan, commands, same_work
from .profile import by_size
from .target import devices_of, shape_order


def shapes(instances):
    return tuple(sorted((i.shape for i in instances), key=shape_order))


def state_dict(gpus):
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


def plan_dict(plans: List[GpuPlan], journal):
    """What would change, and the commands for it."""
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
        "commands": [["nvidia-smi"] + c for c in commands(plans)],
        "queries": len(journal),
    }


def needs(plans: List[GpuPlan]) -> str:
    """`nothing`, `no reset`, `reset` (a reboot where the VM forbids it), or `unknown`."""
    if all(p.nothing for p in plans):
        return "nothing"
    resets = {p.reset for p in plans if p.mode is not None}
    if True in resets:
        return "reset"
    return "unknown" if None in resets else "no reset"


def plan_text(plans: List[GpuPlan]) -> str:
    """The difference, one block for GPUs that change alike."""
    if all(p.nothing for p in plans):
        return "Nothing to do: {} GPU(s) are as configured.".format(len(plans))
    lines = []
    for changes, gpus in same_work(plans, _changes):
        lines += ["GPU {}:".format(gpus)] + ["  " + c for c in changes]
    words = {
        "no reset": "No GPU reset and no reboot is needed.",
        "reset": "The new mode needs a GPU reset, or one reboot where the VM forbids that.",
        "unknown": "Whether the new mode needs a reset is not known for this GPU.",
    }
    lines += ["", words[needs(plans)], "Commands:"]
    return "\n".join(lines + ["  nvidia-smi " + " ".join(c) for c in commands(plans)])


def _changes(p: GpuPlan):
    """One GPU's part of the plan as lines: `=` stays, `-` goes, `+` is made."""
    if p.nothing:
        return ("as configured",)
    lines = [] if p.mode is None else ["MIG mode -> {}".format("on" if p.mode else "off")]
    for sign, items in (("=", p.keep), ("-", p.destroy), ("+", p.create)):
        for i in items:
            pieces = "" if len(i.compute) == 1 else " in {}".format(len(i.compute))
            where = "" if i.start is None else " at {}".format(i.start)
            lines.append("{} {}{}{}".format(sign, i.profile, pieces, where))
    return tuple(lines)


def verify_dict(gpus, wanted):
    """Whether every addressed GPU is as wanted, and what is not."""
    wrong = differences(gpus, wanted)
    left_out = [g.index for g in gpus if g.capable and g.index not in wanted]
    return {"ok": not wrong, "problems": wrong, "not_addressed": left_out, "gpus": state_dict(gpus)}


def state_text(gpus) -> str:
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


def export_dict(gpus, label):
    """The state as a v1 configuration with one label; equal GPUs share an entry."""
    groups = {}
    for g in gpus:
        if g.capable:
            key = (bool(g.current), shapes(i for i in g.instances if i.compute))
            groups.setdefault(key, []).append(g.index)
    entries = []
    for (mode, wanted), indices in groups.items():
        entry = {"devices": "all" if len(groups) == 1 else indices, "mig-enabled": mode}
        if mode:
            entry["mig-devices"] = devices_of(wanted)
        entries.append(entry)
    return {"version": "v1", "mig-configs": {label: entries}}


def export_yaml(data) -> str:
    """`export_dict` as YAML that miniyaml and mig-parted read."""
    lines = ["version: v1", "mig-configs:"]
    for label, entries in data["mig-configs"].items():
        lines.append('  "{}":'.format(label))
        for entry in entries:
            devices = entry["devices"]
            lines.append("  - devices: {}".format(devices if devices == "all" else list(devices)))
            lines.append("    mig-enabled: {}".format(str(entry["mig-enabled"]).lower()))
            if entry["mig-enabled"]:
                counts = ['"{}": {}'.format(k, n) for k, n in entry["mig-devices"].items()]
                lines.append("    mig-devices: {" + ", ".join(counts) + "}")
    return "\n".join(lines) + "\n"


def profiles_dict(kind: GpuType):
    """The table of `nvidia-smi mig -lgip`, from what we know."""
    return {
        "gpu": kind.name,
        "profiles": [kind.profiles[n]._asdict() for n in sorted(kind.profiles, key=by_size)],
    }


def profiles_text(kind: GpuType) -> str:
    """The same as a table: name, id, how many, memory, SMs, allowed starts."""
    rows = ["{}".format(kind.name), "  profile           id  max  memory GiB   SM  starts:slices"]
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
