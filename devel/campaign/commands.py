"""Makes each command that a provisioner runs fail, one call at a time: the bake must stop there.

A call is one that the script or the library makes itself, not one that a package tool or an
installer makes. Of the calls that one place makes, in a loop say, the first fails. A failure that
the script may survive is in survives.yaml with its reason.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

from devel.campaign.book import Book
from devel.campaign.sandbox import PATH, SHIMS, Done, Sandbox, asked_for, forget, sandbox, words
from devel.campaign.testbed import deadline
from kiln.base import plain_yaml
from kiln.base.recipe import Recipe
from kiln.matrix.load import load_recipes
from lab.settings import Lab

# The lines of a row of each package manager, and of what only some rows do.
LINES = (
    "al2/classic/base/x86_64",
    "ubuntu2404/production/base/x86_64",
    "al2023/lts-both/base/x86_64",
    "debian12/debian/base/x86_64",
)
SURVIVES = Path(__file__).with_name("survives.yaml")
# What a failing command answers with.
STATUS = 97
# Of `seen`: several recipes are attacked at once.
_SEEN = threading.Lock()
_CALLER = '"/bin/bash /run/kiln-provisioners/"*'
# Built into bash: a program of that name is never run.
_BUILT_IN = {"command", "echo", "exit", "false", "kill", "printf", "pwd", "read"}
_BUILT_IN |= {"test", "true", "wait", "time"}
# Counts the calls that the script makes itself; fails one of them. $0 is the shim's path. What is
# below .replay has run before, on the disk that the script now begins with: its answer is given
# again, unless it is asked something else now. A call that reads a pipe always runs.
SHIM = r"""#!/bin/sh
PATH={path}
case "$(tr '\0' ' ' </proc/$PPID/cmdline)" in
    {caller}) ;;
    *) exec {real} "$@" ;;
esac
dir={folder}
n=1
set -C
[ -w "$dir/.numbers" ] || exit 99
until command : >"$dir/.numbers/{name}.$n"; do n=$((n + 1)); done 2>/dev/null
set +C
call="{name}.$n"
line=$(printf '%s ' "$@" | tr '\n' ' ')
printf '%s %s\n' '{name}' "$line" >>"$dir/.calls"
if [ '{name}' = "$KILN_FAIL" ] && [ "$n" = "$KILN_NTH" ]; then
    : >"$dir/.reached"
    exit {status}
fi
[ ! -p /dev/stdin ] || exec {real} "$@"
if [ -e "$dir/.replay/$call.status" ]; then
    if [ "$(cat "$dir/.replay/$call.line")" = "$line" ]; then
        cat "$dir/.replay/$call.out"
        cat "$dir/.replay/$call.err" >&2
        exit "$(cat "$dir/.replay/$call.status")"
    fi
    : >"$dir/.diverged"
fi
[ -n "$KILN_RECORD" ] || exec {real} "$@"
read -r before _ </proc/uptime
{real} "$@" >"$dir/.record/$call.out" 2>"$dir/.record/$call.err"
status=$?
read -r after _ </proc/uptime
printf '%s' "$line" >"$dir/.record/$call.line"
printf '%s' "$status" >"$dir/.record/$call.status"
cat "$dir/.record/$call.out"
cat "$dir/.record/$call.err" >&2
if [ $((${{after%.*}} - ${{before%.*}})) -ge {slow} ]; then
    : >"$dir/.wanted/$call"
    while [ -e "$dir/.wanted/$call" ]; do sleep 0.05; done
fi
exit "$status"
"""
# Seconds: after a command that takes so long the disk is copied, and later runs begin there.
SLOW = 2
# bash reads it before the script (BASH_ENV): each command is written down with the lines that led
# to it. It takes no PS4 from root's environment.
_TRACE = r"""unset BASH_ENV
exec {KILN_TRACE}>>/run/kiln-shims/.trace
BASH_XTRACEFD=$KILN_TRACE
PS4='+ ${BASH_SOURCE[*]} ${BASH_LINENO[*]} $LINENO| '
set -x
"""
_TRACED = re.compile(r"\++ ([^|]*)\| (?:command )?'?([^ ']+)")


@dataclass(frozen=True)
class Case:
    """The nth call of a command by a component's script."""

    script: str
    command: str
    nth: int
    line: str = ""
    # The line of the script that calls, and the lines that led there; empty: not known.
    place: str = ""

    @property
    def anywhere(self) -> Case:
        """What is the same in every recipe: the same line runs the same command."""
        return Case(self.script, self.command, 0, "", self.place) if self.place else self

    @property
    def key(self) -> str:
        """Its name in the book, the same in each run."""
        where = f"at {self.place}" if self.place else f"call {self.nth}"
        return f"{self.script}: {self.command} {where}"

    def __str__(self) -> str:
        return f"{self.script}: {self.command}, call {self.nth}: {self.line[:200]}"


