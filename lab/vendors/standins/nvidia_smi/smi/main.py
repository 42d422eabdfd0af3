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

NO_DRIVER = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that "
    "the latest NVIDIA driver is installed and running.\n\n"
)
# Options without a subcommand: every spelling → (short name, takes a value).
OPTIONS: dict[str, tuple[str, bool]] = {}
for _names, _value in (
    (("h", "help"), False), (("version",), False), (("L", "list-gpus"), False),
    (("q", "query"), False), (("x", "xml-format"), False), (("u", "unit"), False),
    (("i", "id"), True), (("d", "display"), True), (("f", "filename"), True),
    (("l", "loop"), True), (("lms", "loop-ms"), True), (("B", "list-excluded-gpus"), False),
    (("query-gpu",), True), (("query-remapped-rows",), True), (("query-compute-apps",), True),
    (("query-retired-pages",), True), (("query-supported-clocks",), True), (("format",), True),
    (("help-query-gpu",), False), (("help-query-remapped-rows",), False),
    (("help-query-compute-apps",), False), (("pm", "persistence-mode"), True),
    (("mig", "multi-instance-gpu"), True), (("r", "gpu-reset"), False),
    (("ac", "applications-clocks"), True), (("rac", "reset-applications-clocks"), False),
    (("e", "ecc-config"), True),
):  # fmt: skip
    for _name in _names:
        OPTIONS[_name] = (_names[0], _value)
SETTINGS = ("mig", "r", "pm", "ac", "rac", "e")
SIGKILL = 9  # importing signal takes as long as a command
INVALID = "Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.\n"
HELP = " Please run 'nvidia-smi -h' for help.\n\n"
# What these options say when the option they belong to is missing.
NEEDED = {"x": "-x/--xml-format to run an XML query", "u": "-u/--unit to run a unit query",
          "d": "-d/--display to run a filtered query"}  # fmt: skip
# Options that take no other option, only a file to write to.
ALONE = {"L": ("f",), "h": ()}


