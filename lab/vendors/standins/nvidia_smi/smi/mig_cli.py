"""`nvidia-smi mig`: lists, creates and destroys instances.

Texts and exit codes are those of the real tool. The exit code is NVML's: 2 invalid argument, 4 no
permission, 6 not found, 19 in use, 23 insufficient resources.
"""

from __future__ import annotations

from . import box, mig
from .gpus import Gpu, Lab

TYPE_CHECKING = False  # typing itself costs start-up time
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Result = tuple[str, int]  # text on stdout, exit code

INVALID, PERMISSION, NOT_FOUND, IN_USE, RESOURCES = 2, 4, 6, 19, 23
CODES = {"Invalid Argument": INVALID, "Insufficient Permissions": PERMISSION,
         "In use by another client": IN_USE, "Insufficient Resources": RESOURCES}  # fmt: skip


def list_profiles(lab: Lab, gpus: list[Gpu], _o: dict[str, Any]) -> Result:
    """-lgip"""
    able = [gpu for gpu in gpus if gpu.mig is not None]
    if not able:
        return "No MIG-supported devices found.\n", NOT_FOUND
    wide = 2 if lab.branch >= 565 else 0
    rule = "+" + "-" * (77 + wide) + "+"
    gap = " " * wide
    lines = [
        rule,
        f"| GPU instance profiles:                                                      {gap}|",
        f"| GPU   Name             {gap}ID    Instances   Memory     P2P    SM    DEC   ENC  |",
        f"|                        {gap}      Free/Total   GiB              CE    JPEG  OFA  |",
        "|" + "=" * (77 + wide) + "|",
    ]
    for gpu in able:
        for p in mig.profiles(gpu, lab.branch):
            name = f"MIG {p['profile']}"
            lines += [
                f"|{gpu.index:>4}  {name:<{16 + wide}}{p['id']:>4}"
                f"     {mig.free_count(gpu, lab.branch, p)}/{p['max']}        {p['gib'] or 0:<6.2f}"
                f"     No     {p['sm'] or 0:<3}    {p['dec']}     {p['enc']}   |",
                f"|{'':>{61 + wide}}{p['ce']:<6}{p['jpeg']:<6}{p['ofa']}   |",
                rule,
            ]
    return "\n".join(lines) + "\n", 0


def list_placements(lab: Lab, gpus: list[Gpu], _o: dict[str, Any]) -> Result:
    """-lgipp"""
    able = [gpu for gpu in gpus if gpu.mig is not None]
    if not able:
        return "No MIG-supported devices found.\n", NOT_FOUND
    lines = []
    for gpu in able:
        for p in mig.profiles(gpu, lab.branch):
            word = "Placements:" if len(p["starts"]) > 1 else "Placement :"
            starts = ",".join(str(s) for s in p["starts"])
            lines.append(
                f"GPU {gpu.index:>2} Profile ID {p['id']:>2} {word} {{{starts}}}:{p['memory']}"
            )
    return "\n".join(lines) + "\n", 0


def list_instances(lab: Lab, gpus: list[Gpu], options: dict[str, Any]) -> Result:
    """-lgi"""
    rows = _chosen(lab, gpus, options)
    if not rows:
        return "No GPU instances found: Not Found\n", NOT_FOUND
    wide = 2 if lab.branch >= 565 else 0
    gap = " " * wide
    rule = "+" + "-" * (55 + wide) + "+"
    lines = [
        rule,
        f"| GPU instances:                                        {gap}|",
        f"| GPU   Name             {gap}Profile  Instance   Placement  |",
        f"|                        {gap}  ID       ID       Start:Size |",
        "|" + "=" * (55 + wide) + "|",
    ]
    for gpu, i in rows:
        size = mig.find_profile(gpu, lab.branch, i["profile"])
        place = f"{i['start']}:{size['memory'] if size else 0}"
        lines += [
            f"|{gpu.index:>4}  {'MIG ' + i['profile']:<{18 + wide}}{i['profile_id']:>4}"
            f"       {i['id']:>2}          {place}     |",
            rule,
        ]
    return "\n".join(lines) + "\n", 0


