"""Helpers for the checks: numeric versions, packages, holds, units."""

from __future__ import annotations

import re
from typing import Any

import pytest


def version(text: str) -> tuple[int, ...]:
    """The leading numbers: "510.47.03" → (510, 47, 3). Text would put 5.14 after 10.14."""
    result = re.match(r"\d+(?:\.\d+)*", text.strip())
    assert result, f"{text!r} is not a version"
    return tuple(int(part) for part in result.group().split("."))


def skip_in_lab(machine: dict[str, Any], expect: dict[str, Any], reason: str) -> None:
    """Skip a check of what only EC2 has; a container is a lab guest, whatever the target says."""
    if expect["target"] == "lab" or machine["boot"]["container"]:
        pytest.skip(reason)


def assert_seen(machine: dict[str, Any], kind: str) -> None:
    """The collector saw something of this kind; otherwise that something is absent says nothing."""
    found = machine[kind]
    assert any(found.values() if isinstance(found, dict) else found), f"no {kind} were seen at all"


def packages(machine: dict[str, Any], name: str) -> list[dict[str, str]]:
    """Every installed package of that name; several versions may be installed."""
    return [package for package in machine["now"]["packages"] if package["name"] == name]


def recorded(version_info: dict[str, Any], component: str) -> dict[str, Any]:
    """What the component's provisioner recorded at bake time."""
    result: dict[str, Any] = version_info["components"].get(component, {})
    assert result, f"{component}.sh left no record: it did not run, or an `exec` replaced it"
    return result


ARCHIVE = "/opt/kiln/modules"


def kind_of(module: dict[str, str]) -> str:
    """Which kind a driver's kernel module is: open or proprietary."""
    return "proprietary" if module["license"] == "NVIDIA" else "open"


def modules_in_place(machine: dict[str, Any]) -> list[dict[str, str]]:
    """What modprobe finds on the kernel that boots."""
    kernel = machine["baked"]["kernel"]["boots"]
    result = machine["now"]["modules"]
    return [m for m in result if m["kernel"] == kernel and not m["path"].startswith(ARCHIVE)]


def kept_modules(machine: dict[str, Any], name: str) -> list[dict[str, str]]:
    """The modules of a kind that are kept for the kernel that boots."""
    folder = f"{ARCHIVE}/{machine['baked']['kernel']['boots']}/{name}/"
    return [m for m in machine["now"]["modules"] if m["path"].startswith(folder)]


def assert_packages_at(
    machine: dict[str, Any], names: list[str], wanted: str, build: str = ""
) -> None:
    """Each of these packages is installed once, with exactly that upstream version."""
    assert names, "the provisioner recorded no package"
    for name in names:
        result = packages(machine, name)
        assert len(result) == 1, f"{name}: {len(result)} installed, one expected"
        assert result[0]["version"] == wanted, f"{name} is {result[0]['version']}, not {wanted}"
        assert build in result[0]["release"], (
            f"{name} {result[0]['release']} was not built for {build}"
        )


def assert_held(machine: dict[str, Any], names: list[str]) -> None:
    """Each of these packages is held at its installed version."""
    assert names, "the provisioner held nothing"
    held = set(machine["now"]["held"])
    for name in names:
        versions = {
            f"{name}-{p['version']}-{p['release']}"
            for p in packages(machine, name)
            if p["manager"] == "rpm"
        }
        # apt holds a name; yum and dnf lock name, version and release.
        assert name in held or versions & held, f"{name} is not held: an upgrade would move it"


def assert_enabled(machine: dict[str, Any], unit: str) -> None:
    """The unit exists and starts at boot."""
    facts = machine["units"].get(unit, {})
    assert facts.get("LoadState") == "loaded", f"{unit} is {facts.get('LoadState') or 'not found'}"
    assert facts["UnitFileState"] == "enabled", f"{unit} is {facts['UnitFileState']}, not enabled"


def assert_active(machine: dict[str, Any], unit: str) -> None:
    """The unit is active; a oneshot has succeeded and remains active."""
    facts = machine["units"].get(unit, {})
    state = f"{facts.get('ActiveState')} ({facts.get('SubState')})"
    assert facts.get("ActiveState") == "active", f"{unit} is {state}, not active"


def assert_not_started(machine: dict[str, Any], unit: str) -> None:
    """The unit did not start because of its condition, and nothing failed."""
    facts = machine["units"].get(unit, {})
    assert facts.get("ActiveState") == "inactive", f"{unit} is {facts.get('ActiveState')}"
    assert facts.get("ConditionResult") == "no", f"{unit} was not held back by its condition"


def csv_rows(machine: dict[str, Any], command: str) -> list[list[str]]:
    """The rows that nvidia-smi answered to a query, one for each GPU."""
    answer = machine["commands"][command]
    assert answer["rc"] == 0, f"nvidia-smi failed with {answer['rc']}: {answer['out'].strip()}"
    rows = [line.split(", ") for line in answer["out"].strip().splitlines()]
    assert rows, "nvidia-smi shows no GPU"
    return rows


def driver_errors(log: str) -> list[str]:
    """The lines of a kernel log in which a driver reports that it does not work."""
    wrong = (
        r"NVRM: (?:Xid|API mismatch|.*(?:RmInitAdapter|rm_init_adapter) failed|.*fallen off the bus"
        r"|.*probe routine failed|None of the NVIDIA devices)|SXid|Unknown symbol"
    )
    return [line for line in log.splitlines() if re.search(wrong, line)]


def bus_bandwidth(shown: str) -> float:
    """The average bus bandwidth in GB/s, as nccl-tests print it."""
    found = re.search(r"Avg bus bandwidth *: *([\d.]+)", shown)
    assert found, f"nccl-tests print no bandwidth: {shown[-2000:]}"
    return float(found.group(1))


def providers(shown: str) -> set[str]:
    """The libfabric providers that NCCL's plugin names in a log of NCCL_DEBUG=INFO.

    https://github.com/aws/aws-ofi-nccl src/nccl_ofi_net.cpp: "Selected provider is efa, fabric is
    efa-direct (found 4 nics)", before 1.14 "Selected Provider is efa (found 4 nics)".
    """
    return set(re.findall(r"NET/OFI Selected [Pp]rovider is ([\w;]+)", shown))


def unlinked_pairs(topology: str, count: int) -> list[str]:
    """Pairs of GPUs that `nvidia-smi topo -m` shows connected by something other than NVLink."""
    plain = re.sub(r"\x1b\[\d*m", "", topology)
    rows = [line.split("\t") for line in plain.splitlines() if re.match(r"GPU\d+\t", line)]
    assert len(rows) == count, f"nvidia-smi topo -m shows {len(rows)} GPUs, not {count}"
    return [
        f"{row[0]}-GPU{number}: {cell.strip()}"
        for row in rows
        for number, cell in enumerate(row[1 : count + 1])
        if cell.strip() != "X" and not cell.strip().startswith("NV")
    ]


def nvidia_smi(machine: dict[str, Any]) -> list[dict[str, str]]:
    """An entry for each GPU that nvidia-smi lists."""
    answer = machine["commands"]["nvidia-smi"]
    assert answer["rc"] == 0, f"nvidia-smi failed with {answer['rc']}: {answer['out'].strip()}"
    keys = ("index", "name", "uuid", "driver_version", "bus_id", "persistence_mode", "mig")
    rows = [line.split(", ") for line in answer["out"].strip().splitlines()]
    return [dict(zip(keys, row, strict=True)) for row in rows]
