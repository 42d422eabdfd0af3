"""The gpu-mig command: validate, plan, apply, verify, export, list-profiles."""

from __future__ import annotations

import json
import os
import signal
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from typing import Any, Dict, Tuple

from . import apply as applying
from . import (
    boot,
    checking,
    clients,
    config,
    facts,
    glance,
    hardware,
    paths,
    rebooting,
    report,
    selection,
    settings,
)
from .config import Label
from .errors import REBOOT_NEEDED, MigError, StoppedError, operation_failed
from .facts import GpuType
from .selection import Selection
from .smi import Gpu, Smi
from .target import Wanted, check_partition, describe, from_partition, resolve

# (answer for --json, text for people, exit status)
Answer = Tuple[Dict[str, Any], str, int]


def main(argv: list[str] | None = None) -> int:
    """Runs a command. Exit status: 0 done, 1 operation failed, 2 invalid input, 3 reboot needed."""
    args = _parser().parse_args(argv)
    # In the middle of a change these restore the former layout; nohup's SIGHUP stays ignored.
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
        description="Create the NVIDIA MIG layout that /etc/kiln/mig-config.yaml declares.",
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    commands.required = True

    def command(
        name: str, run: Callable[[Namespace], Answer], about: str, label: bool = True
    ) -> ArgumentParser:
        sub = commands.add_parser(name, help=about, description=about)
        sub.set_defaults(run=run)
        sub.add_argument("--json", action="store_true", help="print the output as JSON")
        sub.add_argument("-f", "--config-file", default="", help="use this configuration file")
        if label:
            sub.add_argument(
                "label", nargs="?", default="", help="use this label instead of the selected one"
            )
        return sub

    command("validate", _validate, "Check the configuration and settings files.", label=False)
    command("plan", _plan, "Show the changes that apply would make.")
    sub = command("apply", _apply, "Apply the selected layout to the GPUs.")
    sub.add_argument("--boot", action="store_true", help="for kiln-mig.service: the run at boot")
    command(
        "verify",
        _verify,
        "Compare the GPUs with the selected layout; exit status 1 when they differ.",
    )
    sub = command("export", _export, "Print the current layout as a configuration.", label=False)
    sub.add_argument("--label", default="current", help="label for the layout")
    sub = command("list-profiles", _profiles, "Show the MIG profiles of the GPUs.", label=False)
    sub.add_argument(
        "--labels", action="store_true", help="show the labels of the configuration instead"
    )
    command("restore-services", _restore, "Start what a killed run has stopped.", label=False)
    return parser


class Context:
    """The state that every command needs: arguments, settings, and the access to the GPUs."""

    def __init__(self, args: Namespace) -> None:
        self.args = args
        self.settings = settings.load()
        if args.config_file:
            self.settings = self.settings._replace(config=args.config_file, config_dir="")
        self.smi = Smi()

    def types(self) -> dict[str, GpuType]:
        return facts.load()

    def labels(self) -> dict[str, Label]:
        path = self.args.config_file or paths.at(self.settings.config)
        return config.load(path, self.settings.config_dir and paths.at(self.settings.config_dir))

    def selected(self) -> Selection:
        return selection.select(self.settings, getattr(self.args, "label", ""))

    def wanted(
        self, chosen: Selection, gpus: Sequence[Gpu], types: dict[str, GpuType]
    ) -> dict[int, Wanted]:
        if chosen.partition:
            return from_partition(chosen.partition, gpus, types)
        return resolve(hardware.find(self.labels(), chosen.label, gpus, types), gpus)


def say(message: str) -> None:
    """Reports progress to the journal or the terminal; the output goes to stdout."""
    print(f"gpu-mig: {message}", file=sys.stderr, flush=True)


def _validate(args: Namespace) -> Answer:
    s = Context(args)
    labels = s.labels()
    problems, warnings = checking.problems(labels, s.types())
    chosen = selection.select(s.settings, ask_imds=False)
    if chosen.label and chosen.label not in hardware.labels_of(s.types().values()):
        config.choose(labels, chosen.label)
    if chosen.partition:
        check_partition(chosen.partition, s.types())
    if problems:
        raise MigError(
            "\n".join(problems), "gpu-mig list-profiles shows the profiles of these GPUs"
        )
    selected = chosen.label or chosen.partition
    answer = {"valid": True, "labels": sorted(labels), "selected": selected, "warnings": warnings}
    text = "{}: {} labels, all valid; selected: {}".format(
        s.settings.config, len(labels), selected or "none"
    )
    return answer, "\n".join([text] + ["warning: " + w for w in warnings]), 0


