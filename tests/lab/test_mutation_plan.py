"""How mutations share a few guests, and the message when a check has an unexpected outcome."""

from __future__ import annotations

import itertools

import mutations
import pytest
from mutations import Mutation, Plan, Round

from tests.unit.matrix.overlays import written

ENTRIES = mutations.read()["checks"]
EVERY = mutations.load(
    ENTRIES, [f"{file}::{name}" for file, entries in ENTRIES.items() for name in entries]
)
A, B, C = (
    Mutation("a", frozenset({"check a"}), frozenset({"check c"})),
    Mutation("b", frozenset({"check b"})),
    Mutation("c", frozenset({"check c", "check d"})),
)


@pytest.fixture(params=[False, True], ids=["three", "nine"])
def planned(request: pytest.FixtureRequest) -> Plan:
    return mutations.plan(EVERY, attributes=request.param)


def as_planned(plan: Plan) -> list[Round]:
    """The results when each mutation breaks its checks and nothing else."""
    checks = {check for item in plan.rounds for mutation in item for check in mutation.checks}
    return [
        Round({c: "failed" if any(c in m.checks for m in made) else "passed" for c in checks})
        for made in plan.rounds
    ]


def test_overlay_checks_are_broken_alone_in_three_guests(tmp_path, monkeypatch):
    monkeypatch.setenv("KILN_OVERLAY", str(written(tmp_path / "acme")))
    name = "test_acme_baseline.py"
    content = mutations.read(name)
    assert set(content["checks"]) == {name}
    checks = [f"{name}::{check}" for check in content["checks"][name]]
    plan = mutations.plan(mutations.load(content["checks"], checks), attributes=True)
    assert (len(checks), len(plan.rounds)) == (3, 3)
    with pytest.raises(ValueError, match=r"no mutations\.yaml has test_acme\.py"):
        mutations.read("test_acme.py")


def test_every_mutation_is_made_and_none_hides_another(planned):
    made_in = [
        tuple(n for n, made in enumerate(planned.rounds) if mutation in made) for mutation in EVERY
    ]
    assert all(made_in)
    if len(planned.rounds) > 3:
        assert len(set(made_in)) == len(made_in)
    assert len(planned.rounds) < 12
    for made in planned.rounds:
        for item, other in itertools.permutations(made, 2):
            assert not item.also & other.checks


def test_check_that_another_mutation_fails_is_found():
    planned = mutations.plan(EVERY, attributes=True)
    for idle, culprit in [*itertools.permutations(EVERY, 2)][::7]:
        check = min(idle.checks)
        if check in culprit.also:
            continue
        result = [Round({check: "failed" if culprit in m else "passed"}) for m in planned.rounds]
        assert mutations.verdict(planned, result, check), f"{check} by {culprit.command}"


@pytest.mark.parametrize("attributes", [False, True])
def test_check_that_never_fails_is_named_with_its_mutation(attributes):
    plan = mutations.plan([A, B, C], attributes=attributes)
    result = [
        Round({**item.outcomes, "check b": "passed"}, outputs={"b": "no b here"})
        for item in as_planned(plan)
    ]
    output = mutations.verdict(plan, result, "check b")
    assert output.startswith("check b passed on a guest broken by: b\nwhich said: no b here")
    skipping = [Round({**item.outcomes, "check d": "skipped"}) for item in as_planned(plan)]
    assert "check d skipped" in mutations.verdict(plan, skipping, "check d")
