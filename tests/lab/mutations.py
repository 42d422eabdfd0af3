"""Which check of tests/ami was turned red by which mutation, from a few guests with many each.

A guest per mutation would be the plain way, and takes minutes. Instead a few guests (rounds) get
many each, and a check has to be red in the rounds of its own mutation and green in all others.

In every run each mutation is made once, in one of three rounds: the check can fail. `./invoke test
--all` makes each in three of nine, no two in the same three. Then it can only be its own mutation
that turned a check red: any other one is also made in a round in which the check stayed green.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kiln.base import overlay, yaml_files

# To place the mutations in so many rounds, before one more is taken.
_ATTEMPTS = 60


def read(files: str = "") -> dict[str, Any]:
    """mutations.yaml of tests/ami, with the checks of the overlays in use; if `files` names some of
    them, by commas, their checks only."""
    first, *own = (folder / "mutations.yaml" for folder in overlay.ami_check_folders())
    content: dict[str, Any] = yaml_files.read_plain(first)
    for path in own:
        if path.exists():
            content["checks"] |= yaml_files.read_plain(path)["checks"]
    wanted = [name for name in files.split(",") if name]
    unknown = set(wanted) - content["checks"].keys()
    if unknown:
        raise ValueError(f"no mutations.yaml has {', '.join(sorted(unknown))}")
    if wanted:
        content["checks"] = {name: content["checks"][name] for name in wanted}
    return content


@dataclass(frozen=True)
class Mutation:
    """A way to break a guest: `checks` must fail because of it, those in `also` may."""

    command: str
    checks: frozenset[str]
    also: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Plan:
    """`rounds[n]` are the mutations that guest n gets, in the order of mutations.yaml."""

    rounds: tuple[tuple[Mutation, ...], ...]

    def owner(self, check: str) -> Mutation:
        return next(m for item in self.rounds for m in item if check in m.checks)

    def colors(self, check: str) -> list[str]:
        """The check's expected outcome in each round: red, green, or any if it may be either."""
        return [_color(check, item) for item in self.rounds]


@dataclass(frozen=True)
class Round:
    """The result of a round: the outcome of each check, and the mutations' stderr."""

    outcomes: Mapping[str, str]
    messages: Mapping[str, str] = field(default_factory=dict)
    outputs: Mapping[str, str] = field(default_factory=dict)


def load(entries: Mapping[str, Mapping[str, Any]], checks: Iterable[str]) -> list[Mutation]:
    """The mutations for these checks ("test_kernel.py::test_x"); checks may share a mutation."""
    wanted = set(checks)
    result: dict[str, tuple[set[str], set[str]]] = {}
    for file, of_file in entries.items():
        for name, entry in of_file.items():
            check = f"{file}::{name}"
            if check not in wanted or {"not_in_a_lab", "own_kernel", "reboot"} & set(entry):
                continue
            command = entry if isinstance(entry, str) else entry["run"]
            own, also = result.setdefault(command, (set(), set()))
            own.add(check)
            also.update(() if isinstance(entry, str) else entry["also"])
    return [
        Mutation(command, frozenset(own), frozenset(also - own))
        for command, (own, also) in result.items()
    ]


def lacking(entries: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """The checks that a guest skips, and the reason that they must give."""
    return {
        f"{file}::{name}": entry["not_in_a_lab"]
        for file, of_file in entries.items()
        for name, entry in of_file.items()
        if isinstance(entry, dict) and "not_in_a_lab" in entry
    }


def before_reboot(entries: Mapping[str, Mapping[str, Any]]) -> tuple[Mutation, ...]:
    """What is broken at the next boot only: a guest gets it, and reboots."""
    return tuple(
        Mutation(entry["reboot"], frozenset({f"{file}::{name}"}))
        for file, of_file in entries.items()
        for name, entry in of_file.items()
        if isinstance(entry, dict) and "reboot" in entry
    )


def plan(mutations: list[Mutation], *, attributes: bool) -> Plan:
    """The smallest number of rounds found that contain each mutation: once in three or more, or so
    often that a check's outcomes are those of its own mutation alone (`attributes`).

    It is the same for the same mutations.
    """
    apart = {
        mutation: frozenset(other for other in mutations if _meet_badly(mutation, other))
        for mutation in mutations
    }
    for rounds in itertools.count(3):
        for times, attempt in itertools.product((2, 3) if attributes else (1,), range(_ATTEMPTS)):
            filled = _assigned(apart, rounds, times, random.Random(attempt))
            if filled:
                return Plan(tuple(tuple(m for m in mutations if m in item) for item in filled))
    raise AssertionError


def verdict(made: Plan, found: list[Round], check: str) -> str:
    """Empty when the check has the expected outcomes, else a description of the problem."""
    owner = made.owner(check)
    seen = [item.outcomes.get(check, "not run") for item in found]
    for number, color in enumerate(made.colors(check)):
        if color == "red" and seen[number] != "failed":
            output = found[number].outputs.get(owner.command, "")
            return (
                f"{check} {seen[number]} on a guest broken by: {owner.command.strip()}"
                + (f"\nwhich said: {output}" if output else "")
                + f"\nmade beside it: {_listed(made.rounds[number], owner)}"
            )
        if color == "green" and seen[number] != "passed":
            return (
                f"{check} {seen[number]} on a guest that its own mutation had not broken: "
                f"{found[number].messages.get(check, '')}"
                f"\nmade there: {_listed(made.rounds[number], owner)}"
                "\nif one of these has to turn it red, say so in its `also`"
            )
    return ""


def _color(check: str, made: Iterable[Mutation]) -> str:
    if any(check in mutation.also for mutation in made):
        return "any"
    return "red" if any(check in mutation.checks for mutation in made) else "green"


def _assigned(
    apart: Mapping[Mutation, frozenset[Mutation]], rounds: int, times: int, by: random.Random
) -> list[set[Mutation]] | None:
    """Assigns each mutation to `times` of the rounds, so that no two have the same several rounds;
    None if a mutation finds none free.

    Two mutations of which one may turn the other's check red (`apart`) share no round, because that
    check would prove nothing. They are placed first and at random, the others in the emptiest
    rounds.
    """
    taken: set[tuple[int, ...]] = set()
    filled: list[set[Mutation]] = [set() for _ in range(rounds)]
    for mutation in sorted(apart, key=lambda m: -len(apart[m])):
        free = [n for n in range(rounds) if not filled[n] & apart[mutation]]
        fitting = [c for c in itertools.combinations(free, times) if times == 1 or c not in taken]
        if not fitting:
            return None
        if apart[mutation]:
            chosen = by.choice(fitting)
        else:
            chosen = min(fitting, key=lambda c: (sum(len(filled[n]) for n in c), c))
        taken.add(chosen)
        for n in chosen:
            filled[n].add(mutation)
    return filled


def _meet_badly(mutation: Mutation, other: Mutation) -> bool:
    return bool(mutation.also & other.checks or other.also & mutation.checks)


def _listed(made: Iterable[Mutation], owner: Mutation) -> str:
    return " | ".join(m.command.strip().splitlines()[0] for m in made if m != owner) or "nothing"
