"""Brings every GPU to what is wanted; on failure back to where it was, or to a clean state."""

from __future__ import annotations

import os
import re
from typing import Dict, List, NamedTuple, Optional

from . import clients, glance, modes, paths
from .errors import REBOOT_NEEDED, MigError, StoppedError, world_failed
from .facts import GpuType, by_device_id
from .plan import creations, destroy_commands, plan
from .profile import parse
from .smi import Gpu, failed
from .target import Wanted, check, counted, devices_of, shape_order

PARTED = "nvidia-mig-parted"
_MADE = re.compile(r"created GPU instance ID\s+(\d+)\s+on GPU\s+(\d+)")


class Outcome(NamedTuple):
    """`changed`: GPUs that were changed; `gpus`: the state afterwards."""

    changed: tuple
    gpus: tuple


def known_types(
    gpus: List[Gpu], wanted: Dict[int, Wanted], types, smi
) -> Dict[int, Optional[GpuType]]:
    """The type of every addressed GPU, by index; None for one whose driver must be asked first.

    A driver lists what its GPU can hold only while MIG mode is on. It is asked about a GPU that
    profiles.json does not know, and about profiles that firmware has given another size.
    """
    found = {}
    for gpu in gpus:
        if gpu.index not in wanted:
            continue
        kind = by_device_id(types, gpu.device_id)
        names = [profile for profile, _ in wanted[gpu.index].shapes]
        unknown = [n for n in names if kind is None or n not in kind.profiles]
        if unknown and gpu.current:
            kind = smi.gpu_type(gpu, kind)
        elif unknown and kind and all(_resized(n, kind) for n in unknown):
            kind = None
        found[gpu.index] = kind
    return found


def _resized(name, kind):
    """Whether this is a profile of `kind` but for a few gigabytes: GB200 has 3g.93gb or 3g.95gb."""
    asked = parse(name)
    return any(
        p._replace(gb=asked.gb) == asked and abs(p.gb - asked.gb) * 20 <= asked.gb
        for p in map(parse, kind.profiles)
    )


def checked_plan(smi, gpus, wanted, types):
    """A plan that fits the GPUs. Raises MigError before anything moves when it does not."""
    kinds = known_types(gpus, wanted, types, smi)
    for index, kind in kinds.items():
        check(wanted[index], kind)
    return plan(gpus, wanted, kinds)


def apply(smi, before, wanted, types, settings, say) -> Outcome:
    """Makes it so. Raises MigError saying whether the former state is back.

    Does nothing, and says so by an empty `changed`, when the state matches already.
    """
    plans = checked_plan(smi, before, wanted, types)
    todo = [p for p in plans if not p.nothing]
    if not todo:
        return nothing_to_do(before, say)
    try:
        after = _reach(smi, before, wanted, types, settings, say)
    except MigError as error:
        if error.exit_code == REBOOT_NEEDED:
            raise
        raise _roll_back(smi, before, [p.gpu for p in todo], types, settings, say, error) from error
    finally:
        clients.start_again(say)
    return Outcome(tuple(p.gpu for p in todo), tuple(after))


def nothing_to_do(gpus, say) -> Outcome:
    """All is as wanted. A run killed after its last change may still have left services down."""
    clients.start_again(say)
    return Outcome((), tuple(gpus))


def _reach(smi, before, wanted, types, settings, say):
    kinds = known_types(before, wanted, types, smi)
    plans = plan(before, wanted, kinds)
    for argv in destroy_commands(plans):
        _run(smi, argv, settings, say)
    modes.set_modes(smi, plans, settings.stop_services, say)
    if any(p.mode and p.create and kinds[p.gpu] is None for p in plans):
        # A GPU that only its driver knows: what it can hold is listed only now.
        plans = checked_plan(smi, smi.gpus(), wanted, types)
    if _use_parted(settings):
        # It empties a GPU before it cuts it: where instances stay, the others are made around them.
        _parted(smi, [wanted[p.gpu] for p in plans if p.create and not p.keep])
        plans = [p for p in plans if p.keep]
    _create_all(smi, plans, wanted, types, settings, say)
    after = _now(smi, wanted, types)
    wrong = differences(after, wanted)
    if wrong:
        raise world_failed("the GPUs do not look as asked: " + "; ".join(wrong))
    return after


def _now(smi, wanted, types):
    """Every GPU with its instances: by one query where that proves it all, else by three."""
    seen = glance.look(smi)
    if seen is None:
        return smi.gpus()
    return glance.as_wanted(seen, wanted, types) or smi.listed([one.gpu for one in seen])


def _run(smi, argv, settings, say):
    """A command that destroys: when a listed service holds the instance, stop it and try again."""
    rc, said = smi.run(*argv)
    if rc and "in use" in said.lower() and clients.stop_listed(settings.stop_services, say):
        rc, said = smi.run(*argv)
    if rc:
        error = failed(argv, rc, said)
        error.hint = clients.advice(smi) if "in use" in said.lower() else ""
        raise error


def _create_all(smi, plans, wanted, types, settings, say):
    """Makes what is missing. When the driver refuses: from empty GPUs, where it chooses all places;
    then from empty GPUs with the places we found."""
    for placed in (False, True):
        try:
            return _create_each(smi, plans)
        except StoppedError:
            raise
        except MigError as error:
            say("{}; trying again from empty GPUs".format(error.message))
        now = smi.gpus()
        kinds = known_types(now, wanted, types, smi)
        plans = plan(now, wanted, kinds, anew=True, placed=placed)
        for argv in destroy_commands(plans):
            _run(smi, argv, settings, say)
    return _create_each(smi, plans)


