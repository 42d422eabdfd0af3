"""Pages to look things up in: what GPUs can be cut into, what an Xid means and what to do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from typing import Any

from kiln import facts
from kiln.mig.draw import draw_svg
from kiln.mig.draw_makespan import makespan_svg
from kiln.mig.makespan import Work, compare_ways
from kiln.mig.plan import plan_layout
from kiln.mig.profiles import profiles_for
from kiln.xid.catalogue import CATALOGUE


@cache
def mig_gpus() -> list[dict[str, Any]]:
    """Every GPU with MIG that an instance type has: as `profiles_for` describes it, its `types`
    (the one with most GPUs last), `most` slices, `pictures` as file and what it shows."""
    by_gpu: dict[str, dict[str, Any]] = {}
    measured = {entry["instance_type"] for entry in facts.table("mig-kubernetes")["measured"]}
    kinds = [kind for kind in facts.instances().values() if kind.mig and kind.offered]
    for kind in sorted(kinds, key=lambda kind: kind.gpu_count):
        answer = profiles_for(kind.type)
        gpu = by_gpu.setdefault(answer["gpu"], {**answer, "types": []})
        gpu["types"].append({"instance_type": kind.type, "gpus": kind.gpu_count})
    for gpu in by_gpu.values():
        largest = gpu["types"][-1]["instance_type"]
        gpu["most"] = max(profile["per_gpu"] for profile in gpu["profiles"])
        gpu["want"] = _shown(gpu, gpu["types"][-1]["gpus"])
        gpu["pictures"] = [
            (f"mig/{largest.replace('.', '-')}.svg", f"{gpu['want']} on the GPUs of {largest}")
        ]
        gpu["pictures"] += [
            (
                _jobs_file(kind["instance_type"]),
                f"When many jobs end on {kind['instance_type']}, as AWS measured them on whole "
                "GPUs and the smallest slices (unconfirmed)",
            )
            for kind in gpu["types"]
            if kind["instance_type"] in measured
        ]
    return list(by_gpu.values())


def _jobs_file(instance_type: str) -> str:
    return f"mig/{instance_type.replace('.', '-')}-jobs.svg"


def _shown(answer: dict[str, Any], gpus: int) -> str:
    """A mix for the picture: one GPU of the smallest slices, one of the largest that fit twice."""
    profiles = [profile for profile in answer["profiles"] if "+" not in profile["profile"]]
    profiles = [
        profile for profile in profiles if not profile["profile"].endswith("-me")
    ] or profiles
    smallest = max(profiles, key=lambda entry: (entry["per_gpu"], entry["memory_slices"] == 1))
    twice = [profile for profile in profiles if profile["per_gpu"] == 2 and profile is not smallest]
    if gpus < 2 or not twice:
        return f"{smallest['profile']}={smallest['per_gpu']}"
    return f"{smallest['profile']}={smallest['per_gpu']},{twice[0]['profile']}=2"


@cache
def mig_files() -> tuple[tuple[str, str], ...]:
    """The pictures of mig.plan for each type, and of mig.makespan where somebody measured jobs."""
    return tuple(_pictures())


def _pictures() -> Iterator[tuple[str, str]]:
    for gpu in mig_gpus():
        largest = gpu["types"][-1]["instance_type"]
        yield gpu["pictures"][0][0], draw_svg(plan_layout(largest, gpu["want"]))
    for measured in facts.table("mig-kubernetes")["measured"]:
        name, work = measured["instance_type"], _as_measured(measured)
        yield _jobs_file(name), makespan_svg(compare_ways(name, work))


def _as_measured(measured: dict[str, Any]) -> Work:
    """Jobs of which it was measured how long all take on whole GPUs and on one label's slices."""
    machine = facts.instance(measured["instance_type"])
    waves = -(-measured["jobs"] // machine.gpu_count)
    alone = measured["whole_seconds"] / waves
    profile = measured["label"].removeprefix("all-")
    places = next(
        each_profile["per_instance"]
        for each_profile in profiles_for(machine.type)["profiles"]
        if each_profile["profile"] == profile
    )
    slower = measured["seconds"] / -(-measured["jobs"] // places) / alone
    return Work(measured["jobs"], alone, slowdown={profile: slower})


@cache
def _shipped() -> dict[str, Any]:
    """The catalogue of codes as it ships, which is read much faster than its YAML."""
    data: dict[str, Any] = json.loads(CATALOGUE.read_text(encoding="utf-8"))
    return data


def xid_codes() -> list[dict[str, Any]]:
    """The Xid codes by number: code, name, meaning, severity, action, and NVIDIA's action where
    AWS advises another."""
    codes = [
        {"by_line": False, "action_nvidia": "", **entry, "code": int(key.removeprefix("xid "))}
        for key, entry in _shipped().items()
        if key.startswith("xid ")
    ]
    return sorted(codes, key=lambda entry: int(entry["code"]))


def xid_state() -> str:
    """The day of the Xid facts."""
    return str(_shipped()["about"]["as_of"])
