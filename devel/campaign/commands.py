"""Makes each command that a provisioner runs fail, one call at a time: the bake must stop there.

A call is one that the script or the library makes itself, not one that a package tool or an
installer makes. Of the calls that one place makes, in a loop say, the first fails. A failure that
the script may survive stands in survives.yaml with its reason.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from devel.campaign.book import Book
from devel.campaign.sandbox import PATH, Done, Sandbox, asked_for, forget, sandbox, words
from devel.campaign.world import deadline
from kiln.base import plain_yaml
from kiln.matrix.load import load_recipes
from lab.settings import Lab

# The first of a row of each package manager, and of what only some rows do; without the driver's
# last numbers.
RECIPES = (
    "al2-510",
    "ubuntu2404-595",
    "al2023-580.178.04-both",
    "debian12-535",
)
SURVIVES = Path(__file__).with_name("survives.yaml")
# What a failing command answers with.
STATUS = 97
_CALLER = '"/bin/bash /run/kiln-provisioners/"*'
# Built into bash: a program of that name is never run.
_BUILT_IN = {"command", "echo", "exit", "false", "kill", "printf", "pwd", "read"}
_BUILT_IN |= {"test", "true", "wait", "time"}
# Counts the calls that the script makes itself; fails one of them. $0 is the shim's path.
SHIM = r"""#!/bin/sh
PATH={path}
case "$(tr '\0' ' ' </proc/$PPID/cmdline)" in
    {caller})
        printf '%s %s\n' '{name}' "$(echo "$*" | tr '\n' ' ')" >>/run/kiln-shims/.calls
        n=$(cut -d ' ' -f 1 /run/kiln-shims/.calls | grep -cFx '{name}')
        [ '{name}' != "$KILN_FAIL" ] || [ "$n" != "$KILN_NTH" ] || exit {status}
        ;;
esac
exec {real} "$@"
"""
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
    """What a part of the campaign did; `lost` are the failures that nobody was told of."""

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
    only: Sequence[str] = RECIPES,
) -> Counts:
    """Let as many calls of these recipes' scripts fail as the minutes allow."""
    until = deadline(minutes)
    counts = Counts()
    recipes = [recipe for recipe in load_recipes() if recipe.name.startswith(tuple(only))]
    seen: set[Case] = set()
    for number, recipe in enumerate(recipes):
        share = time.monotonic() + (until - time.monotonic()) / (len(recipes) - number)
        with sandbox(lab, recipe) as box:
            counts.add(_recipe(box, share, say, book, seen))
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
        slice_ = (until - time.monotonic()) / (len(names) - position)
        found = script(box, name, time.monotonic() + slice_, say, book, seen)
        counts.add(found)
        if found.not_run:
            # The scripts after it would run on a machine that lacks its changes.
            counts.not_run += [f"{box.recipe.name} {later}" for later in names[position + 1 :]]
            break
        say(
            f"{box.recipe.distro.id} {name}: {found.tried} of {found.whole} calls failed, "
            f"{found.lost} swallowed"
        )
    return counts


def script(
    box: Sandbox,
    name: str,
    until: float,
    say: Callable[[str], None],
    book: Book,
    seen: set[Case],
) -> Counts:
    """Run a component's script with calls failing, then let it succeed: the next one's state.

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
    dry, calls = _attack(box, shims, programs, Case(name, "", 0))
    if dry.status or not calls:
        say(f"NOT TRIED {box.recipe.name} {name}: {len(calls)} calls counted, {dry.text[-1500:]}")
        return Counts(not_run=[f"{box.recipe.name} {name}"])
    whole = one_per_place(cases(name, calls), (shims / ".trace").read_text(errors="replace"))
    whole = [case for case in whole if case.anywhere not in seen]
    seen.update(case.anywhere for case in whole if case.place)
    named = {f"{box.recipe.distro.id} {case.key}": case for case in whole}
    for key in book.begin(named, anew=False):
        if time.monotonic() > until:
            break
        case = named[key]
        done, _ = _attack(box, shims, programs, case)
        if f"kiln: {name}: ERROR: " in done.text and done.status:
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
    found = []
    for line in calls:
        command = line.split(" ", 1)[0]
        seen[command] += 1
        found.append(Case(name, command, seen[command], line.strip()))
    return found


def one_per_place(found: list[Case], trace: str) -> list[Case]:
    """The first case of each place that calls; a place is a line, and the lines that led there.

    `trace` is what bash wrote down. All cases of a command stay if it has another number of them.
    """
    places: dict[str, list[str]] = {}
    for line in trace.splitlines():
        if traced := _TRACED.match(line):
            places.setdefault(traced[2], []).append(traced[1])
    number = Counter(case.command for case in found)
    first: dict[tuple[str, str], Case] = {}
    for case in found:
        known = places.get(case.command, [])
        place = known[case.nth - 1] if len(known) == number[case.command] else ""
        first.setdefault((case.command, place or str(case.nth)), replace(case, place=place))
    return list(first.values())


def _attack(
    box: Sandbox, shims: Path, programs: dict[str, str], case: Case
) -> tuple[Done, list[str]]:
    """Run a script with one call failing; what it said, and the calls that it made."""
    for path in shims.glob("*") if shims.exists() else ():
        path.unlink()
    shims.mkdir(exist_ok=True)
    (shims / ".calls").write_text("")
    for command, real in programs.items():
        shim = shims / command
        text = SHIM.format(name=command, real=real, path=PATH, status=STATUS, caller=_CALLER)
        shim.write_text(text)
        shim.chmod(0o755)
    more = {"KILN_FAIL": case.command, "KILN_NTH": str(case.nth)}
    if not case.nth:
        (shims / ".trace.sh").write_text(_TRACE)
        more["BASH_ENV"] = "/run/kiln-shims/.trace.sh"
    done = box.run(case.script, shims, more)
    forget(done.upper)
    return done, (shims / ".calls").read_text().splitlines()