def _create_each(smi, plans):
    for gpus, creation in creations(plans):
        _create(smi, gpus, creation)


def _create(smi, gpus, creation):
    argv = ["mig", "-i", gpus, "-cgi", creation.specs] + (["-C"] if creation.one_step else [])
    said = smi.must(*argv)
    if creation.one_step:
        return
    made = _MADE.search(said)
    if not made:
        raise world_failed(
            "nvidia-smi did not say which GPU instance it made: {!r}".format(said[:200])
        )
    smi.must("mig", "-i", gpus, "-gi", made.group(1), "-cci", creation.compute)


def _use_parted(settings):
    installed = paths.program(PARTED) != ""
    if settings.engine == "mig-parted" and not installed:
        raise world_failed("MIG_ENGINE=mig-parted, but {} is not installed".format(PARTED))
    return installed and settings.engine in ("auto", "mig-parted")


def _parted(smi, wanted):
    """Lets mig-parted make the instances. Modes are right by now, so it never resets.

    Its options can also come from the environment (MIG_PARTED_…): none but ours may.
    """
    entries = [entry_of(w.gpu, w.mode, w.shapes) for w in wanted]
    if not entries:
        return
    path = paths.RUN_DIR + "/parted.json"
    paths.write_json(path, {"version": "v1", "mig-configs": {"kiln": entries}})
    argv = [PARTED, "apply", "--config-file", paths.at(path), "--selected-config", "kiln"]
    env = {k: v for k, v in os.environ.items() if not k.startswith("MIG_PARTED_")}
    rc, said = smi.call(argv + ["--skip-reset"], env)
    if rc:
        raise world_failed("mig-parted failed: " + "; ".join(said.strip().splitlines()[-3:]))


def entry_of(gpu, mode, shapes):
    """One v1 entry that describes one GPU."""
    entry = {"devices": [gpu], "mig-enabled": bool(mode)}
    if mode:
        entry["mig-devices"] = devices_of(shapes)
    return entry


def differences(gpus, wanted: Dict[int, Wanted]) -> List[str]:
    """What is not as wanted, one sentence per GPU: mode, then the multiset of instances."""
    wrong = []
    for gpu in gpus:
        aim = wanted.get(gpu.index)
        if aim is None:
            continue
        if gpu.current != aim.mode or gpu.pending != aim.mode:
            wrong.append(
                "GPU {}: MIG mode is {}, wanted {}".format(
                    gpu.index, mode_words(gpu), "on" if aim.mode else "off"
                )
            )
            continue
        have = sorted((i.shape for i in gpu.instances), key=shape_order)
        if have != list(aim.shapes):
            wrong.append(
                "GPU {}: has {}, wanted {}".format(
                    gpu.index, shape_words(have), shape_words(aim.shapes)
                )
            )
    return wrong


def mode_words(gpu):
    """`on`, `off`, or `off (on after a reset)`."""
    words = {True: "on", False: "off", None: "n/a"}
    later = " ({} after a reset)".format(words[gpu.pending]) if gpu.pending != gpu.current else ""
    return words[gpu.current] + later


def shape_words(shapes):
    """`1g.5gb=2,3g.20gb=1`; an instance without a compute instance is named as such."""
    found = devices_of(shapes)
    parts = ["{}={}".format(k, n) for k, n in sorted(found.items(), reverse=True)]
    bare = [profile for profile, compute in shapes if not compute]
    parts += [counted(bare) + " without compute instance"] if bare else []
    return ",".join(parts) or "no instances"


def former(gpus, indices) -> Dict[int, Wanted]:
    """The state of some GPUs as a wish, to come back to."""
    return {
        g.index: Wanted(
            g.index,
            bool(g.current),
            tuple(sorted((i.shape for i in g.instances if i.compute), key=shape_order)),
        )
        for g in gpus
        if g.index in indices
    }


def _roll_back(smi, before, indices, types, settings, say, error):
    """The error to raise, after bringing back the former state or, failing that, no instances."""
    say("failed: {}".format(error.message))
    parts = settings._replace(engine="nvidia-smi")
    try:
        _reach(smi, smi.gpus(), former(before, indices), types, parts, say)
        ending = "the former layout is back"
    except MigError as second:
        say("the former layout could not be brought back: {}".format(second.message))
        try:
            now = smi.gpus()
            empty = {g.index: Wanted(g.index, bool(g.current)) for g in now if g.index in indices}
            for argv in destroy_commands(plan(now, empty, {})):
                _run(smi, argv, parts, say)
            ending = "the GPUs were left clean: no instances"
        except MigError as third:
            ending = "and cleaning up failed too ({})".format(third.message)
    return world_failed("{}; {}".format(error.message, ending), error.hint)


def lock():
    """Keeps a second gpu-mig out until this process ends. Raises MigError when one is at work."""
    import fcntl

    os.makedirs(paths.at(paths.RUN_DIR), exist_ok=True)
    handle = open(paths.at(paths.RUN_DIR + "/lock"), "w")
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as e:
        raise world_failed("another gpu-mig is changing the GPUs", "wait for it to end.") from e
    return handle
