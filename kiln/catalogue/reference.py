"""Pages to look things up in: what GPUs can be cut into, what an Xid means and what to do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from typing import Any

from kiln import facts
from kiln.mig.plan import draw_svg, plan_layout
from kiln.mig.profiles import profiles_for
from kiln.xid.catalogue import CATALOGUE


@cache
def mig_gpus() -> list[dict[str, Any]]:
    """Every GPU with MIG that an instance type has: as `profiles_for` describes it, its `types`
    (the one with most GPUs last), `most` slices, `pictures` as file and what it shows."""
    by_gpu: dict[str, dict[str, Any]] = {}
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
    return list(by_gpu.values())


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
    """The pictures of mig.plan for each type."""
    return tuple(_pictures())


def _pictures() -> Iterator[tuple[str, str]]:
    for gpu in mig_gpus():
        largest = gpu["types"][-1]["instance_type"]
        yield gpu["pictures"][0][0], draw_svg(plan_layout(largest, gpu["want"]))


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
