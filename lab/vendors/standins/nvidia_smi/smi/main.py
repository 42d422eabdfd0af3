"""The command line: options, chosen GPUs, injected faults, and the journal of calls."""

from __future__ import annotations

import json
import os
import sys
import time

from . import box, gpus
from .gpus import Gpu, Lab, Locked

TYPE_CHECKING = False  # typing itself costs start-up time
if TYPE_CHECKING:
    from typing import Any

    Result = tuple[str, int]  # text on stdout, exit code

STAND_IN = "AMI Kiln lab stand-in"
NO_DRIVER = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that "
    "the latest NVIDIA driver is installed and running.\n\n"
)
# Option → does it take a value: True, False, "optional".
OPTIONS: dict[str, Any] = {
    **dict.fromkeys(("L", "q", "x", "r", "rac"), False),
    **dict.fromkeys(("i", "pm", "mig", "ac", "format"), True),
    **dict.fromkeys(("query-gpu", "query-remapped-rows", "query-compute-apps"), True),
}
LONG = {
    "list-gpus": "L", "query": "q", "xml-format": "x", "id": "i", "persistence-mode": "pm",
    "multi-instance-gpu": "mig", "gpu-reset": "r", "applications-clocks": "ac",
    "reset-applications-clocks": "rac",
}  # fmt: skip
SETTINGS = ("mig", "r", "pm", "ac", "rac")
SIGKILL = 9  # importing signal takes as long as a command
INVALID = "Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.\n"
HELP = " Please run 'nvidia-smi -h' for help.\n\n"


