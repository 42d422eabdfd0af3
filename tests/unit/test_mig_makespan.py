"""When many jobs end: on whole GPUs, on slices, time-sliced; and what it costs."""

from __future__ import annotations

import heapq
import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mig_machine import examples

from kiln import facts
from kiln.base.errors import KilnError
from kiln.mig.draw_makespan import makespan_svg, makespan_text
from kiln.mig.makespan import Work, compare_ways, last_end, measured_slowdowns
from tests.unit import commands

P4D = "p4d.24xlarge"


def ways(work: Work, instance_type: str = P4D) -> dict[str, Any]:
    return {way["name"]: way for way in compare_ways(instance_type, work)["ways"]}


def test_fifty_six_jobs_take_seven_waves_on_whole_gpus_and_one_on_slices() -> None:
    found = ways(Work(56, 10))
    assert (found["whole GPUs"]["waves"], found["whole GPUs"]["seconds"]) == (7, 70)
    sliced = found["all-1g.5gb"]
    assert (sliced["at_once"], sliced["waves"], sliced["assumed"]) == (56, 1, ["1g.5gb"])


def test_what_aws_measured_lies_within_what_the_model_can_give() -> None:
    """240 s of seven waves are 34.3 s a job; a slice with a seventh of the SMs takes that once to
    seven times as long. AWS measured 2.5 times."""
    (measured,) = facts.table("mig-kubernetes")["measured"]
    jobs, whole = measured["jobs"], measured["whole_seconds"]
    alone = whole / 7
    least = ways(Work(jobs, alone, slowdown={"1g.5gb": 1}))
    most = ways(Work(jobs, alone))
    label = measured["label"]
    assert most["whole GPUs"]["seconds"] == pytest.approx(whole)
    assert least[label]["seconds"] < measured["seconds"] < most[label]["seconds"]
    slower = measured["seconds"] / alone
    exact = ways(Work(jobs, alone, slowdown={"1g.5gb": slower}))
    assert exact[label]["seconds"] == pytest.approx(measured["seconds"], abs=0.1)
    assert next(iter(exact)) == label


def test_no_measured_job_was_slower_on_a_slice_than_the_model_assumes() -> None:
    (measured,) = facts.table("mig-kubernetes")["measured_jobs"]
    whole = float(measured["whole_seconds"])
    p4de = ways(Work(1, whole), "p4de.24xlarge")
    for profile, seconds in measured["seconds"].items():
        place = p4de[f"all-{profile}"]["places"][profile]
        assert whole < float(seconds) < place["seconds_per_job"], profile


def test_slices_without_the_memory_that_a_job_needs_are_refused() -> None:
    answer = compare_ways(P4D, Work(56, 10, memory_gib=8))
    assert answer["refused"]["all-1g.5gb"] == "no slice has 8 GiB"
    mixed = next(way for way in answer["ways"] if way["name"] == "all-balanced")
    assert set(mixed["places"]) == {"2g.10gb", "3g.20gb"}


def test_time_slicing_helps_only_jobs_that_leave_the_gpu_idle() -> None:
    name = "time slicing, 7 at once on a GPU"
    assert ways(Work(56, 10))[name]["seconds"] == ways(Work(56, 10))["whole GPUs"]["seconds"]
    assert ways(Work(56, 10, busy=0.4))[name]["seconds"] == 28
    assert ways(Work(56, 10, busy=0.1))[name]["seconds"] == 10
    held = compare_ways(P4D, Work(56, 10, memory_gib=30))
    assert any(refused.startswith("time slicing") for refused in held["refused"])


def test_dollars_are_those_of_the_whole_instance_and_unknown_without_a_price() -> None:
    hourly = facts.table("ec2-prices")["instances"]["hourly"]
    found = ways(Work(8, 3600))["whole GPUs"]
    assert (found["gpu_hours"], found["usd"]) == (8, pytest.approx(float(hourly[P4D]), abs=1e-4))
    unknown = [kind.type for kind in facts.instances().values() if kind.mig]
    without = [name for name in unknown if name not in hourly]
    for name in without[:1]:
        assert ways(Work(8, 60), name)["whole GPUs"]["usd"] is None


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
def test_the_end_is_that_of_handing_out_the_jobs_one_by_one(
    jobs: int, places: dict[str, tuple[int, float]]
) -> None:
    assert last_end(jobs, places)[0] == by_hand(jobs, places)


def test_the_drawings_have_each_way_and_say_what_is_assumed() -> None:
    answer = compare_ways(P4D, Work(56, 34.3, slowdown={"1g.5gb": 2.54}))
    text = makespan_text(answer)
    assert text.splitlines()[0] == (
        "p4d.24xlarge: 8 × A100-40GB; 56 jobs, each 34.3 s alone on a whole GPU"
    )
    assert text.splitlines()[2].split()[:4] == ["all-1g.5gb", "56", "1", "87.1"]
    assert "all-2g.10gb*" in text and "* assumed" in text
    drawn = {"".join(element.itertext()) for element in ET.fromstring(makespan_svg(answer))}
    assert {way["name"] for way in answer["ways"]} <= drawn


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--jobs", "0"], "--jobs 0: give a number from 1"),
        (["--jobs", "many"], "--jobs many: give a number"),
        (["--seconds", "0"], "--seconds 0 is not a number above 0"),
        (["--instance-type", "g5.xlarge"], "no MIG on this GPU"),
        (["--memory", "64"], "a job needs 64 GiB; a GPU of p4d.24xlarge has 40"),
        (["--slowdown", "1g.5gb"], "--slowdown 1g.5gb: not a profile with a number"),
        (["--slowdown", "1g.5gb=0.5"], "a number of 1 or more"),
        (["--slowdown", "1g.10gbs=2"], "not a profile"),
        (["--slowdown", "1g.18gb=2"], "A100-40GB has no MIG profile 1g.18gb"),
        (["--busy", "1.5"], "--busy 1.5 is more than all of the time"),
    ],
)
def test_bad_input_is_refused_with_what_is_wrong(flags: list[str], words: str) -> None:
    given_ = {"--instance-type": P4D, "--jobs": "56", "--seconds": "34.3"}
    given_ |= dict(zip(flags[::2], flags[1::2], strict=True))
    done = commands.invoke("mig.makespan", *(word for pair in given_.items() for word in pair))
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert words in done.stderr


def test_the_task_prints_json_and_writes_the_picture(tmp_path: Path) -> None:
    svg = tmp_path / "new" / "spans.svg"
    flags = ["--instance-type", P4D, "--jobs", "56", "--seconds", "34.3", "--svg", str(svg)]
    done = commands.invoke("mig.makespan", *flags, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["ways"][0]["waves"] >= 1
    assert svg.read_text().startswith("<svg ")


@pytest.mark.parametrize(
    "words",
    [
        ("mig.plan", "--want", "1g.5gb=56"),
        ("mig.makespan", "--jobs", "56", "--seconds", "34.3"),
    ],
)
def test_a_picture_that_cannot_be_written_is_refused_before_anything_is_printed(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    done = commands.invoke(*words, "--instance-type", P4D, "--svg", str(tmp_path / ("a" * 300)))
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert "--svg" in done.stderr


def test_measured_slowdowns_are_read_by_profile() -> None:
    assert measured_slowdowns("1g.5gb=2.54, 2g.10gb=1.4") == {"1g.5gb": 2.54, "2g.10gb": 1.4}
    assert measured_slowdowns("") == {}
    with pytest.raises(KilnError):
        measured_slowdowns("1g.5gb=nan")
