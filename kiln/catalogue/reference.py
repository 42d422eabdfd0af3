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
def mig_types() -> list[dict[str, Any]]:
    """Every instance type with MIG as `profiles_for` describes it, with its pictures' files."""
    found = []
    measured = {one["instance_type"]: one for one in facts.table("mig-kubernetes")["measured"]}
    for kind in facts.instances().values():
        if not kind.mig or not kind.offered:
            continue
        answer = profiles_for(kind.type)
        name = kind.type.replace(".", "-")
        answer["want"] = _shown(answer)
        answer["picture"] = f"mig/{name}.svg"
        answer["alt"] = f"{answer['want']} placed on the GPUs of {kind.type}"
        answer["spans"] = f"mig/{name}-jobs.svg" if kind.type in measured else None
        answer["spans_alt"] = f"when many jobs end on {kind.type}, whole GPUs and slices"
        found.append(answer)
    return found


def _shown(answer: dict[str, Any]) -> str:
    """A mix for the picture: one GPU of the smallest slices, one of the largest that fit twice."""
    profiles = [one for one in answer["profiles"] if "+" not in one["profile"]]
    profiles = [one for one in profiles if not one["profile"].endswith("-me")] or profiles
    smallest = max(profiles, key=lambda one: (one["per_gpu"], one["memory_slices"] == 1))
    twice = [one for one in profiles if one["per_gpu"] == 2 and one is not smallest]
    if answer["gpus"] < 2 or not twice:
        return f"{smallest['profile']}={smallest['per_gpu']}"
    return f"{smallest['profile']}={smallest['per_gpu']},{twice[0]['profile']}=2"


@cache
def mig_files() -> tuple[tuple[str, str], ...]:
    """The pictures of mig.plan for each type, and of mig.makespan where somebody measured jobs."""
    return tuple(_pictures())


def _pictures() -> Iterator[tuple[str, str]]:
    for one in mig_types():
        yield one["picture"], draw_svg(plan_layout(one["instance_type"], one["want"]))
    for measured in facts.table("mig-kubernetes")["measured"]:
        name = measured["instance_type"].replace(".", "-")
        work = _as_measured(measured)
        yield f"mig/{name}-jobs.svg", makespan_svg(compare_ways(measured["instance_type"], work))


def _as_measured(measured: dict[str, Any]) -> Work:
    """Jobs of which it was measured how long all take on whole GPUs and on one label's slices."""
    machine = facts.instance(measured["instance_type"])
    waves = -(-measured["jobs"] // machine.gpu_count)
    alone = measured["whole_seconds"] / waves
    profile = measured["label"].removeprefix("all-")
    places = next(
        one["per_instance"]
        for one in profiles_for(machine.type)["profiles"]
        if one["profile"] == profile
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
    found = [
        {"by_line": False, "action_nvidia": "", **entry, "code": int(key.removeprefix("xid "))}
        for key, entry in _shipped().items()
        if key.startswith("xid ")
    ]
    return sorted(found, key=lambda entry: int(entry["code"]))


def xid_state() -> str:
    """The day of the Xid facts."""
    return str(_shipped()["about"]["as_of"])
