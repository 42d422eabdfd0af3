"""The placement rules, against a brute force over every start position and against known cases."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kiln.base.paths import runtime_module
from kiln.mig import check
from kiln.mig.profiles import gpu_types
from tests.unit.searches import examples

pytestmark = pytest.mark.slow
placement = runtime_module("gpu_mig.placement")
target = runtime_module("gpu_mig.target")
GPUS = gpu_types()
A100, A30, RTX = (GPUS[name] for name in ("A100-40GB", "A30-24GB", "RTX-PRO-6000-96GB"))


def brute_force(gpu, names) -> bool:
    """The rules again, written the slow way."""
    facts = [gpu.profiles[n] for n in names]
    if sum(f.compute for f in facts) > gpu.compute_slices:
        return False
    if any(names.count(f.name) > f.max for f in facts):
        return False
    for i in range(4):
        if sum(f.engines[i] for f in facts) > gpu.engines[i]:
            return False
    for starts in itertools.product(*(f.starts for f in facts)):
        taken = [s for f, at in zip(facts, starts, strict=True) for s in range(at, at + f.memory)]
        if len(taken) == len(set(taken)) and all(s < gpu.memory_slices for s in taken):
            return True
    return False


@pytest.mark.parametrize(
    ("gpu", "names", "fits"),
    [
        (A100, ["1g.5gb"] * 8, False),
        (A100, ["3g.20gb", "3g.20gb", "1g.5gb"], False),
        (A100, ["4g.20gb", "3g.20gb"], True),
        (A100, ["1g.5gb+me"] * 2, False),
        (A100, ["1g.5gb+me"] + ["1g.5gb"] * 6, True),
        (A30, ["1g.6gb+me", "2g.12gb+me"], False),
        (RTX, ["1g.24gb+me.all"] + ["1g.24gb-me"] * 3, True),
        (RTX, ["1g.24gb+me.all", "1g.24gb"], False),
    ],
)
def test_known_cases(gpu, names, fits):
    assert (placement.fit(gpu, names) is not None) == fits
    assert (placement.why_not(gpu, names) is None) == fits


sets = st.sampled_from(list(GPUS.values())).flatmap(
    lambda gpu: st.tuples(st.just(gpu), st.lists(st.sampled_from(sorted(gpu.profiles)), max_size=8))
)


@examples(150)
@given(sets)
def test_the_solver_agrees_with_a_brute_force(case):
    gpu, names = case
    placed = placement.fit(gpu, names)
    assert (placed is not None) == brute_force(gpu, names)
    assert (placement.why_not(gpu, names) is None) == (placed is not None)
    if placed is None:
        return
    assert sorted(p.profile for p in placed) == sorted(names)
    slices = []
    for p in placed:
        facts = gpu.profile(p.profile)
        assert p.start in facts.starts
        slices += range(p.start, p.start + facts.memory)
    assert len(slices) == len(set(slices))
    assert all(s < gpu.memory_slices for s in slices)


@examples(40)
@given(sets)
def test_nearest_layout_fits(case):
    gpu, names = case
    if not names:
        return
    near = check.nearest_layout(gpu, names)
    assert placement.fit(gpu, near) is not None
    assert len(near) <= len(names)
    if placement.fit(gpu, names) is not None:
        assert sorted(near) == sorted(names)
