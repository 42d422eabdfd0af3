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
NO_INSTANCES = ("No GPU instances found: Not Found\n", NOT_FOUND)


def _table(head: list[str], rows: list[list[str]]) -> Result:
    """A table: the lines of its head, then each row of one or more lines, with rules between."""
    rule = "+" + "-" * (len(head[0]) - 2) + "+"
    lines = [rule, *head, rule.replace("-", "=").replace("+", "|")]
    for row in rows:
        lines += [*row, rule]
    return "\n".join(lines) + "\n", 0


def _gap(lab: Lab) -> str:
    """Return the spaces by which the tables are wider since 565."""
    return "  " if lab.branch >= 565 else ""


def list_profiles(lab: Lab, gpus: list[Gpu], _o: dict[str, Any]) -> Result:
    """-lgip"""
    gap = _gap(lab)
    head = [
        f"| GPU instance profiles:                                                      {gap}|",
        f"| GPU   Name             {gap}ID    Instances   Memory     P2P    SM    DEC   ENC  |",
        f"|                        {gap}      Free/Total   GiB              CE    JPEG  OFA  |",
    ]
    rows = [
        [
            f"|{gpu.index:>4}  {'MIG ' + p['profile']:<{16 + len(gap)}}{p['id']:>4}"
            f"     {mig.free_count(gpu, lab.branch, p)}/{p['max']}        {p['gib'] or 0:<6.2f}"
            f"     No     {p['sm'] or 0:<3}    {p['dec']}     {p['enc']}   |",
            f"|{'':>{61 + len(gap)}}{p['ce']:<6}{p['jpeg']:<6}{p['ofa']}   |",
        ]
        for gpu in gpus
        for p in mig.profiles(gpu, lab.branch)
    ]
    return _table(head, rows)


def list_placements(lab: Lab, gpus: list[Gpu], _o: dict[str, Any]) -> Result:
    """-lgipp"""
    out = ""
    for gpu in gpus:
        for p in mig.profiles(gpu, lab.branch):
            word = "Placements:" if len(p["starts"]) > 1 else "Placement :"
            starts = ",".join(str(s) for s in p["starts"])
            out += f"GPU {gpu.index:>2} Profile ID {p['id']:>2} {word} {{{starts}}}:{p['memory']}\n"
    return out, 0


def list_instances(lab: Lab, gpus: list[Gpu], options: dict[str, Any]) -> Result:
    """-lgi"""
    chosen = _chosen(lab, gpus, options)
    if not chosen:
        return NO_INSTANCES
    gap = _gap(lab)
    head = [
        f"| GPU instances:                                        {gap}|",
        f"| GPU   Name             {gap}Profile  Instance   Placement  |",
        f"|                        {gap}  ID       ID       Start:Size |",
    ]
    rows = []
    for gpu, i in chosen:
        size = mig.find_profile(gpu, lab.branch, i["profile"])
        place = f"{i['start']}:{size['memory'] if size else 0}"
        rows.append([
            f"|{gpu.index:>4}  {'MIG ' + i['profile']:<{18 + len(gap)}}{i['profile_id']:>4}"
            f"       {i['id']:>2}          {place}     |"
        ])  # fmt: skip
    return _table(head, rows)


def list_compute(lab: Lab, gpus: list[Gpu], options: dict[str, Any]) -> Result:
    """-lci"""
    chosen = _chosen_compute(lab, gpus, options)
    if isinstance(chosen, tuple):
        return chosen
    head = [
        "| Compute instances:                                                 |",
        "| GPU     GPU       Name             Profile   Instance   Placement  |",
        "|       Instance                       ID        ID       Start:Size |",
        "|         ID                                                         |",
    ]
    rows = []
    for gpu, i, ci in chosen:
        place = f"{ci['start']}:{ci['slices']}"
        rows.append([
            f"|{gpu.index:>4}{i['id']:>7}       {'MIG ' + ci['name']:<17}{ci['profile_id']:>5}"
            f"{ci['id']:>10}{place:>13}     |"
        ])  # fmt: skip
    return _table(head, rows)


def _chosen(lab: Lab, gpus: list[Gpu], options: dict[str, Any]) -> list[tuple[Gpu, dict[str, Any]]]:
    wanted = options["gi"].split(",") if options["gi"] else None
    return [
        (gpu, i) for gpu in gpus if gpu.state["mig"] for i in mig.instances(gpu, lab.branch)
        if wanted is None or str(i["id"]) in wanted
    ]  # fmt: skip


def _chosen_compute(
    lab: Lab, gpus: list[Gpu], options: dict[str, Any]
) -> list[tuple[Gpu, dict[str, Any], dict[str, Any]]] | Result:
    chosen = _chosen(lab, gpus, options)
    if not chosen:
        return NO_INSTANCES
    wanted = options["ci"].split(",") if options["ci"] else None
    rows = [
        (g, i, ci) for g, i in chosen for ci in i["cis"]
        if wanted is None or str(ci["id"]) in wanted
    ]  # fmt: skip
    return rows or ("No compute instances found: Not Found\n", NOT_FOUND)


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
        return NO_INSTANCES
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
        return NO_INSTANCES
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
    rows = _chosen_compute(lab, gpus, options)
    if isinstance(rows, tuple):
        return rows
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
    "cgi": create_instances, "cci": create_compute_instances, "dgi": destroy_instances,
    "dci": destroy_compute,
}  # fmt: skip
CHANGES = {"cgi", "cci", "dgi", "dci"}
# Option → does it take a value: True, False, "optional".
OPTIONS: dict[str, Any] = {
    **dict.fromkeys([*ACTIONS, "C"], False),
    **dict.fromkeys(("cgi", "i", "gi", "ci"), True),
    "cci": "optional",
}
LONG = {
    "list-gpu-instance-profiles": "lgip", "list-gpu-instance-possible-placements": "lgipp",
    "list-gpu-instances": "lgi", "list-compute-instances": "lci",
    "create-gpu-instance": "cgi", "create-compute-instance": "cci", "destroy-gpu-instance": "dgi",
    "destroy-compute-instance": "dci", "default-compute-instance": "C", "id": "i",
    "gpu-instance-id": "gi", "compute-instance-id": "ci",
}  # fmt: skip


def run(lab: Lab, action: str, gpus: list[Gpu], options: dict[str, Any]) -> Result:
    """Run an `nvidia-smi mig` action; returns text and exit code."""
    if action in ("lgip", "lgipp"):
        gpus = [gpu for gpu in gpus if gpu.mig is not None]
        if not gpus:
            return "No MIG-supported devices found.\n", NOT_FOUND
    elif not any(gpu.state["mig"] for gpu in gpus):
        return "No MIG-enabled devices found.\n", 0
    return ACTIONS[action](lab, gpus, options)
