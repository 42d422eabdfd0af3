"""`mig.makespan`: when many equal jobs end, on whole GPUs and on slices."""

from __future__ import annotations

import heapq
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mig_machine import examples

from kiln import facts
from kiln.mig.plan import compare_ways, last_end
from tests.unit import commands

P4D = "p4d.24xlarge"


def test_published_figures_of_aws_are_reproduced() -> None:
    (measured,) = facts.table("mig-kubernetes")["measured"]
    alone = measured["whole_seconds"] / 7
    ways = compare_ways(P4D, measured["jobs"], alone, {"1g.5gb": measured["seconds"] / alone})
    assert [(way["way"], way["at_once"]) for way in ways] == [("all-1g.5gb", 56), ("whole GPUs", 8)]
    assert [way["seconds"] for way in ways] == pytest.approx(
        [measured["seconds"], measured["whole_seconds"]], abs=0.1
    )


def by_hand(jobs: int, places: dict[str, tuple[int, float]]) -> float:
    """Give each job to the place where it ends soonest."""
    ends = [(each, each) for n, each in places.values() for _ in range(n)]
    heapq.heapify(ends)
    for _ in range(jobs):
        end, each = heapq.heappop(ends)
        heapq.heappush(ends, (end + each, each))
        last = end
    return last


@given(
    jobs=st.integers(1, 60),
    places=st.dictionaries(
        st.sampled_from("abc"), st.tuples(st.integers(1, 9), st.integers(1, 12)), min_size=1
    ),
)
@settings(deadline=None, max_examples=examples(60))
def test_end_equals_handing_out_jobs_one_by_one(
    jobs: int, places: dict[str, tuple[int, float]]
) -> None:
    assert last_end(jobs, places) == by_hand(jobs, places)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--jobs", "0.5"], "--jobs 0.5 is not a whole number"),
        (["--seconds", "0"], "--seconds 0 is not a number above 0"),
        (["--instance-type", "g5.xlarge"], "no MIG on this GPU"),
        (["--slowdown", "1g.5gb"], "--slowdown"),
        (["--slowdown", "1g.18gb=2"], "A100-40GB has no MIG profile 1g.18gb"),
    ],
)
def test_bad_flag_exits_2(flags: list[str], words: str) -> None:
    given_ = {"--instance-type": P4D, "--jobs": "56", "--seconds": "34.3"}
    given_ |= dict(zip(flags[::2], flags[1::2], strict=True))
    done = commands.invoke("mig.makespan", *(word for pair in given_.items() for word in pair))
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert words in done.stderr


def test_table_and_json_have_the_same_ways() -> None:
    flags = ["--instance-type", P4D, "--jobs", "56", "--seconds", "10", "--slowdown", "1g.5gb=2"]
    table = commands.invoke("mig.makespan", *flags).stdout.splitlines()
    ways = json.loads(commands.invoke("mig.makespan", *flags, "--json").stdout)
    assert [line.split("  ")[0] for line in table[1:]] == [way["way"] for way in ways]
