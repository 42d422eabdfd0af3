"""The gpu-mig command: validate, apply, verify."""

from __future__ import annotations

import json
import os
import signal
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from typing import Any, Dict, Tuple

from . import apply as applying
from . import boot, clients, config, facts, hardware, paths, report, selection, settings
from .config import Entry, Label
from .errors import REBOOT_NEEDED, MigError, StoppedError, operation_failed
from .facts import GpuType
from .plan import differences
from .selection import Selection
from .smi import Gpu, Smi
from .target import Wanted, counted, describe, misfit, resolve, shape_all

# (answer for --json, text for people, exit status)
Answer = Tuple[Dict[str, Any], str, int]


def main(argv: list[str] | None = None) -> int:
    """Runs a command. Exit status: 0 done, 1 operation failed, 2 invalid input, 3 reboot needed."""
    args = _parser().parse_args(argv)
    # In the middle of a change these end it with a message; nohup's SIGHUP stays ignored.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _terminated)
    try:
        answer, text, status = args.run(args)
    except (MigError, OSError) as e:
        error = e if isinstance(e, MigError) else operation_failed(str(e))
        answer, text, status = {"error": error.message, "hint": error.hint}, "", error.exit_code
        print(f"gpu-mig: {error}", file=sys.stderr)
    output = json.dumps(answer, indent=2, sort_keys=True) if args.json else text
    return (_print(output) if output else 0) or status


def _print(output: str) -> int:
    """Returns 1 when writing fails, except for a closed pipe: `| head` has read enough."""
    try:
        print(output)
        sys.stdout.flush()
    except OSError as e:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # else Python tries again at exit
        if not isinstance(e, BrokenPipeError):
            print(f"gpu-mig: cannot write the output: {e.strerror}", file=sys.stderr)
            return 1
    return 0


def _terminated(signum: int, frame: object) -> None:
    raise StoppedError


def _parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="gpu-mig",
        description="Create the NVIDIA MIG layout that /etc/kiln/mig-config.json declares.",
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    commands.required = True

    def command(
        name: str, run: Callable[[Namespace], Answer], about: str, label: bool = True
    ) -> ArgumentParser:
        sub = commands.add_parser(name, help=about, description=about)
        sub.set_defaults(run=run)
        sub.add_argument("--json", action="store_true", help="print the output as JSON")
        if label:
            sub.add_argument(
                "label", nargs="?", default="", help="use this label instead of the selected one"
            )
        return sub

    command("validate", _validate, "Check the configuration and settings files.", label=False)
    sub = command("apply", _apply, "Apply the selected layout to the GPUs.")
    sub.add_argument("--boot", action="store_true", help="for kiln-mig.service: the run at boot")
    command(
        "verify",
        _verify,
        "Compare the GPUs with the selected layout; exit status 1 when they differ.",
    )
    command("restore-services", _restore, "Start what a killed run has stopped.", label=False)
    return parser


class Context:
    """The state that every command needs: arguments, settings, and the access to the GPUs."""

    def __init__(self, args: Namespace) -> None:
        self.args = args
        self.settings = settings.load()
        self.smi = Smi()
        self.types = facts.load()

    def labels(self) -> dict[str, Label]:
        return config.load(paths.at(paths.CONFIG), paths.at(paths.CONFIG_DIR))

    def selected(self) -> Selection:
        return selection.select(self.settings, getattr(self.args, "label", ""))

    def wanted(self, label: str, gpus: Sequence[Gpu]) -> dict[int, Wanted]:
        return resolve(hardware.find(self.labels(), label, gpus, self.types), gpus)


def say(message: str) -> None:
    """Reports progress to the journal or the terminal; the output goes to stdout."""
    print(f"gpu-mig: {message}", file=sys.stderr, flush=True)


def _validate(args: Namespace) -> Answer:
    s = Context(args)
    labels = s.labels()
    problems, warnings = _problems(labels, s.types)
    selected = selection.select(s.settings, ask_imds=False).label
    if selected and selected not in hardware.labels_of(s.types.values()):
        config.choose(labels, selected)
    if problems:
        hint = "nvidia-smi mig -lgip shows the profiles of these GPUs"
        raise MigError("\n".join(problems), hint)
    answer = {"valid": True, "labels": sorted(labels), "selected": selected, "warnings": warnings}
    text = "{}: {} labels, all valid; selected: {}".format(
        paths.CONFIG, len(labels), selected or "none"
    )
    return answer, "\n".join([text] + ["warning: " + w for w in warnings]), 0


def _problems(labels: dict[str, Label], types: dict[str, GpuType]) -> tuple[list[str], list[str]]:
    """(errors, warnings), one sentence each.

    An entry with a device filter must fit each GPU that the filter names. An entry without a filter
    should fit a known GPU; if it does not, that is a warning: a newer GPU or firmware may hold it.
    """
    errors: list[str] = []
    warnings: list[str] = []
    for entry in (entry for label in labels.values() for entry in label.entries):
        try:
            aim = Wanted(0, entry.enabled, shape_all(entry.mig_devices))
        except MigError as e:
            errors.append(f"{entry.where}: {e.message}")
            continue
        named = [t for t in types.values() if _names(entry, t)]
        refusals = [r for r in (misfit(aim, t) for t in named or types.values()) if r]
        if named:
            errors += [f"{entry.where}: {reason}" for reason in refusals]
        elif len(refusals) == len(types):
            wish = counted([profile for profile, _ in aim.shapes])
            warnings.append(f"{entry.where}: no known GPU can hold {wish}")
    return errors, warnings


