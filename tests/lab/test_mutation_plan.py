"""How mutations share a few guests, and the message when a check has an unexpected outcome."""

from __future__ import annotations

import itertools

import mutations
import pytest
import yaml
from mutations import Mutation, Round

from kiln.base.paths import AMI_TESTS
from tests.unit.matrix.overlays import written

pytestmark = pytest.mark.beside
ENTRIES = yaml.safe_load((AMI_TESTS / "mutations.yaml").read_text())["checks"]
EVERY = [f"{file}::{name}" for file, entries in ENTRIES.items() for name in entries]
A, B, C = (
    Mutation("a", frozenset({"check a"}), frozenset({"check c"})),
    Mutation("b", frozenset({"check b"})),
    Mutation("c", frozenset({"check c", "check d"})),
)


@pytest.fixture
def all_of_them() -> mutations.Plan:
    return mutations.plan(mutations.load(ENTRIES, EVERY))


def as_planned(plan: mutations.Plan) -> list[Round]:
    """The results when each mutation breaks its checks and nothing else."""
    checks = {check for item in plan.rounds for mutation in item for check in mutation.checks}
    return [
        Round({c: "failed" if any(c in m.checks for m in made) else "passed" for c in checks})
        for made in plan.rounds
    ]


def test_checks_with_the_same_mutation_share_it():
    shared = {"x.py": {"one": "rm it", "two": {"run": "rm it", "also": ["x.py::three"]}}}
    assert mutations.load(shared, ["x.py::one", "x.py::two"]) == [
        Mutation("rm it", frozenset({"x.py::one", "x.py::two"}), frozenset({"x.py::three"}))
    ]


def test_a_check_that_is_not_on_the_image_gets_no_mutation():
    assert mutations.load({"x.py": {"one": "rm it"}}, []) == []


def test_an_overlays_checks_are_broken_alone_in_three_guests(tmp_path, monkeypatch):
    monkeypatch.setenv("KILN_OVERLAY", str(written(tmp_path / "acme")))
    name = "test_acme_baseline.py"
    content = mutations.read(name)
    assert set(content["checks"]) == {name}
    assert content["prelude"] == mutations.read()["prelude"]
    checks = [f"{name}::{check}" for check in content["checks"][name]]
    plan = mutations.plan(mutations.load(content["checks"], checks))
    assert (len(checks), len(plan.rounds)) == (3, 3)
    with pytest.raises(ValueError, match=r"no mutations\.yaml has test_acme\.py"):
        mutations.read("test_acme.py")


def test_all_of_them_fit_into_few_rounds(all_of_them):
    assert len(all_of_them.rounds) < 12


def test_each_is_made_equally_often_and_no_two_in_the_same_rounds(all_of_them):
    made_in = [
        tuple(n for n, made in enumerate(all_of_them.rounds) if mutation in made)
        for mutation in mutations.load(ENTRIES, EVERY)
    ]
    (times,) = {len(rounds) for rounds in made_in}
    assert times > 1
    assert len(set(made_in)) == len(made_in)


def test_one_that_may_turn_a_check_red_is_never_beside_the_checks_own(all_of_them):
    for made in all_of_them.rounds:
        for item, other in itertools.permutations(made, 2):
            assert not item.also & other.checks


def test_colours_as_planned_are_fine(all_of_them):
    result = as_planned(all_of_them)
    owned = {check for made in all_of_them.rounds for m in made for check in m.checks}
    assert [mutations.verdict(all_of_them, result, check) for check in sorted(owned)] == [""] * len(
        owned
    )


def test_a_check_that_another_mutation_turns_red_is_found_even_if_its_own_does_nothing(all_of_them):
    every = mutations.load(ENTRIES, EVERY)
    for idle, culprit in itertools.permutations(every, 2):
        check = min(idle.checks)
        if check in culprit.also:
            continue
        result = [
            Round({check: "failed" if culprit in made else "passed"}) for made in all_of_them.rounds
        ]
        assert mutations.verdict(all_of_them, result, check), f"{check} by {culprit.command}"


def test_a_check_that_stays_green_is_named_with_the_mutation_and_its_words():
    plan = mutations.plan([A, B, C])
    planned = as_planned(plan)
    result = [
        Round({**item.outcomes, "check b": "passed"}, outputs={"b": "no b here"})
        for item in planned
    ]
    output = mutations.verdict(plan, result, "check b")
    assert output.startswith("check b passed on a guest broken by: b\nwhich said: no b here")


def test_a_check_that_skips_instead_of_failing_is_not_taken_for_red():
    plan = mutations.plan([A, B, C])
    result = [
        Round(
            {
                c: "skipped" if c == "check d" and colour == "failed" else colour
                for c, colour in item.outcomes.items()
            }
        )
        for item in as_planned(plan)
    ]
    assert "check d skipped on a guest broken by: c" in mutations.verdict(plan, result, "check d")


def test_a_check_that_a_stranger_turns_red_is_named_with_what_was_made_there():
    plan = mutations.plan([A, B, C])
    result = [
        Round({**item.outcomes, "check b": "failed"}, {"check b": "why"})
        for item in as_planned(plan)
    ]
    output = mutations.verdict(plan, result, "check b")
    assert "check b failed on a guest that its own mutation had not broken: why" in output
    assert "say so in its `also`" in output


def test_a_declared_side_effect_may_turn_the_check_red_or_not():
    plan = mutations.plan([A, B, C])
    assert "any" in plan.colours("check c")
    for outcome in ("passed", "failed"):
        result = [
            Round({**item.outcomes, **({"check c": outcome} if A in made else {})})
            for item, made in zip(as_planned(plan), plan.rounds, strict=True)
        ]
        assert mutations.verdict(plan, result, "check c") == ""