@dataclass
class Counts:
    """What a part of the campaign did; `lost` are the failures that were not reported."""

    tried: int = 0
    whole: int = 0
    lost: int = 0
    not_run: list[str] = field(default_factory=list)
    # Scripts whose calls were not even counted: there was no time.
    no_time: list[str] = field(default_factory=list)

    def add(self, other: Counts) -> None:
        """Count what another one did as well."""
        self.tried += other.tried
        self.whole += other.whole
        self.lost += other.lost
        self.not_run += other.not_run
        self.no_time += other.no_time


def survives(name: str) -> dict[str, str]:
    """Beginning of a command line of a script or unit → why its failure may be survived."""
    data: dict[str, dict[str, str]] = plain_yaml.read_plain(SURVIVES)["survives"]
    return {**data.get("any", {}), **data.get(name, {})}


def excuse(name: str, line: str) -> str:
    """Why a call of a script or unit may fail unnoticed; empty if it may not."""
    fits = (why for start, why in survives(name).items() if line.startswith(start))
    return next(fits, "")


def campaign(
    lab: Lab,
    minutes: float,
    say: Callable[[str], None],
    book: Book,
    lines: Sequence[str] = LINES,
    at_once: int = 1,
) -> Counts:
    """Let as many calls of these recipes' scripts fail as the minutes allow, of several at once."""
    until = deadline(minutes)
    recipes = [recipe for recipe in load_recipes() if recipe.channel_line in lines]
    seen: set[Case] = set()

    def attack(recipe: Recipe) -> Counts:
        with sandbox(lab, recipe) as box:
            return _recipe(box, until, say, book, seen)

    counts = Counts()
    # The longest of them comes first.
    with ThreadPoolExecutor(at_once) as pool:
        for counted in pool.map(attack, recipes):
            counts.add(counted)
    return counts


def _recipe(
    box: Sandbox, until: float, say: Callable[[str], None], book: Book, seen: set[Case]
) -> Counts:
    """Attack the scripts of a recipe in bake order, until one fails without an attack."""
    counts = Counts()
    names = box.recipe.components
    for position, name in enumerate(names):
        if time.monotonic() > until:
            counts.no_time += [f"{box.recipe.distro.id} {later}" for later in names[position:]]
            break
        share = (until - time.monotonic()) / (len(names) - position)
        counted = script(box, name, until, share, say, book, seen)
        counts.add(counted)
        if counted.not_run:
            # The scripts after it would run on a machine that lacks its changes.
            counts.not_run += [f"{box.recipe.name} {later}" for later in names[position + 1 :]]
            break
        say(
            f"{box.recipe.distro.id} {name}: {counted.tried} of {counted.whole} calls failed, "
            f"{counted.lost} swallowed"
        )
    return counts


def script(
    box: Sandbox,
    name: str,
    until: float,
    share: float,
    say: Callable[[str], None],
    book: Book,
    seen: set[Case],
) -> Counts:
    """Run a component's script with calls failing, then let it succeed: the next one's state.

    Calls fail for `share` seconds and not after `until` (monotonic). The share begins when the
    calls are known: a script that takes long to count them would otherwise never be attacked.

    Cases that are in `seen`, those of recipes before this one, are left out; new ones are added.
    """
    before = box.commands()
    clean = box.run(name)
    if clean.status:
        where = f"{box.recipe.name} {name}"
        say(f"NOT TRIED {where}: it fails here without an attack:\n{clean.text[-1500:]}")
        forget(clean.upper)
        return Counts(not_run=[where])
    layers = [*box.layers, clean.upper]
    after = Sandbox(box.lab, box.recipe, box.folder, layers).commands()
    programs = {
        command: path
        for command, path in after.items()
        if command in words(name) - _BUILT_IN
        and (command in before or command not in asked_for(name))
    }
    shims = box.folder / "shims"
    dry, calls, checkpoints = _record(box, shims, programs, name)
    if dry.status or not calls:
        say(f"NOT TRIED {box.recipe.name} {name}: {len(calls)} calls counted, {dry.text[-1500:]}")
        return Counts(not_run=[f"{box.recipe.name} {name}"])
    whole = one_per_place(cases(name, calls), (shims / ".trace").read_text(errors="replace"))
    with _SEEN:
        whole = [case for case in whole if case.anywhere not in seen]
        seen.update(case.anywhere for case in whole if case.place)
    # What a line does is the same in every recipe: one of them tries it.
    distro = box.recipe.distro.id
    named = {case.key if case.place else f"{distro} {case.key}": case for case in whole}
    until = min(until, time.monotonic() + share)
    for key in book.begin(named, anew=False):
        if time.monotonic() > until:
            break
        case = named[key]
        before_it = [checkpoint for checkpoint in checkpoints if not checkpoint.has(case)]
        attack = _attack(box, shims, programs, case, before_it[-1] if before_it else None)
        done = attack.done
        if not attack.reached:
            say(f"NOT TRIED {box.recipe.distro.id} {case}: the script did not come to it")
        elif f"kiln: {name}: ERROR: " in done.text and done.status:
            book.note(key)
        elif why := excuse(name, case.line):
            book.note(key, excuse=why)
        else:
            where = f"{box.recipe.distro.id} {case} (status {done.status})"
            say(f"SWALLOWED {where}\n{done.text[-700:]}")
            book.note(key, f"{where}\n{done.text}")
    box.layers.append(clean.upper)
    return Counts(book.tried(named), len(named), book.bad(named))


