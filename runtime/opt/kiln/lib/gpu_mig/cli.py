"""The gpu-mig command: validate, plan, apply, verify, export, list-profiles, gate."""

from __future__ import annotations

import json
import os
import signal
import sys

from . import apply as applying
from . import boot, checking, clients, config, facts, glance, rebooting, report, selection, settings
from .errors import REBOOT_NEEDED, MigError, StoppedError, world_failed
from .smi import Smi
from .target import check_partition, describe, from_partition, resolve

AT_BOOT = ["apply", "--boot"]


def main(argv=None):
    """Runs one command; returns the exit status: 0 done, 1 failed, 2 bad input, 3 reboot needed."""
    argv = sys.argv[1:] if argv is None else argv
    args = _AtBoot if argv == AT_BOOT else _parser().parse_args(argv)
    signal.signal(signal.SIGTERM, _terminated)
    try:
        answer, text, status = args.run(args)
    except (MigError, OSError) as e:
        error = e if isinstance(e, MigError) else world_failed(str(e))
        answer, text, status = {"error": error.message, "hint": error.hint}, "", error.exit_code
        print("gpu-mig: {}".format(error), file=sys.stderr)
    said = json.dumps(answer, indent=2, sort_keys=True) if args.json else text
    return _print(said) or status if said else status


def _print(said):
    """1 when it cannot be written; a reader that has gone (`| head`) has read enough."""
    try:
        print(said)
        sys.stdout.flush()
    except OSError as e:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # or it is tried again at exit
        if not isinstance(e, BrokenPipeError):
            print("gpu-mig: cannot write the answer: {}".format(e.strerror), file=sys.stderr)
            return 1
    return 0


def _terminated(signum, frame):
    raise StoppedError()