def list_compute(lab: Lab, gpus: list[Gpu], options: dict[str, Any]) -> Result:
    """-lci"""
    chosen = _chosen(lab, gpus, options)
    if not chosen:
        return "No GPU instances found: Not Found\n", NOT_FOUND
    rows = [
        (g, i, ci) for g, i in chosen for ci in i["cis"] if options["ci"] in (None, str(ci["id"]))
    ]
    if not rows:
        return "No compute instances found: Not Found\n", NOT_FOUND
    rule = "+" + "-" * 68 + "+"
    lines = [
        rule,
        "| Compute instances:                                                 |",
        "| GPU     GPU       Name             Profile   Instance   Placement  |",
        "|       Instance                       ID        ID       Start:Size |",
        "|         ID                                                         |",
        "|" + "=" * 68 + "|",
    ]
    for gpu, i, ci in rows:
        place = f"{ci['start']}:{ci['slices']}"
        lines += [
            f"|{gpu.index:>4}{i['id']:>7}       {'MIG ' + ci['name']:<17}{ci['profile_id']:>5}"
            f"{ci['id']:>10}{place:>13}     |",
            rule,
        ]
    return "\n".join(lines) + "\n", 0


def list_compute_profiles(lab: Lab, gpus: list[Gpu], options: dict[str, Any]) -> Result:
    """-lcip"""
    chosen = _chosen(lab, gpus, options)
    if not chosen:
        return "No GPU instances found: Not Found\n", NOT_FOUND
    rule = "+" + "-" * 86 + "+"
    lines = [
        rule,
        "| Compute instance profiles:                                                           |",
        "| GPU     GPU       Name             Profile  Instances   Exclusive       Shared       |",
        "|       Instance                       ID     Free/Total     SM       DEC   ENC   OFA  |",
        "|         ID                                                          CE    JPEG       |",
        "|" + "=" * 86 + "|",
    ]
    for gpu, instance in chosen:
        for p in mig.compute_profiles(gpu, lab.branch, instance):
            star, whole = "*" if p["default"] else " ", p["whole"]
            lines += [
                f"|{gpu.index:>4}{instance['id']:>7}       {'MIG ' + p['name']:<17}{p['id']:>5}{star}"
                f"{p['free']:>6}/{p['max']:<3}{p['sm']:>11}{whole['dec']:>9}{whole['enc']:>6}{whole['ofa']:>6}   |",
                f"|{'':>70}{whole['ce']:>1}{whole['jpeg']:>6}         |",
                rule,
            ]
    return "\n".join(lines) + "\n", 0


def _chosen(lab: Lab, gpus: list[Gpu], options: dict[str, Any]) -> list[tuple[Gpu, dict[str, Any]]]:
    wanted = options["gi"].split(",") if options["gi"] else None
    return [
        (gpu, i) for gpu in gpus if gpu.state["mig"] for i in mig.instances(gpu, lab.branch)
        if wanted is None or str(i["id"]) in wanted
    ]  # fmt: skip


def create_instances(lab: Lab, gpus: list[Gpu], options: dict[str, Any]) -> Result:
    """-cgi a,b:START,... [-C]: on each chosen GPU in MIG mode, in this order, until one fails."""
    out = ""
    for gpu in gpus:
        if not gpu.state["mig"]:
            continue
        for wanted in options["cgi"].split(","):
            name, colon, start = wanted.partition(":")
            profile = mig.find_profile(gpu, lab.branch, name)
            problem, made = "", None
            if not lab.root:
                problem = "Insufficient Permissions"
            elif profile is None or (colon and start not in map(str, profile["starts"])):
                problem = "Invalid Argument"
            elif any(client["compute"] for client in box.clients(gpu.index)):
                problem = "In use by another client"
            else:
                made = mig.create(gpu, lab.branch, profile, int(start) if colon else None)
                problem = "" if made else "Insufficient Resources"
            if problem or made is None or profile is None:
                return out + (
                    f"Unable to create a GPU instance on GPU {gpu.index:>2} using profile {wanted}: {problem}\n"
                    f"Failed to create GPU instances: {problem}\n"
                ), CODES[problem]  # fmt: skip
            out += (
                f"Successfully created GPU instance ID {made['id']:>2} on GPU {gpu.index:>2} "
                f"using profile MIG {made['profile']} (ID {made['profile_id']:>2})\n"
            )
            if options["C"]:
                text, code = _compute(lab, gpu, made, None)
                out += text
                if code:
                    return out, code
    return out, 0


def _compute(lab: Lab, gpu: Gpu, instance: dict[str, Any], wanted: str | None) -> Result:
    made = "Insufficient Permissions" if not lab.root else mig.create_compute(
        gpu, lab.branch, instance, wanted
    )  # fmt: skip
    if isinstance(made, str):
        using = f" using profile {wanted}" if wanted else ""
        return (
            f"Unable to create a compute instance on GPU {gpu.index:>2} GPU instance ID "
            f"{instance['id']:>2}{using}: {made}\nFailed to create compute instances: {made}\n"
        ), CODES[made]
    return (
        f"Successfully created compute instance ID {made['id']:>2} on GPU {gpu.index:>2} "
        f"GPU instance ID {instance['id']:>2} using profile MIG {made['name']} (ID {made['profile_id']:>2})\n"
    ), 0


