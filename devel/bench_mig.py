"""The cost of gpu-mig on the lab's stand-in nvidia-smi: number of commands, and milliseconds.

The numbers of commands are the same on a real GPU. The times include the stand-in instead of the
driver, so they are an upper limit of gpu-mig's own time.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from kiln.base.errors import operation_failed
from kiln.base.paths import RUNTIME
from kiln.mig import plan_layout

GPU_MIG = RUNTIME / "usr" / "local" / "bin" / "gpu-mig"
TARGETS = {
    "plan_8_gpus_ms": 100,
    "boot_nothing_selected_ms": 150,
    "boot_gpu_without_mig_ms": 150,
    "boot_as_selected_ms": 150,
    "noop_queries": 1,
    "noop_with_room_queries": 3,  # a single query may not show every slice
    "noop_changing_commands": 0,
    "slices_56_changing_commands": 55,  # fewer than one process per slice
}


def bench(repeat: int = 7) -> dict[str, Any]:
    """`measured` and `targets` by name; `missed` has the names above their target.

    Raises operation_failed without root: like the real tool, the stand-in requires it.
    """
    if os.geteuid() != 0:
        raise operation_failed("bench mig needs root: only root may change MIG")
    measured: dict[str, Any] = {"plan_8_gpus_ms": _plan_ms(repeat)}
    with tempfile.TemporaryDirectory(prefix="kiln-bench-mig-") as folder:
        p4d = _machine(Path(folder) / "p4d", "p4d.24xlarge")
        measured["boot_nothing_selected_ms"] = _boot_ms(p4d, repeat)
        g5 = _machine(Path(folder) / "g5", "g5.xlarge", "all-balanced")
        measured["boot_gpu_without_mig_ms"] = _boot_ms(g5, repeat)
        began = time.perf_counter()
        first = _gpu_mig(p4d, "apply", "all-1g.5gb")
        measured["slices_56_ms"] = _ms(time.perf_counter() - began)
        measured["slices_56_commands"] = len(first["commands"])
        measured["slices_56_changing_commands"] = _changing(first)
        began = time.perf_counter()
        second = _gpu_mig(p4d, "apply", "all-1g.5gb")
        measured["noop_ms"] = _ms(time.perf_counter() - began)
        measured["noop_queries"] = len(second["commands"])
        measured["noop_changing_commands"] = _changing(second)
        _gpu_mig(p4d, "apply", "all-2g.10gb")
        room = _gpu_mig(p4d, "apply", "all-2g.10gb")
        measured["noop_with_room_queries"] = len(room["commands"])
        _gpu_mig(p4d, "apply", "all-disabled")
        _select(p4d, "all-disabled")
        measured["boot_as_selected_ms"] = _boot_ms(p4d, repeat)
    missed = [name for name, limit in TARGETS.items() if measured[name] > limit]
    return {"measured": measured, "targets": TARGETS, "missed": missed}


def bench_text(result: dict[str, Any]) -> str:
    """A line per figure, with its target where it has one."""
    lines = []
    for name, value in result["measured"].items():
        target = result["targets"].get(name)
        bound = "" if target is None else f"  (at most {target})"
        lines.append(f"{name:32} {value:>8g}{bound}")
    return "\n".join([*lines, f"missed: {', '.join(result['missed']) or 'none'}"])


def _plan_ms(repeat: int) -> float:
    want = "1g.5gb=5,1g.10gb=4,2g.10gb=5,3g.20gb=4,4g.20gb=2,7g.40gb=1"
    plan_layout("p4d.24xlarge", want)  # reads the facts, once per process
    return _median(lambda: plan_layout("p4d.24xlarge", want), repeat)


def _boot_ms(machine: Path, repeat: int) -> float:
    """The time of the unit's command, which has no --json."""
    return _median(lambda: _run(machine, "apply", "--boot"), repeat)


def _median(work: Any, repeat: int) -> float:
    times = []
    for _ in range(repeat):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return _ms(statistics.median(times))


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 1)


def _changing(answer: dict[str, Any]) -> int:
    """The number of commands that change something: all but queries and listings."""
    reading = ("--query-", "-q -x", "-lgi", "-lci")
    commands = [" ".join(command["argv"]) for command in answer["commands"]]
    return sum(not any(option in command for option in reading) for command in commands)


def _machine(root: Path, instance_type: str, label: str = "") -> Path:
    """A root directory with gpu-mig's files and the stand-in nvidia-smi of an instance type."""
    from lab.standins.nvidia_smi import install

    install.lay_down(root)
    files = {
        "var/lib/kiln-lab/driver.json": json.dumps({"version": "580.105.08", "cuda": "13.0"}),
        "etc/kiln-lab/instance.json": json.dumps(
            {"instance_type": instance_type, "instance_id": "i-bench"}
        ),
        "etc/kiln/mig-config.yaml": (RUNTIME / "etc/kiln/mig-config.yaml").read_text(),
        "bin/nvidia-smi": install.LAUNCHER.format(
            folder=f"{root}{install.LIB.rsplit('/', 1)[0]}", module="main", function="main"
        ),
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    (root / "bin/nvidia-smi").chmod(0o755)
    _select(root, label)
    return root


def _select(root: Path, label: str) -> None:
    (root / "etc/default").mkdir(parents=True, exist_ok=True)
    (root / "etc/default/gpu-mig").write_text(f"MIG_CONFIG={label}\nMIG_IMDS=no\n")


def _gpu_mig(machine: Path, *arguments: str) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(_run(machine, *arguments, "--json"))
    return answer


def _run(machine: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-IS", str(GPU_MIG), *arguments],
        env={
            "PATH": f"{machine}/bin:/usr/bin:/bin",
            "GPU_MIG_ROOT": str(machine),
            "KILN_LAB_ROOT": str(machine),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise operation_failed(f"gpu-mig {' '.join(arguments)} failed", hint=done.stderr.strip())
    return done.stdout