def _parser():
    import argparse

    parser = argparse.ArgumentParser(
        prog="gpu-mig",
        description="Lay NVIDIA MIG slices out as /etc/kiln/mig-config.yaml declares.",
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    commands.required = True

    def command(name, run, about, label=True):
        sub = commands.add_parser(name, help=about, description=about)
        sub.set_defaults(run=run)
        sub.add_argument("--json", action="store_true", help="print the answer as JSON")
        sub.add_argument(
            "-f", "--config-file", default="", help="configuration instead of the installed"
        )
        if label:
            sub.add_argument(
                "label", nargs="?", default="", help="label instead of the selected one"
            )
        return sub

    command("validate", _validate, "Check the configuration and settings files.", label=False)
    command("plan", _plan, "Show what apply would change.")
    sub = command("apply", _apply, "Bring the GPUs to the selected layout.")
    sub.add_argument("--boot", action="store_true", help="the run of aws-gpu-mig.service")
    command(
        "verify", _verify, "Compare the GPUs with the selected layout; status 1 when they differ."
    )
    sub = command("export", _export, "Print the present layout as a configuration.", label=False)
    sub.add_argument("--label", default="current", help="name for the layout")
    sub = command("list-profiles", _profiles, "Show what the GPUs can be cut into.", label=False)
    sub.add_argument(
        "--labels", action="store_true", help="show the configuration's labels instead"
    )
    command("gate", _gate, "Fail when this node must not join its cluster.", label=False)
    return parser


class Context:
    """What every command starts from: the settings, and who talks to the GPUs."""

    def __init__(self, args):
        self.args = args
        self.settings = settings.load()
        if args.config_file:
            self.settings = self.settings._replace(config=args.config_file, config_dir="")
        self.smi = Smi()

    def types(self):
        return facts.load()

    def labels(self):
        from .paths import at

        own = self.args.config_file or at(self.settings.config)
        return config.load(own, self.settings.config_dir and at(self.settings.config_dir))

    def selected(self):
        return selection.select(self.settings, getattr(self.args, "label", ""))

    def wanted(self, chosen, gpus, types):
        if chosen.partition:
            return from_partition(chosen.partition, gpus, types)
        return resolve(config.choose(self.labels(), chosen.label), gpus)


def say(message):
    """Progress, to the journal or the terminal; answers go to stdout."""
    print("gpu-mig: {}".format(message), file=sys.stderr, flush=True)


def _validate(args):
    s = Context(args)
    labels = s.labels()
    problems, warnings = checking.problems(labels, s.types())
    chosen = selection.select(s.settings, ask_imds=False)
    if chosen.label:
        config.choose(labels, chosen.label)
    if chosen.partition:
        check_partition(chosen.partition, s.types())
    if problems:
        raise MigError("\n".join(problems), "gpu-mig list-profiles shows what these GPUs can do.")
    selected = chosen.label or chosen.partition
    answer = {"valid": True, "labels": sorted(labels), "selected": selected, "warnings": warnings}
    text = "{}: {} labels, all well formed; selected: {}".format(
        s.settings.config, len(labels), selected or "none"
    )
    return answer, "\n".join([text] + ["warning: " + w for w in warnings]), 0


def _plan(args):
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


def _no_mig(gpus, args):
    """Nothing to slice. A label named by hand is refused; a default of the image is not."""
    message = "no GPU of this machine can do MIG: {}".format(describe(gpus))
    if getattr(args, "label", "") and not getattr(args, "boot", False):
        raise world_failed(message)
    return {"ok": True, "change": False, "nothing": message}, message + "; nothing to do", 0


def _apply(args):
    if not args.boot:
        answer, text, status = _apply_selected(args, Context(args))
        boot.record("ok", text, False)  # a repair by hand opens the gate
        return answer, text, status
    block_join = settings.blocks_join()
    boot.record("started", "", block_join)
    try:
        answer, text, status = _apply_selected(args, Context(args))
    except MigError as e:
        boot.record("reboot" if e.exit_code == REBOOT_NEEDED else "failed", e.message, block_join)
        if e.exit_code == REBOOT_NEEDED:  # on its way down: not a failed unit
            return {"reboot": True, "reason": e.message}, str(e), 0
        raise
    boot.record("ok" if answer.get("label") else "nothing", text, block_join)
    return answer, text, status


def _apply_selected(args, s):
    why_not = boot.no_mig_here(facts.load_without_mig()) if args.boot else ""
    if why_not:
        return {"changed": [], "nothing": why_not}, why_not + "; nothing to do", 0
    aside = boot.stand_aside(s.settings)
    if aside:
        text = "the GPU operator's mig-manager is in charge ({}); nothing to do, unless ".format(
            aside
        )
        text += "MIG_OWNER=kiln"
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
    say("layout {} ({})".format(chosen.label or chosen.partition, chosen.source))
    if chosen.note:
        say(chosen.note)
    if os.geteuid() != 0 and not os.environ.get("GPU_MIG_ROOT"):
        raise MigError("only root can change MIG", "run it with sudo.")
    lock = applying.lock()
    try:
        return _apply_locked(args, s, chosen)
    finally:
        lock.close()


def _apply_locked(args, s, chosen):
    types = s.types()
    seen = glance.look(s.smi)
    gpus = s.smi.gpus() if seen is None else [one.gpu for one in seen]
    if not any(g.capable for g in gpus):
        return _no_mig(gpus, args)
    wanted = s.wanted(chosen, gpus, types)
    proven = seen and glance.as_wanted(seen, wanted, types)
    goal = json.dumps([chosen.label, chosen.partition])
    try:
        if proven:
            outcome = applying.nothing_to_do(proven, say)
        else:
            gpus = s.smi.listed(gpus) if seen else gpus
            outcome = applying.apply(s.smi, gpus, wanted, types, s.settings, say)
    except MigError as e:
        if e.exit_code == REBOOT_NEEDED and args.boot:
            raise rebooting.for_mode(e, goal, s.settings, say) from e
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
    done = "{} GPU(s) changed".format(len(outcome.changed)) if outcome.changed else "nothing to do"
    return answer, "{}\n{}".format(report.state_text(outcome.gpus), done), 0


def _verify(args):
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
    lines += ["GPU {} is not addressed by this layout".format(i) for i in answer["not_addressed"]]
    lines += ["as configured ({})".format(answer["label"])] if answer["ok"] else []
    return answer, "\n".join(lines), 0 if answer["ok"] else 1


def _export(args):
    s = Context(args)
    gpus = s.smi.gpus()
    if not any(g.capable for g in gpus):
        raise world_failed("no GPU of this machine can do MIG: {}".format(describe(gpus)))
    data = report.export_dict(gpus, args.label)
    return data, report.export_yaml(data).rstrip(), 0


def _profiles(args):
    s = Context(args)
    if args.labels:
        labels = s.labels()
        return {"labels": sorted(labels)}, "\n".join(sorted(labels)), 0
    types = s.types()
    kinds = {}
    gpus = s.smi.gpus(instances=False)
    for g in gpus:
        if g.capable and g.device_id not in kinds:
            kind = facts.by_device_id(types, g.device_id)
            kinds[g.device_id] = kind or (s.smi.gpu_type(g) if g.current else None)
    unknown = [d for d, kind in kinds.items() if kind is None]
    if unknown:
        raise world_failed(
            "GPU {} is not known here and lists its profiles only in MIG mode".format(unknown[0]),
            "turn it on first: gpu-mig apply all-enabled.",
        )
    if not kinds:
        return _no_mig(gpus, args)
    found = [report.profiles_dict(k) for k in kinds.values()]
    return {"gpus": found}, "\n".join(report.profiles_text(k) for k in kinds.values()), 0


def _gate(args):
    boot.gate()
    return {"ok": True}, "", 0


class _AtBoot:
    """What the parser makes of AT_BOOT: argparse alone takes 10 ms of every boot."""

    command, label, config_file = "apply", "", ""
    boot, json = True, False
    run = staticmethod(_apply)