def _plan(args: Namespace) -> Answer:
    s = Context(args)
    chosen = selection.require(s.selected())
    types = s.types()
    gpus = s.smi.gpus()
    if not any(g.capable for g in gpus):
        return _no_mig(gpus, args)
    plans = applying.checked_plan(s.smi, gpus, s.wanted(chosen, gpus, types), types)
    answer = report.plan_dict(plans, s.smi.journal)
    answer.update(label=chosen.label, source=chosen.source)
    return answer, report.plan_text(plans), 0


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
    reason = boot.no_mig_here(facts.load_without_mig()) if args.boot else ""
    if reason:
        return {"changed": [], "nothing": reason}, reason + "; nothing to do", 0
    aside = boot.stand_aside(s.settings)
    if aside:
        text = (
            f"mig-manager of the GPU operator is in charge ({aside}); nothing to do, unless "
            "MIG_OWNER=kiln"
        )
        return {"changed": [], "nothing": text}, text, 0
    chosen = s.selected()
    if chosen.none:
        if not args.boot:
            selection.require(chosen)
        text = "no MIG layout is selected; the GPUs are left alone"
        return {"changed": [], "nothing": text}, text, 0
    if args.boot and not s.smi.installed():
        text = "nvidia-smi is not installed; nothing to do"
        return {"changed": [], "nothing": text}, text, 0
    say(f"layout {chosen.label or chosen.partition} ({chosen.source})")
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
    types = s.types()
    views = glance.look(s.smi)
    gpus = s.smi.gpus() if views is None else [view.gpu for view in views]
    if not any(g.capable for g in gpus):
        return _no_mig(gpus, args)
    wanted = s.wanted(chosen, gpus, types)
    proven = glance.as_wanted(views, wanted, types) if views else None
    try:
        if proven:
            outcome = applying.nothing_to_do(proven, say)
        else:
            gpus = s.smi.listed(gpus) if views else gpus
            outcome = applying.apply(s.smi, gpus, wanted, types, s.settings, say, args.boot)
    except MigError as e:
        if e.exit_code == REBOOT_NEEDED and args.boot:
            raise rebooting.for_mode(e, s.settings, say) from e
        raise
    rebooting.done()
    if outcome.changed and s.settings.cdi_refresh:
        clients.refresh_cdi(say)
    answer = {
        "label": chosen.label or chosen.partition,
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
    if chosen.none:
        text = "no MIG layout is selected; nothing to verify"
        return {"ok": True, "nothing": text, "gpus": report.state_dict(gpus)}, text, 0
    if not any(g.capable for g in gpus):
        return _no_mig(gpus, args)
    types = s.types()
    answer = report.verify_dict(gpus, s.wanted(chosen, gpus, types))
    answer["label"] = chosen.label or chosen.partition
    lines = [report.state_text(gpus)] + ["wrong: " + p for p in answer["problems"]]
    lines += [f"GPU {i} is not addressed by this layout" for i in answer["not_addressed"]]
    lines += ["as configured ({})".format(answer["label"])] if answer["ok"] else []
    return answer, "\n".join(lines), 0 if answer["ok"] else 1


def _export(args: Namespace) -> Answer:
    s = Context(args)
    gpus = s.smi.gpus()
    if not any(g.capable for g in gpus):
        raise operation_failed(f"no GPU of this machine supports MIG: {describe(gpus)}")
    data = report.export_dict(gpus, args.label)
    text = report.export_yaml(data)
    try:
        config.loads(text)
    except MigError as e:
        raise MigError(
            f"{args.label!r} cannot be a label: the file could not be read back",
            "use letters, digits, '-' and '.'",
        ) from e
    return data, text.rstrip(), 0


def _profiles(args: Namespace) -> Answer:
    s = Context(args)
    if args.labels:
        labels = s.labels()
        return {"labels": sorted(labels)}, "\n".join(sorted(labels)), 0
    types = s.types()
    kinds: dict[str, GpuType | None] = {}
    gpus = s.smi.gpus(instances=False)
    for g in gpus:
        if g.capable and g.device_id not in kinds:
            kind = facts.by_device_id(types, g.device_id)
            kinds[g.device_id] = kind or (s.smi.gpu_type(g) if g.current else None)
    known = [kind for kind in kinds.values() if kind is not None]
    unknown = [device_id for device_id, kind in kinds.items() if kind is None]
    if unknown:
        raise operation_failed(
            f"GPU {unknown[0]} is not known, and its driver lists its profiles only in MIG mode",
            "turn MIG mode on first: gpu-mig apply all-enabled",
        )
    if not kinds:
        return _no_mig(gpus, args)
    tables = [report.profiles_dict(kind) for kind in known]
    return {"gpus": tables}, "\n".join(report.profiles_text(kind) for kind in known), 0


def _restore(args: Namespace) -> Answer:
    clients.start_again(say)
    return {"ok": True}, "", 0
