"""Makes each command that a provisioner runs fail, one call at a time: the bake must stop there.

A call is one that the script or the library makes itself, not one that a package tool or an
installer makes. A failure that the script may survive stands in survives.yaml with its reason.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from devel.campaign.sandbox import PATH, Done, Sandbox, asked_for, forget, sandbox, words
from devel.campaign.world import deadline, spread
from kiln.base import plain_yaml
from kiln.matrix.load import load_recipes
from lab.settings import Lab

# One recipe of each package manager.
RECIPES = ("al2-510.47.03-cuda11.6-base-x86_64", "debian12-535.261.03-base-x86_64")
SURVIVES = Path(__file__).with_name("survives.yaml")
# What a failing command answers with.
_STATUS = 97
# Built into bash: a program of that name is never run. `sudo` and `env` start the script.
_BUILT_IN = {"bash", "command", "echo", "exit", "false", "kill", "printf", "pwd", "read", "sh"}
_BUILT_IN |= {"test", "true", "wait", "env", "sudo", "time"}
# Counts the calls that the script makes itself; fails one of them. $0 is the shim's path.
_SHIM = r"""#!/bin/sh
case "$(tr '\0' ' ' </proc/$PPID/cmdline)" in
    "bash /run/kiln-provisioners/"*)
        echo @NAME@ >>/run/kiln-shims/.calls
        n=$(grep -cx @NAME@ /run/kiln-shims/.calls)
        [ "@NAME@" != "$KILN_FAIL" ] || [ "$n" != "$KILN_NTH" ] || exit @STATUS@
        ;;
esac
PATH=@PATH@
exec @REAL@ "$@"
"""


@dataclass(frozen=True)
class Case:
    """The nth call of a command by a component's script."""

    script: str
    command: str
    nth: int

    def __str__(self) -> str:
        return f"{self.script}: {self.command}, call {self.nth}"


def survives() -> dict[str, dict[str, str]]:
    """Script (or `any`) → command → why its failure may be survived."""
    data: dict[str, dict[str, str]] = plain_yaml.read_plain(SURVIVES)["survives"]
    return data


def campaign(lab: Lab, minutes: float, say: Callable[[str], None]) -> tuple[int, int]:
    """Let as many calls fail as the minutes allow; returns the calls, and the lost failures."""
    until = deadline(minutes)
    tried = swallowed = whole = 0
    recipes = [recipe for recipe in load_recipes() if recipe.name in RECIPES]
    for number, recipe in enumerate(recipes):
        share = time.monotonic() + (until - time.monotonic()) / (len(recipes) - number)
        with sandbox(lab, recipe) as box:
            for position, name in enumerate(recipe.components):
                slice_ = (share - time.monotonic()) / (len(recipe.components) - position)
                counts = script(box, name, time.monotonic() + slice_, say)
                tried, swallowed, whole = (
                    tried + counts[0], swallowed + counts[1], whole + counts[2]
                )  # fmt: skip
    say(f"commands {tried} / swallowed failures {swallowed} ({whole} calls in all)")
    return tried, swallowed


def script(
    box: Sandbox, name: str, until: float, say: Callable[[str], None]
) -> tuple[int, int, int]:
    """Run a component's script with calls failing, then let it succeed: the next one's state."""
    before = box.commands()
    clean = box.run(name)
    if clean.status:
        where = f"{box.recipe.distro.id} {name}"
        say(f"NOT TRIED {where}: it fails here without an attack:\n{clean.text[-1500:]}")
        forget(clean.upper)
        return 0, 0, 0
    layers = [*box.layers, clean.upper]
    after = Sandbox(box.lab, box.recipe, box.folder, layers).commands()
    programs = {
        command: path
        for command, path in after.items()
        if command in words(name) - _BUILT_IN
        and (command in before or command not in asked_for(name))
    }
    shims = box.folder / "shims"
    _, calls = _attack(box, shims, programs, Case(name, "", 0))
    cases = [
        Case(name, command, nth + 1)
        for command in sorted(set(calls))
        for nth in range(calls.count(command))
    ]
    excused = {**survives().get("any", {}), **survives().get(name, {})}
    tried = swallowed = 0
    for index in spread(len(cases), random.random()):
        if time.monotonic() > until and tried:
            break
        case = cases[index]
        done, _ = _attack(box, shims, programs, case)
        tried += 1
        stopped = f"kiln: {name}: ERROR: " in done.text and done.status
        if not stopped and case.command not in excused:
            swallowed += 1
            where = f"{box.recipe.distro.id} {case} (status {done.status})"
            say(f"SWALLOWED {where}\n{done.text[-1500:]}")
    box.layers.append(clean.upper)
    return tried, swallowed, len(cases)


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
        text = _SHIM.replace("@NAME@", command).replace("@REAL@", real)
        shim.write_text(text.replace("@STATUS@", str(_STATUS)).replace("@PATH@", PATH))
        shim.chmod(0o755)
    done = box.run(case.script, shims, {"KILN_FAIL": case.command, "KILN_NTH": str(case.nth)})
    forget(done.upper)
    return done, (shims / ".calls").read_text().split()
