"""Every compatibility rule: what breaks it, at which level, and the nearest that does not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from kiln.base.errors import Finding
from kiln.base.recipe import Recipe, SourceAmi, Volume
from kiln.base.yaml_files import parse_plain
from kiln.compat import CHECKS, READS_TYPES, TYPE_CHECKS, engine, row_case, rules
from kiln.compat.engine import check_combination, check_recipe
from tests.unit.rows import row

pytestmark = pytest.mark.slow
TODAY = date(2026, 11, 21)
Subject = Recipe | dict[str, Any]


def subject(given: dict[str, Any]) -> Subject:
    """A row or a combination, as cases.yaml has it."""
    if "row" not in given:
        parent = given.get("source_ami")
        own = {"source_ami": SourceAmi(ssm_parameter=parent)} if parent else {}
        return {"instance_types": (), **given, **own}
    fields = {"instance_types": (), "volume": None, "without": "", **given["row"]}
    recipe = row("al2023/lts/base/x86_64")
    left = fields.pop("without")
    size = fields.pop("volume")
    return recipe.changed(
        target_instance_types=tuple(fields.pop("instance_types")),
        components=tuple(name for name in recipe.components if name != left),
        volume=Volume(**size) if size else recipe.volume,
        **fields,
    )


def read_cases() -> Iterator[tuple[str, str, Subject, Subject | None]]:
    """The rule, its level, what breaks it, the nearest that does not."""
    text = Path(__file__).with_name("cases.yaml").read_text()
    for rule, cases in parse_plain(text, "cases.yaml", versions_as_text=True).items():
        for case in cases:
            sound = case.pop("sound", None)
            ((level, broken),) = case.items()
            yield rule, level, subject(broken), subject(sound) if sound else None


CASES = list(read_cases())


def findings(case: Subject, rule: str = "") -> list[Finding]:
    """What `check` finds on a row or a combination, by one rule or all."""
    if isinstance(case, Recipe):
        found = check_recipe(case, today=TODAY)
    else:
        answer = check_combination(**case, today=TODAY)
        found = [Finding(**each) for each in answer["findings"]]
    return [finding for finding in found if rule in ("", finding.rule)]


def ways_out(hint: str) -> list[dict[str, str]]:
    """The changes a hint names as working: `driver 580.178.04, or CUDA 12.9.1`."""
    _, _, text = hint.partition("nearest that works: ")
    ways = [way.split(" ") for way in text.split(", or ") if way]
    return [{name.lower(): value} for name, value in ways]


@pytest.mark.parametrize(
    ("rule", "level", "broken", "sound"), CASES, ids=[f"{r}-{n}" for n, (r, *_) in enumerate(CASES)]
)
def test_rule_objects_at_its_level_with_a_hint_that_works(
    rule: str, level: str, broken: Subject, sound: Subject | None
) -> None:
    every = findings(broken)
    found = [finding for finding in every if finding.rule == rule]
    assert {finding.level for finding in found} == {level}
    assert all(finding.source and finding.hint for finding in found)
    assert sound is None or not findings(sound, rule)
    for change in [change for finding in every for change in ways_out(finding.hint)]:
        changed = broken.changed(**change) if isinstance(broken, Recipe) else {**broken, **change}
        assert not [each for each in findings(changed) if each.level == "error"], change


def test_errors_that_a_driver_or_cuda_fixes_name_one() -> None:
    cases = [each for each in CASES if rules()[each[0]].moves and each[1] == "error"]
    hints = [finding.hint for rule, _, case, _ in cases for finding in findings(case, rule)]
    assert len([hint for hint in hints if ways_out(hint)]) >= 0.9 * len(hints) > 15


class Untouchable:
    def __iter__(self):
        raise AssertionError("it looks at the instance types")

    __bool__ = __len__ = __iter__


def test_rule_that_reads_instance_types_is_asked_per_type() -> None:
    # The others decide once for all types: they must not look.
    seen = set()
    for _, _, broken, _ in CASES:
        if isinstance(broken, dict):
            distro, values = broken["distro"], {**broken}
            del values["distro"], values["instance_types"]
            case = engine.combination_case(distro, values, (), TODAY)
        else:
            case = row_case(broken, TODAY)
        case = replace(case, types=Untouchable())
        for rule in CHECKS.keys() - READS_TYPES:
            seen |= {rule for _ in CHECKS[rule](case.recipe, case)}
    assert len(seen) > 25


def test_every_rule_has_a_check_and_a_case() -> None:
    assert set(rules()) == {*CHECKS, *TYPE_CHECKS} == {rule for rule, *_ in CASES}
