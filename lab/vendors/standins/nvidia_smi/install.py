"""Installs the stand-ins: `payload()` returns every file of a guest with its content and mode.

The programs are copied unchanged. Their data is composed here as JSON, from this folder's data
files and the facts about MIG and instance types, so that a guest needs no YAML.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from kiln.base import yaml_files
from kiln.base.paths import KNOWLEDGE
from kiln.facts import instances

HERE = Path(__file__).parent
LIB = "/usr/lib/kiln-lab/nvidia_smi"
LAUNCHER = """#!/usr/bin/python3 -SEI
# AMI Kiln lab stand-in. No NVIDIA software; never on an AMI that leaves the lab.
import sys
sys.path.insert(0, {folder!r})
from nvidia_smi.{module} import {function}
sys.exit({function}(sys.argv[1:]))
"""
# Path in the guest → module and function of the program.
PROGRAMS = {
    "/usr/bin/nvidia-smi": ("main", "main"),
    "/usr/bin/nvidia-persistenced": ("daemons", "persistenced"),
    "/usr/bin/nv-fabricmanager": ("daemons", "fabricmanager"),
    "/usr/bin/nvidia-fabricmanager-start.sh": ("fabric", "start"),
    "/usr/bin/nvidia-modprobe": ("daemons", "modprobe"),
    "/usr/bin/kiln-lab-gpu": ("daemons", "handle"),
}


@dataclass(frozen=True)
class GuestFile:
    """A file to install: its content and mode (such as 0o755)."""

    content: bytes
    mode: int


@cache
def payload() -> Mapping[str, GuestFile]:
    """Absolute path in the guest → file, for all stand-ins; composed once in a process.

    The driver's version is not part of it: the package that installs a driver writes
    /var/lib/kiln-lab/driver.json, such as {"version": "510.47.03", "kernel_module": "proprietary",
    "cuda": "11.6"}.
    """
    folder = LIB.rsplit("/", 1)[0]
    files = {
        path: GuestFile(
            LAUNCHER.format(folder=folder, module=module, function=function).encode(), 0o755
        )
        for path, (module, function) in PROGRAMS.items()
    }
    for source in sorted((HERE / "smi").glob("*.py")):
        files[f"{LIB}/{source.name}"] = GuestFile(source.read_bytes(), 0o644)
    for name, value in compose().items():
        content = json.dumps(value, separators=(",", ":")).encode()
        files[f"{LIB}/data/{name}.json"] = GuestFile(content, 0o644)
    return MappingProxyType(files)


def compose() -> dict[str, Any]:
    """The data files: machines (models, MIG facts), reset_clients, attributes, query_fields."""
    models = _yaml(HERE / "data" / "models.yaml")["models"]
    mig = _yaml(KNOWLEDGE / "mig.yaml")
    by_name = {gpu["gpu"]: _mig_entry(gpu, mig) for gpu in mig["gpus"]}
    for model in models.values():
        model.pop("source", None)
        model.pop("unsure", None)
        model.pop("confirmed", None)
        if "mig" in model:
            model["mig_facts"] = by_name[model.pop("mig")]
    machines = _machines()
    for name, variant in _yaml(HERE / "data" / "addresses.yaml")["variants"].items():
        machines[name] = dict(machines[variant["like"]], gpu=variant["gpu"])
        text = json.dumps(models[machines[variant["like"]]["gpu"]])
        for old, new in variant["named"].items():
            text = text.replace(f".{old}", f".{new}")
        models[variant["gpu"]] = json.loads(text)
    return {
        "machines": {"models": models, "machines": machines},
        "reset_clients": {client["program"]: client["blocks"] for client in mig["reset_clients"]},
        "constants": _yaml(HERE / "data" / "constants.yaml")["values"],
        "attributes": _attributes((HERE / "data" / "attributes.txt").read_text(encoding="utf-8")),
        "query_fields": _fields((HERE / "data" / "query_fields.txt").read_text(encoding="utf-8")),
    }


def _machines() -> dict[str, Any]:
    """Instance type → GPU, PCI addresses, vCPUs, fabric, and the name of a fractional GPU."""
    families = _yaml(HERE / "data" / "addresses.yaml")["families"]
    out: dict[str, Any] = {}
    for name, entry in instances().items():
        count = max(entry.gpu_count, 1)
        out[name] = {
            "gpu": entry.gpu,
            "bus": _addresses(families, entry.family, count),
            "vcpus": entry.vcpus,
            "fabric": entry.nvswitch,
            "nvlsm": entry.nvlsm,
        }
        if entry.fractional:
            # The GRID driver names a slice of an L4 by its frame buffer in GB.
            out[name]["slice"] = [
                f"{entry.product}-{round(entry.gpu_memory_mib / 954)}Q", entry.gpu_memory_mib
            ]  # fmt: skip
    return out


def _addresses(families: dict[str, dict[int, list[str]]], family: str, count: int) -> list[str]:
    """The GPUs' PCI addresses; of a size that nobody has seen yet, the first ones of the family."""
    by_count = families.get(family, families["*"])
    if count in by_count:
        return by_count[count]
    largest: list[str] = max(by_count.values(), key=len)
    return (largest if count <= len(largest) else families["*"][16])[:count]


def _mig_entry(gpu: dict[str, Any], facts: dict[str, Any]) -> dict[str, Any]:
    profiles = []
    for number, profile in enumerate(gpu["profiles"]):
        entry = {key: value for key, value in profile.items() if key != "unsure"}
        if entry["id"] is None:
            entry["id"] = 100 + number  # not published: an id that no real profile has
        profiles.append(entry)
    return {
        "compute_slices": gpu["compute_slices"],
        "memory_slices": gpu["memory_slices"],
        "since_driver": gpu.get("since_driver", {}),
        "profiles": profiles,
        "compute_instance_profiles": facts["compute_instance_profiles"],
        "compute_instance_sizes": facts["compute_instance_sizes"],
    }


def _yaml(path: Path) -> dict[str, Any]:
    loaded = yaml_files.read_plain(path)
    assert isinstance(loaded, dict)  # noqa: S101 -- our own file
    return loaded


def _rows(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip() and not line.startswith("#")]


def _spans(text: str) -> list[list[int]]:
    """'535-575, 580.159-' -> [[535000, 575999], [580159, 9999999]]: branch and second number."""
    out = []
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        low, _, high = part.partition("-")
        out.append([_version(low or "0", 0), _version(high or "9999", 999)])
    return out


def _version(text: str, second: int) -> int:
    branch, _, minor = text.partition(".")
    return int(branch) * 1000 + int(minor or second)


def _attributes(text: str) -> list[list[Any]]:
    """data/attributes.txt as a tree of [tag, label, value, spans, prefix, flag, children]."""
    top: list[list[Any]] = []
    open_lists = [top]
    for line in _rows(text):
        depth = (len(line) - len(line.lstrip(" "))) // 2
        cells = [cell.strip() for cell in line.split("|")] + [""] * 6
        node: list[Any] = [cells[0], cells[1], cells[2], _spans(cells[3]), cells[4], cells[5], []]
        del open_lists[depth + 1 :]
        open_lists[depth].append(node)
        open_lists.append(node[6])
    return top


def _fields(text: str) -> list[list[Any]]:
    """data/query_fields.txt as [[names, unit, spans], ...]."""
    out = []
    for line in _rows(text):
        cells = [cell.strip() for cell in line.split("|")] + ["", ""]
        out.append([cells[0].split(), cells[1], _spans(cells[2])])
    return out