def create_compute_instances(lab: Lab, gpus: list[Gpu], options: dict[str, Any]) -> Result:
    """-cci [a,b,...] [-gi ...]: without a name, the default profile on each GPU instance."""
    chosen = _chosen(lab, gpus, options)
    if not chosen:
        return "No GPU instances found: Not Found\n", NOT_FOUND
    out = ""
    for gpu, instance in chosen:
        for wanted in options["cci"].split(",") if options["cci"] else [None]:
            text, code = _compute(lab, gpu, instance, wanted)
            out += text
            if code:
                return out, code
    return out, 0


def destroy_instances(lab: Lab, gpus: list[Gpu], options: dict[str, Any]) -> Result:
    """-dgi [-gi ...]: an instance that still has a compute instance is in use."""
    chosen = _chosen(lab, gpus, options)
    if not chosen:
        return "No GPU instances found: Not Found\n", NOT_FOUND
    out = ""
    for gpu, instance in chosen:
        problem = _may_destroy(lab, gpu) or ("In use by another client" if instance["cis"] else "")
        if problem:
            return out + (
                f"Unable to destroy GPU instance ID {instance['id']:>2} from GPU {gpu.index:>2}: {problem}\n"
                f"Failed to destroy GPU instances: {problem}\n"
            ), CODES[problem]  # fmt: skip
        gpu.state["instances"].remove(instance)
        out += (
            f"Successfully destroyed GPU instance ID {instance['id']:>2} from GPU {gpu.index:>2}\n"
        )
    return out, 0


def destroy_compute(lab: Lab, gpus: list[Gpu], options: dict[str, Any]) -> Result:
    """-dci [-ci ...] [-gi ...]"""
    chosen = _chosen(lab, gpus, options)
    if not chosen:
        return "No GPU instances found: Not Found\n", NOT_FOUND
    wanted = options["ci"].split(",") if options["ci"] else None
    rows = [
        (g, i, c)
        for g, i in chosen
        for c in list(i["cis"])
        if wanted is None or str(c["id"]) in wanted
    ]
    if not rows:
        return "No compute instances found: Not Found\n", NOT_FOUND
    out = ""
    for gpu, instance, ci in rows:
        where = f"compute instance ID {ci['id']:>2} from GPU {gpu.index:>2} GPU instance ID {instance['id']:>2}"
        problem = _may_destroy(lab, gpu)
        if problem:
            return out + (
                f"Unable to destroy {where}: {problem}\n"
                f"Failed to destroy compute instances: {problem}\n"
            ), CODES[problem]  # fmt: skip
        instance["cis"].remove(ci)
        out += f"Successfully destroyed {where}\n"
    return out, 0


def _may_destroy(lab: Lab, gpu: Gpu) -> str:
    if not lab.root:
        return "Insufficient Permissions"
    busy = any(client["compute"] for client in box.clients(gpu.index))
    return "In use by another client" if busy else ""


ACTIONS: dict[str, Callable[[Lab, list[Gpu], dict[str, Any]], Result]] = {
    "lgip": list_profiles, "lgipp": list_placements, "lgi": list_instances, "lci": list_compute,
    "lcip": list_compute_profiles, "cgi": create_instances, "cci": create_compute_instances,
    "dgi": destroy_instances, "dci": destroy_compute,
}  # fmt: skip
CHANGES = {"cgi", "cci", "dgi", "dci"}
LONG = {
    "list-gpu-instance-profiles": "lgip", "list-gpu-instance-possible-placements": "lgipp",
    "list-gpu-instances": "lgi", "list-compute-instances": "lci",
    "list-compute-instance-profiles": "lcip", "create-gpu-instance": "cgi",
    "create-compute-instance": "cci", "destroy-gpu-instance": "dgi",
    "destroy-compute-instance": "dci", "default-compute-instance": "C", "id": "i",
    "gpu-instance-id": "gi", "compute-instance-id": "ci", "help": "h",
}  # fmt: skip


def run(lab: Lab, action: str, gpus: list[Gpu], options: dict[str, Any]) -> Result:
    """Run an `nvidia-smi mig` action; returns text and exit code."""
    if action not in ("lgip", "lgipp") and not any(gpu.state["mig"] for gpu in gpus):
        return "No MIG-enabled devices found.\n", 0
    return ACTIONS[action](lab, gpus, options)