class Stop(Exception):
    """Ends the command with this text and exit code."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.text, self.code = text, code


def parse(
    words: list[str], takes: dict[str, Any], long: dict[str, str], subcommand: bool = False
) -> dict[str, str]:
    """Short name → value of each option, "" without a value. Raises Stop on an unknown option."""
    options: dict[str, str] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.lstrip("-").partition("=")
        name = long.get(name, name) if word.startswith("-") else ""
        if name not in takes:
            raise not_there(word, subcommand)
        if takes[name] and not equals:
            if rest and not rest[0].startswith("-"):
                value = rest.pop(0)
            elif takes[name] is True and subcommand:
                raise Stop(f'Option "{word}" is missing its value.\n', 2)
            elif takes[name] is True:
                raise Stop(f"ERROR: Option {word} is missing its value.{HELP}", 255)
        options[name] = value
    return options


def not_there(word: str, subcommand: bool = False) -> Stop:
    """The refusal of an option; stderr has it for those that only the real tool knows."""
    sys.stderr.write(f"nvidia-smi ({STAND_IN}): {word} is not there in the lab\n")
    if subcommand:
        return Stop(f'Option "{word}" is not recognized.\n', 2)
    return Stop(f"ERROR: Option {word} is not recognized. Please run 'nvidia-smi -h'.\n\n", 255)


def pick(lab: Lab, wanted: str | None) -> list[Gpu]:
    """The GPUs of an -i list (index, UUID or bus id), or all.

    An unknown GPU is passed over beside a known one. Raises Stop with code 6 when none is known.
    """
    chosen = lab.gpus if wanted is None else []
    for name in wanted.split(",") if wanted is not None else ():
        bus = name.upper()[-10:] if ":" in name else "-"
        for gpu in lab.gpus:
            if name in (str(gpu.index), gpu.uuid) or gpu.bus_id.endswith(bus):
                chosen.append(gpu)
                break
    if not chosen:
        raise Stop("No devices were found\n", 6)
    return chosen


def command(words: list[str]) -> tuple[Result, bool]:
    """Run the command: (text, exit code), and whether it is a command that changes state."""
    driver = box.driver()
    rules = box.faults()
    if driver is None or not driver["loaded"] or rules.get("driver_loaded") is False:
        return (NO_DRIVER, 9), False
    with Locked():
        lab = gpus.load(driver)
        if not lab.gpus and not rules.get("hide"):
            return (NO_DRIVER, 9), False  # no NVIDIA device: the kernel module does not load
        if words and words[0] in ("mig", "topo", "nvlink"):
            result, changes = subcommand(lab, *words)
        else:
            result, changes = main_command(lab, words)
        if changes and lab.root:
            lab.save()
        return result, changes


def subcommand(lab: Lab, kind: str, *words: str) -> tuple[Result, bool]:
    """mig, topo and nvlink."""
    if kind == "mig":
        from . import mig_cli

        options = parse(list(words), mig_cli.OPTIONS, mig_cli.LONG, True)
        actions = [name for name in options if name in mig_cli.ACTIONS]
        if len(actions) != 1:
            raise Stop(INVALID, 2)
        full: dict[str, Any] = {"gi": None, "ci": None, **options, "C": "C" in options}
        result = mig_cli.run(lab, actions[0], pick(lab, options.get("i")), full)
        return result, actions[0] in mig_cli.CHANGES
    from . import topo

    takes = {"m": False} if kind == "topo" else {"s": False, "i": True}
    options = parse(list(words), takes, {"matrix": "m", "status": "s", "id": "i"}, True)
    if not {"m", "s"} & set(options):
        raise Stop(INVALID, 2)
    chosen = pick(lab, options.get("i"))
    return (topo.matrix(lab) if kind == "topo" else topo.nvlink(chosen), 0), False


def main_command(lab: Lab, words: list[str]) -> tuple[Result, bool]:
    """Everything without a subcommand."""
    others = [word for word in words if word not in ("-L", "--list-gpus")]
    if len(others) < len(words) and others:
        raise Stop(f"ERROR: Option {others[0]} is not valid for this command.{HELP}", 2)
    options = parse(words, OPTIONS, LONG)
    chosen = pick(lab, options.get("i"))
    changing = [name for name in options if name in SETTINGS]
    if changing:
        from . import settings

        return settings.ACTIONS[changing[0]](lab, chosen, options[changing[0]]), True
    return show(lab, chosen, options), False


def show(lab: Lab, chosen: list[Gpu], options: dict[str, str]) -> Result:
    """The commands that only read."""
    queries = [name for name in options if name.startswith("query-")]
    if len(queries) > 1:
        raise Stop("Only one --query-* switch can be used at a time.\n", 2)
    if queries:
        return csv(lab, chosen, queries[0], options)
    if "format" in options:
        raise not_there(f"--format={options['format']}")
    if "q" in options:
        from . import attributes

        return (attributes.xml if "x" in options else attributes.text)(lab, chosen), 0
    if "x" in options:
        advice = " Specify -q/--query and -x/--xml-format to run an XML query.  Please"
        raise Stop(INVALID.replace(" Please", advice) + "\n", 2)
    table = "" if "L" in options else f"{STAND_IN} for nvidia-smi. It draws no table.\n"
    return table + listing(lab, chosen), 0


def listing(lab: Lab, chosen: list[Gpu]) -> str:
    """-L"""
    from . import mig

    out = ""
    for gpu in chosen:
        out += f"GPU {gpu.index}: {gpu.model['product']} (UUID: {gpu.uuid})\n"
        for d in mig.devices(gpu, lab.branch) if gpu.state["mig"] else []:
            # A +me instance is listed without its attribute (H100, driver 580).
            out += f"  MIG {d['name']:<11} Device {d['index']:>2}: (UUID: {d['uuid']})\n"
    return out


def csv(lab: Lab, chosen: list[Gpu], name: str, options: dict[str, str]) -> Result:
    """--query-...=FIELDS --format=csv[,noheader][,nounits]"""
    from . import query

    if "format" not in options and lab.branch < 580:  # seen: 580 needs no --format
        raise Stop('"--format=" switch is missing. Default to "csv" or run \'nvidia-smi -h\' for help.\n',
                   2)  # fmt: skip
    form = {part.strip() for part in options.get("format", "csv").split(",")}
    if not form <= {"csv", "noheader", "nounits"}:
        raise Stop("Format modifier is not recognized.\n", 2)
    fields = [field.strip() for field in options[name].split(",") if options[name]]
    try:
        if name == "query-gpu":
            return query.query_gpu(lab, chosen, fields, form), 0
        return query.query_other(lab, chosen, name[6:], fields, form), 0
    except query.BadField as bad:
        return f'Field "{bad}" is not a valid field to query.\n\n', 2


def apply_faults(words: list[str]) -> dict[str, Any] | None:
    """The first injected rule that applies to this call; counts matching calls."""
    injected = box.faults()
    rules = injected.get("rules", [])
    if not rules:
        return None
    counted = box.read_json(box.RUN + "/faults.json") or {}
    if counted.get("stamp") != injected["stamp"]:
        counted = {"stamp": injected["stamp"], "seen": [0] * len(rules)}
    fired = None
    for number, rule in enumerate(rules):
        if not all(token in words for token in rule.get("match", ())):
            continue
        counted["seen"][number] += 1
        nth, times = rule.get("nth", 1), rule.get("times", 1)
        if fired is None and nth <= counted["seen"][number] < nth + (times or 10**9):
            fired = rule
    try:
        box.write_json(box.RUN + "/faults.json", counted)
    except OSError:
        pass  # not root: the count is not updated
    return fired


def journal(words: list[str], code: int, changes: bool, began: float) -> None:
    """Log a line per call, so that tests can count the calls of a program."""
    line = {"time": round(began, 3), "pid": os.getpid(), "ppid": os.getppid(), "argv": words,
            "exit": code, "changes": changes, "ms": round((time.time() - began) * 1000, 1)}  # fmt: skip
    try:
        os.makedirs(os.path.dirname(box.JOURNAL), exist_ok=True)
        with open(box.JOURNAL, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")  # one write, at the end of the file
            os.fchmod(file.fileno(), 0o666)  # other users' calls count too
    except OSError:
        pass  # no file yet, or not its owner: the file stays as it is


def once(words: list[str]) -> Result:
    """One run of the command, faults and journal included."""
    began = time.time()
    box.look_again()
    rule = apply_faults(words)
    changes = False
    if rule and not rule.get("after"):
        sys.stderr.write(rule.get("stderr", ""))
        result: Result = (rule.get("stdout", ""), int(rule.get("exit", 255)))
    else:
        try:
            result, changes = command(words)
        except Stop as stop:
            result = (stop.text, stop.code)
        if rule:
            result = (result[0], int(rule.get("exit", result[1])))
    journal(words, result[1], changes, began)
    if rule and rule.get("kill_parent"):
        os.kill(os.getppid(), SIGKILL)
    return result


def main(words: list[str]) -> int:
    """Run nvidia-smi with these arguments; returns the exit code."""
    text, code = once(words)
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return code