class Stop(Exception):
    """Ends the command with this text and exit code."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.text, self.code = text, code


def parse(words: list[str]) -> dict[str, str]:
    """Short name → value of each option, "" without a value. Raises Stop on an unknown option."""
    options: dict[str, str] = {}
    at = 0
    while at < len(words):
        word = words[at]
        name, equals, value = word.lstrip("-").partition("=")
        option = OPTIONS.get(name) if word.startswith("-") else None
        alone = next((name for name in ALONE if name in options), None)
        if alone and (option is None or option[0] not in (alone, *ALONE[alone])):
            raise not_valid(word)
        if option is None:
            raise Stop(
                f"ERROR: Option {word} is not recognized. Please run 'nvidia-smi -h'.\n\n", 255
            )
        short, takes = option
        if options and short in ALONE:
            raise not_valid(next(w for w in words if w.startswith("-")))
        if takes and not equals:
            at += 1
            if at >= len(words) or (short not in "l" and words[at].startswith("-")):
                raise Stop(f"ERROR: Option {word} is missing its value.{HELP}", 255)
            value = words[at]
        options[short] = value
        at += 1
    return options


def not_valid(word: str) -> Stop:
    """The refusal of an option beside one that stands alone."""
    return Stop(f"ERROR: Option {word} is not valid for this command.{HELP}", 2)


def pick(lab: Lab, wanted: str | None) -> list[Gpu]:
    """The GPUs of an -i list (index, UUID or bus id), or all.

    An unknown GPU is passed over beside a known one. Raises Stop with code 6 when none is known.
    """
    if not lab.gpus:
        raise Stop("No devices were found\n", 6)
    if wanted is None:
        return lab.gpus
    chosen = []
    for name in wanted.split(","):
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
    if words[:1] and words[0] in ("-h", "--help"):
        if len(words) > 1:
            raise not_valid(words[1])
        from . import usage

        return (usage.main(driver), 0), False
    rules = box.faults()
    if driver is None or not driver["loaded"] or rules.get("driver_loaded") is False:
        return (NO_DRIVER, 9), False
    with Locked():
        lab = gpus.load(driver)
        if not lab.gpus and not rules.get("hide"):
            return (NO_DRIVER, 9), False  # no NVIDIA device: the kernel module does not load
        if words and words[0] in ("mig", "topo", "nvlink") and not words[0].startswith("-"):
            return subcommand(lab, words)
        options = parse(words)
        changing = [name for name in options if name in SETTINGS]
        if changing:
            from . import settings

            chosen = pick(lab, options.get("i"))
            result = settings.ACTIONS[changing[0]](lab, chosen, options[changing[0]])
            if lab.root:
                lab.save()
            return result, True
        return show(lab, options), False


def subcommand(lab: Lab, words: list[str]) -> tuple[Result, bool]:
    """mig, topo and nvlink."""
    kind, rest = words[0], words[1:]
    if kind == "topo":
        from . import topo, usage

        if not rest:
            return (usage.topo(), 0), False
        if {"-i", "--id"} & set(rest):
            raise Stop("The -i command line argument must be used in conjunction with -n or -p.\n\n",
                       255)  # fmt: skip
        if rest[:1] in (["-m"], ["--matrix"]):
            pick(lab, None)
            return (topo.matrix(lab), 0), False
        raise not_recognized(rest[0])
    if kind == "nvlink":
        from . import topo, usage

        if not rest:
            return (usage.nvlink(), 0), False
        options = _short_options(rest, {"s": False, "i": True}, {"status": "s", "id": "i"})
        if "s" not in options:
            raise Stop(INVALID, 2)
        return topo.nvlink(lab, pick(lab, options.get("i"))), False
    from . import mig_cli, usage

    takes = {**dict.fromkeys(mig_cli.ACTIONS, False), "cgi": True, "i": True, "gi": True,
             "ci": True, "C": False, "h": False}  # fmt: skip
    options = _short_options(rest, takes, mig_cli.LONG, optional=("cci",))
    if "h" in options or not rest:
        return (usage.mig(), 0), False
    actions = [name for name in options if name in mig_cli.ACTIONS]
    if len(actions) != 1:
        raise Stop(INVALID, 2)
    full: dict[str, Any] = {"gi": None, "ci": None, "cci": None, **options, "C": "C" in options}
    result = mig_cli.run(lab, actions[0], pick(lab, options.get("i")), full)
    changing = actions[0] in mig_cli.CHANGES
    if changing and lab.root:
        lab.save()
    return result, changing


def not_recognized(word: str) -> Stop:
    """The refusal of an option by mig, topo and nvlink."""
    return Stop(f'Option "{word}" is not recognized.\n', 2)


def _short_options(
    words: list[str], takes: dict[str, bool], long: dict[str, str], optional: tuple[str, ...] = ()
) -> dict[str, str]:
    options: dict[str, str] = {}
    at = 0
    while at < len(words):
        name, equals, value = words[at].lstrip("-").partition("=")
        name = long.get(name, name) if words[at].startswith("-") else ""
        if name not in takes:
            raise not_recognized(words[at])
        follows = at + 1 < len(words) and not words[at + 1].startswith("-")
        if not equals and (takes[name] or (name in optional and follows)):
            if not follows:
                raise Stop(f'Option "{words[at]}" is missing its value.\n', 2)
            at += 1
            value = words[at]
        options[name] = value
        at += 1
    return options


def show(lab: Lab, options: dict[str, str]) -> Result:
    """The commands that only read."""
    if "h" in options or any(name.startswith("help-query") for name in options):
        from . import usage

        return usage.fields(lab, next((n for n in options if n.startswith("help-")), "")), 0
    if "version" in options:
        from . import usage

        return usage.version(lab.driver), 0
    if "B" in options:
        return "No excluded devices found.\n", 0
    chosen = pick(lab, options.get("i"))
    queries = [name for name in options if name.startswith("query-")]
    if len(queries) > 1:
        raise Stop("Only one --query-* switch can be used at a time.\n", 2)
    if queries:
        return csv(lab, chosen, queries[0], options)
    if "format" in options:
        word = f"--format={options['format']}"
        raise Stop(f"ERROR: Option {word} is not recognized. Please run 'nvidia-smi -h'.\n\n", 255)
    if "L" in options:
        return listing(lab, chosen), 0
    for name, does in NEEDED.items():
        if name in options and "q" not in options:
            advice = f" Specify -q/--query and {does}.  Please"
            raise Stop(INVALID.replace(" Please", advice) + "\n", 2)
    if "q" in options:
        return report(lab, chosen, options), 0
    from . import usage

    return f"{usage.NAME} It draws no table.\n{listing(lab, chosen)}", 0


def report(lab: Lab, chosen: list[Gpu], options: dict[str, str]) -> str:
    """-q, with -d or -x"""
    from . import attributes

    if "x" in options and "d" in options:
        raise Stop("Invalid combination of input arguments: --display/-d flags can not be combined "
                   "with -x/--xml-format flags.\n", 2)  # fmt: skip
    if "x" in options:
        return attributes.xml(lab, chosen)
    kinds = [kind for kind in options.get("d", "").upper().split(",") if kind]
    if not set(kinds) <= set(attributes.display(lab.branch)):
        raise Stop("Failed to parse --display/-d flags\n", 2)
    return attributes.text(lab, chosen, kinds)


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
    seconds = None
    for at, word in enumerate(words):
        name, _, value = word.lstrip("-").partition("=")
        if word.startswith("-") and name in ("l", "loop", "lms", "loop-ms"):
            value = value or (words[at + 1] if at + 1 < len(words) else "")
            unit = 1000.0 if "ms" in name else 1.0
            seconds = float(value) / unit if value.replace(".", "").isdigit() else 5.0
    while True:
        text, code = once(words)
        path = next((w.partition("=")[2] or words[n + 1] for n, w in enumerate([*words[:-1], ""])
                     if w in ("-f", "--filename") or w.startswith("--filename=")), None)  # fmt: skip
        if path:
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
        else:
            try:
                sys.stdout.write(text)
                sys.stdout.flush()
            except BrokenPipeError:
                os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
                return code
        if seconds is None or code:
            return code
        time.sleep(seconds)
