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
from . import boot, clients, config, facts, paths, settings, target
from .config import Entry, Label
from .errors import REBOOT_NEEDED, MigError, StoppedError, operation_failed
from .facts import GpuType
from .plan import differences, mode_words, shape_words
from .settings import Selection, Settings
from .smi import Gpu, Smi

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


def say(message: str) -> None:
    """Reports progress to the journal or the terminal; the output goes to stdout."""
    print(f"gpu-mig: {message}", file=sys.stderr, flush=True)


def _labels() -> dict[str, Label]:
    return config.load(paths.at(paths.CONFIG), paths.at(paths.CONFIG_DIR))


def _validate(args: Namespace) -> Answer:
    labels, types = _labels(), facts.load()
    selected = settings.select(settings.load(), ask_imds=False).label
    problems, warnings = _problems(labels, types)
    if selected and selected not in target.labels_of(types.values()):
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
            aim = target.Wanted(0, entry.enabled, target.shape_all(entry.mig_devices))
        except MigError as e:
            errors.append(f"{entry.where}: {e.message}")
            continue
        named = [t for t in types.values() if _names(entry, t)]
        refusals = [r for r in (target.misfit(aim, t) for t in named or types.values()) if r]
        if named:
            errors += [f"{entry.where}: {reason}" for reason in refusals]
        elif len(refusals) == len(types):
            wish = target.counted([profile for profile, _ in aim.shapes])
            warnings.append(f"{entry.where}: no known GPU can hold {wish}")
    return errors, warnings


def _names(entry: Entry, kind: GpuType) -> bool:
    return bool(entry.filters) and any(entry.addresses(i) for i in kind.pci_device_ids)


def _nothing(reason: str) -> Answer:
    return {"ok": True, "changed": [], "nothing": reason}, reason + "; nothing to do", 0


def _no_mig(gpus: Sequence[Gpu], args: Namespace, at_boot: bool = False) -> Answer:
    """No GPU supports MIG: an error for a label on the command line, not for a default."""
    message = f"no GPU of this machine supports MIG: {target.describe(gpus)}"
    if args.label and not at_boot:
        raise operation_failed(message)
    return _nothing(message)


def _apply(args: Namespace) -> Answer:
    if not args.boot:
        answer, text, status = _apply_selected(args, settings.load())
        boot.record("ok", text, False)  # a repair by hand opens the gate
        return answer, text, status
    block_join = True
    boot.record("started", "", block_join)
    try:
        boot.note_reboot()
        current = settings.load()
        block_join = current.block_join
        answer, text, status = _apply_selected(args, current)
    except (MigError, OSError) as error:
        e = error if isinstance(error, MigError) else operation_failed(str(error))
        boot.record("reboot" if e.exit_code == REBOOT_NEEDED else "failed", e.message, block_join)
        if e.exit_code == REBOOT_NEEDED:  # the machine goes down; the unit has not failed
            return {"reboot": True, "reason": e.message}, str(e), 0
        raise
    boot.record("ok" if answer.get("label") else "nothing", text, block_join)
    return answer, text, status


def _apply_selected(args: Namespace, current: Settings) -> Answer:
    reason = boot.reason_no_mig_support(facts.load_without_mig()) if args.boot else ""
    aside = "" if reason else boot.reason_to_defer_to_operator(current)
    if aside:
        reason = f"mig-manager of the GPU operator is in charge ({aside}) unless MIG_OWNER=kiln"
    if reason:
        return _nothing(reason)
    chosen = settings.select(current, args.label)
    if not chosen.label:
        if not args.boot:
            hint = "name a label, or set MIG_CONFIG=<label> in /etc/default/gpu-mig"
            raise MigError("no MIG layout is selected", hint)
        return _nothing("no MIG layout is selected")
    smi = Smi()
    if args.boot and not smi.installed():
        return _nothing("nvidia-smi is not installed")
    say(f"layout {chosen.label} ({chosen.source})")
    if chosen.note:
        say(chosen.note)
    if os.geteuid() != 0 and not os.environ.get("GPU_MIG_ROOT"):
        raise MigError("only root can change MIG", "run it with sudo")
    with applying.lock():
        return _apply_locked(args, current, chosen, smi)


def _apply_locked(args: Namespace, current: Settings, chosen: Selection, smi: Smi) -> Answer:
    gpus, types = smi.gpus(), facts.load()
    if not any(g.capable for g in gpus):
        return _no_mig(gpus, args, args.boot)
    wanted = target.resolve(target.find(_labels(), chosen.label, gpus, types), gpus)
    try:
        changed, after = applying.apply(smi, gpus, wanted, types, current, say, args.boot)
    except MigError as e:
        if e.exit_code == REBOOT_NEEDED and args.boot:
            raise boot.reboot_once(e, current, say) from e
        raise
    boot.forget_reboot()
    if changed and current.cdi_refresh:
        clients.refresh_cdi(say)
    answer = {
        "label": chosen.label,
        "source": chosen.source,
        "changed": changed,
        "gpus": state_dict(after),
        "commands": smi.journal,
    }
    done = f"{len(changed)} GPU(s) changed" if changed else "nothing to do"
    return answer, f"{state_text(after)}\n{done}", 0


def _verify(args: Namespace) -> Answer:
    chosen = settings.select(settings.load(), args.label)
    gpus = Smi().gpus()
    if not chosen.label:
        text = "no MIG layout is selected; nothing to verify"
        return {"ok": True, "nothing": text, "gpus": state_dict(gpus)}, text, 0
    if not any(g.capable for g in gpus):
        return _no_mig(gpus, args)
    wanted = target.resolve(target.find(_labels(), chosen.label, gpus, facts.load()), gpus)
    problems = differences(gpus, wanted)
    left_out = [g.index for g in gpus if g.capable and g.index not in wanted]
    answer = {"ok": not problems, "problems": problems, "not_addressed": left_out}
    answer.update(label=chosen.label, gpus=state_dict(gpus))
    lines = [state_text(gpus)] + ["wrong: " + p for p in problems]
    lines += [f"GPU {i} is not addressed by this layout" for i in left_out]
    lines += [] if problems else [f"as configured ({chosen.label})"]
    return answer, "\n".join(lines), 1 if problems else 0


def _restore(args: Namespace) -> Answer:
    clients.start_again(say)
    return {"ok": True}, "", 0


def state_dict(gpus: Sequence[Gpu]) -> list[dict[str, Any]]:
    """Every GPU: mode and instances, for --json."""
    return [
        {
            "gpu": g.index,
            "name": g.name,
            "device_id": g.device_id,
            "mig_capable": g.capable,
            "mode": {"current": g.current, "pending": g.pending},
            "instances": [
                {"id": i.id, "profile": i.profile, "start": i.start, "compute_slices": i.compute}
                for i in g.instances
            ],
        }
        for g in gpus
    ]


def state_text(gpus: Sequence[Gpu]) -> str:
    """One line per GPU, for people."""
    lines = []
    for g in gpus:
        shapes = sorted((i.shape for i in g.instances), key=target.shape_order)
        slices = "  " + shape_words(shapes) if g.current else ""
        lines.append(f"GPU {g.index}  {g.name}  MIG {mode_words(g)}{slices}")
    return "\n".join(lines)
