"""`./invoke bench --first`: the first build in a fresh clone.

It starts without files of AMI Kiln, with the exceptions named here.

Cold: the clone (no .venv), the home folder (no cache of pip or uv), the lab's state (no keys, root
filesystems or packages). Not cold: system packages that this machine already has, apt's lists, and
the kernel's page cache; the output names the packages. docs/bench.md explains the figures.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from devel.figures import DISTRO, DRIVER, Figure, require, timed
from kiln.base import needs
from kiln.base.errors import KilnError
from kiln.base.paths import ROOT
from lab import host
from lab.rootfs import tree

# An index that no other lab uses; its state is deleted afterwards.
_INDEX = "49"
_GROUPS = ("packer", "ssh", "lab")


def figures() -> list[Figure]:
    """The first build of HEAD, or the reason why it failed."""
    host.can_run()
    missing = {need.package for need in needs.missing(*_GROUPS)}
    state = f"not installed before: {', '.join(sorted(missing))}" if missing else "all installed"
    print(
        "cold: clone, .venv, home folder, caches of pip and uv, state of the lab\n"
        f"not cold: apt's lists, page cache, system packages ({state})",
        file=sys.stderr,
    )
    try:
        return first_run()
    except KilnError as error:
        return [Figure("first run", None, "s", note=error.message)]


def first_run() -> list[Figure]:
    """Clone HEAD, make its .venv and build an AMI in a new lab; wall-clock and CPU seconds.

    Raises KilnError (exit status 1) when a step fails. Nothing is left behind.
    """
    with tempfile.TemporaryDirectory(prefix="kiln-first-", dir="/var/tmp") as folder:
        clone, state = Path(folder, "clone"), Path(folder, "state")
        home = Path(folder, "home")
        home.mkdir()
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
        environment = cold_environment(home, state)
        invoke = str(clone / "invoke")
        steps = {}
        try:
            steps[".venv"] = _step([invoke, "--version"], clone, environment)
            build = [invoke, "build", "--distro", DISTRO, "--driver", DRIVER, "--target", "lab"]
            steps["build"] = _step([*build, "--json"], clone, environment)
            (record,) = (state.parent / "build").glob("*/*/record.json")
            seconds = json.loads(record.read_text())["seconds"]
        finally:
            with contextlib.suppress(KilnError):
                _step([invoke, "lab.down"], clone, environment)
            for root in (state / "bases").glob(".making-*"):
                tree.delete(root)
    wall = sum(step[0] for step in steps.values())
    cpu = sum(step[1] for step in steps.values())
    stages = ", ".join(f"{stage} {spent:.1f}" for stage, spent in seconds.items())
    return [
        Figure("first run", round(wall, 1), "s", note=stages),
        Figure("  .venv and the start", round(steps[".venv"][0], 1), "s"),
        Figure("  CPU time", round(cpu, 1), "s", note="user and system, without the lab's server"),
    ]


def _step(argv: list[str], clone: Path, environment: dict[str, str]) -> tuple[float, float]:
    """Wall-clock and CPU seconds of a command. Raises KilnError when it fails."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds, done = timed(argv, cwd=clone, environment=environment, inherit=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    require(done.returncode == 0, done)
    return seconds, after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def cold_environment(home: Path, state: Path) -> dict[str, str]:
    """This process's environment without AWS, caches and settings of this checkout."""
    own = ("AWS_", "KILN_", "UV_", "VIRTUAL_ENV", "PYTHON", "XDG_")
    dropped = {"PIP_CACHE_DIR", "PIP_REQUIRE_VIRTUALENV"}
    kept = {
        name: text
        for name, text in os.environ.items()
        if not name.startswith(own) and name not in dropped
    }
    # Without the machine's AWS credentials: the build is the lab's.
    return {
        **kept,
        "HOME": str(home),
        "KILN_LAB_STATE": str(state),
        "KILN_LAB_INDEX": _INDEX,
        "KILN_BUILD_DIR": str(state.parent / "build"),
    }