def cases(name: str, calls: list[str]) -> list[Case]:
    """A case for each call that a script made; `calls` are its command lines in order."""
    seen: Counter[str] = Counter()
    calls_made = []
    for line in calls:
        command = line.split(" ", 1)[0]
        seen[command] += 1
        calls_made.append(Case(name, command, seen[command], line.strip()))
    return calls_made


def one_per_place(all_cases: list[Case], trace: str) -> list[Case]:
    """The first case of each place that calls; a place is a line, and the lines that led there.

    `trace` is what bash wrote down. All cases of a command stay if it has another number of them.
    """
    places: dict[str, list[str]] = {}
    for line in trace.splitlines():
        if traced := _TRACED.match(line):
            places.setdefault(traced[2], []).append(traced[1])
    number = Counter(case.command for case in all_cases)
    first: dict[tuple[str, str], Case] = {}
    for case in all_cases:
        sites = places.get(case.command, [])
        place = sites[case.nth - 1] if len(sites) == number[case.command] else ""
        first.setdefault((case.command, place or str(case.nth)), replace(case, place=place))
    return list(first.values())


@dataclass(frozen=True)
class Checkpoint:
    """A disk in the middle of a script: its changes so far, and the calls that made them."""

    upper: Path
    replay: Path

    def has(self, case: Case) -> bool:
        """Whether the case's call was over by then."""
        return (self.replay / f"{case.command}.{case.nth}.status").exists()


def _attack(
    box: Sandbox,
    shims: Path,
    programs: dict[str, str],
    case: Case,
    checkpoint: Checkpoint | None = None,
) -> Attack:
    """Run a script with one call failing, from a checkpoint or from its beginning."""
    lay_shims(shims, programs)
    if checkpoint:
        (shims / ".replay").rmdir()
        shutil.copytree(checkpoint.replay, shims / ".replay", copy_function=os.link)
    more = {"KILN_FAIL": case.command, "KILN_NTH": str(case.nth)}
    layers = [*box.layers, checkpoint.upper] if checkpoint else box.layers
    done = replace(box, layers=layers).run(case.script, shims, more)
    forget(done.upper)
    reached = (shims / ".reached").exists() and not (shims / ".diverged").exists()
    if checkpoint and not reached:
        # It went another way than it did when it was recorded.
        return _attack(box, shims, programs, case)
    return Attack(done, reached)


@dataclass(frozen=True)
class Attack:
    """A run of a script, and whether it came to the call that should fail."""

    done: Done
    reached: bool


def _record(
    box: Sandbox, shims: Path, programs: dict[str, str], name: str
) -> tuple[Done, list[str], list[Checkpoint]]:
    """Run a script as it is: what it said, its calls, and the checkpoints after slow ones."""
    lay_shims(shims, programs)
    (shims / ".trace.sh").write_text(_TRACE)
    folder = Path(tempfile.mkdtemp(prefix="checkpoints-", dir=box.folder))
    checkpoints: list[Checkpoint] = []
    over = threading.Event()

    def watch(upper: Path) -> None:
        while not over.wait(0.05):
            for wanted in (shims / ".wanted").iterdir():
                place = folder / str(len(checkpoints))
                place.mkdir()
                subprocess.run(["cp", "-a", upper, place / "upper"], check=True)
                (place / "replay").mkdir()
                for ended in (shims / ".record").glob("*.status"):
                    for kind in ("status", "line", "out", "err"):
                        part = f"{ended.stem}.{kind}"
                        os.link(shims / ".record" / part, place / "replay" / part)
                checkpoints.append(Checkpoint(place / "upper", place / "replay"))
                wanted.unlink()

    more = {"KILN_RECORD": "1", "BASH_ENV": "/run/kiln-shims/.trace.sh"}
    done = box.run(name, shims, more, beside=watch, over=over)
    forget(done.upper)
    return done, (shims / ".calls").read_text().splitlines(), checkpoints


def lay_shims(
    shims: Path,
    programs: Mapping[str, str],
    *,
    path: str = PATH,
    folder: str = SHIMS,
    caller: str = _CALLER,
) -> None:
    """The shims of these programs, and nothing of a run before.

    `folder` is where the machine has `shims`, `path` its other programs; `caller` is a pattern of
    the shell for the command lines whose calls count.
    """
    shutil.rmtree(shims, ignore_errors=True)
    for name in (".numbers", ".record", ".replay", ".wanted"):
        (shims / name).mkdir(parents=True)
    (shims / ".calls").write_text("")
    for command, real in programs.items():
        shim = shims / command
        shim.write_text(shim_of(command, real, path=path, folder=folder, caller=caller))
        shim.chmod(0o755)


def shim_of(
    command: str, real: str, *, path: str = PATH, folder: str = SHIMS, caller: str = _CALLER
) -> str:
    """The program that stands in for one while a script runs."""
    return SHIM.format(
        name=command,
        real=real,
        path=path,
        status=STATUS,
        slow=SLOW,
        folder=folder,
        caller=caller,
    )
