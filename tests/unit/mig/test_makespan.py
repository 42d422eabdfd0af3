"""`mig.makespan`: when many equal jobs end, on whole GPUs and on slices."""

from __future__ import annotations

import pytest

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


@pytest.mark.parametrize(
    ("jobs", "places", "end"),
    [
        (1, {"a": (9, 5), "b": (1, 2)}, 2),
        (7, {"a": (2, 3)}, 12),
        # On b at 2, 4, 6, 8 and on a at 5: the sixth ends on a or b at 10.
        (6, {"a": (1, 5), "b": (1, 2)}, 10),
        (60, {"a": (3, 12), "b": (1, 1)}, 48),
    ],
)
def test_jobs_go_where_they_end_soonest(
    jobs: int, places: dict[str, tuple[int, float]], end: float
) -> None:
    assert last_end(jobs, places) == end


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--jobs", "0.5"], "--jobs 0.5"),
        (["--instance-type", "g5.xlarge"], "no MIG on this GPU"),
        (["--slowdown", "1g.18gb=2"], "no MIG profile 1g.18gb"),
    ],
)
def test_bad_flag_exits_2(flags: list[str], words: str) -> None:
    given_ = {"--instance-type": P4D, "--jobs": "56", "--seconds": "34.3"}
    given_ |= dict(zip(flags[::2], flags[1::2], strict=True))
    done = commands.invoke("mig.makespan", *(word for pair in given_.items() for word in pair))
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert words in done.stderr