def _names(entry: Entry, kind: GpuType) -> bool:
    return bool(entry.filters) and any(entry.addresses(i) for i in kind.pci_device_ids)


def _no_mig(gpus: Sequence[Gpu], args: Namespace) -> Answer:
    """No GPU supports MIG: an error for a label on the command line, not for a default."""
    message = f"no GPU of this machine supports MIG: {describe(gpus)}"
    if getattr(args, "label", "") and not getattr(args, "boot", False):
        raise operation_failed(message)
    return {"ok": True, "change": False, "nothing": message}, message + "; nothing to do", 0


def _apply(args: Namespace) -> Answer:
    if not args.boot:
        answer, text, status = _apply_selected(args, Context(args))
        boot.record("ok", text, False)  # a repair by hand opens the gate
        return answer, text, status
    block_join = True
    boot.record("started", "", block_join)
    try:
        boot.note_reboot()
        context = Context(args)
        block_join = context.settings.block_join
        answer, text, status = _apply_selected(args, context)
    except (MigError, OSError) as error:
        e = error if isinstance(error, MigError) else operation_failed(str(error))
        boot.record("reboot" if e.exit_code == REBOOT_NEEDED else "failed", e.message, block_join)
        if e.exit_code == REBOOT_NEEDED:  # the machine goes down; the unit has not failed
            return {"reboot": True, "reason": e.message}, str(e), 0
        raise
    boot.record("ok" if answer.get("label") else "nothing", text, block_join)
    return answer, text, status


def _apply_selected(args: Namespace, s: Context) -> Answer:
    reason = boot.reason_no_mig_support(facts.load_without_mig()) if args.boot else ""
    if reason:
        return {"changed": [], "nothing": reason}, reason + "; nothing to do", 0
    aside = boot.reason_to_defer_to_operator(s.settings)
    if aside:
        text = (
            f"mig-manager of the GPU operator is in charge ({aside}); nothing to do, unless "
            "MIG_OWNER=kiln"
        )
        return {"changed": [], "nothing": text}, text, 0
    chosen = s.selected()
    if not chosen.label:
        if not args.boot:
            hint = "name a label, or set MIG_CONFIG=<label> in /etc/default/gpu-mig"
            raise MigError("no MIG layout is selected", hint)
        text = "no MIG layout is selected; the GPUs are left alone"
        return {"changed": [], "nothing": text}, text, 0
    if args.boot and not s.smi.installed():
        text = "nvidia-smi is not installed; nothing to do"
        return {"changed": [], "nothing": text}, text, 0
    say(f"layout {chosen.label} ({chosen.source})")
    if chosen.note:
        say(chosen.note)
    if os.geteuid() != 0 and not os.environ.get("GPU_MIG_ROOT"):
        raise MigError("only root can change MIG", "run it with sudo")
    lock = applying.lock()
    try:
        return _apply_locked(args, s, chosen)
    finally:
        lock.close()


def _apply_locked(args: Namespace, s: Context, chosen: Selection) -> Answer:
    gpus = s.smi.gpus()
    if not any(g.capable for g in gpus):
        return _no_mig(gpus, args)
    wanted = s.wanted(chosen.label, gpus)
    try:
        outcome = applying.apply(s.smi, gpus, wanted, s.types, s.settings, say, args.boot)
    except MigError as e:
        if e.exit_code == REBOOT_NEEDED and args.boot:
            raise boot.reboot_once(e, s.settings, say) from e
        raise
    boot.forget_reboot()
    if outcome.changed and s.settings.cdi_refresh:
        clients.refresh_cdi(say)
    answer = {
        "label": chosen.label,
        "source": chosen.source,
        "changed": list(outcome.changed),
        "gpus": report.state_dict(outcome.gpus),
        "commands": s.smi.journal,
    }
    done = f"{len(outcome.changed)} GPU(s) changed" if outcome.changed else "nothing to do"
    return answer, f"{report.state_text(outcome.gpus)}\n{done}", 0


def _verify(args: Namespace) -> Answer:
    s = Context(args)
    chosen = s.selected()
    gpus = s.smi.gpus()
    if not chosen.label:
        text = "no MIG layout is selected; nothing to verify"
        return {"ok": True, "nothing": text, "gpus": report.state_dict(gpus)}, text, 0
    if not any(g.capable for g in gpus):
        return _no_mig(gpus, args)
    wanted = s.wanted(chosen.label, gpus)
    problems = differences(gpus, wanted)
    left_out = [g.index for g in gpus if g.capable and g.index not in wanted]
    answer = {"ok": not problems, "problems": problems, "not_addressed": left_out}
    lines = [report.state_text(gpus)] + ["wrong: " + p for p in problems]
    lines += [f"GPU {i} is not addressed by this layout" for i in left_out]
    lines += [] if problems else [f"as configured ({chosen.label})"]
    answer.update(label=chosen.label, gpus=report.state_dict(gpus))
    return answer, "\n".join(lines), 1 if problems else 0


def _restore(args: Namespace) -> Answer:
    clients.start_again(say)
    return {"ok": True}, "", 0
