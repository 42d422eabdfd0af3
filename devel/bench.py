"""`./invoke bench`: the pipeline's speed, as ratios and differences measured in one run.

The figures depend on the machine's load, so take them on an idle machine; no test asserts them.
CONTRIBUTING.md explains each.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kiln.base import needs
from kiln.base.errors import KilnError, operation_failed
from kiln.base.paths import ROOT, packer_dir
from kiln.base.progress import Progress
from kiln.cli.output import log, output, table
from kiln.matrix import flags, load
from kiln.packer import program
from lab.base import settings
from lab.daemon import host
from lab.target import LabTarget

if TYPE_CHECKING:
    from rich.table import Table

# The row whose warm build is timed: the first in the README.
DISTRO, DRIVER = "al2", "510.47.03"
# An index that no other lab uses; its state is deleted afterwards.
_INDEX = "49"
INVOKE = str(ROOT / "invoke")
LIST_AIM = 1.5
VALIDATE_AIM = 1.2
TOTAL_AIM_S = 30.0
ADDED_AIM_S = 2.5
# Stages that are not the pipeline's own work.
_OTHERS = ("lab", "packer build", "boot the AMI", "checks")


@dataclass(frozen=True)
class Figure:
    """A figure in `unit` (`x` is a ratio, `s` seconds); `aim` is the upper limit for it.

    `value` is None when it was not measured. `note` says why, or else how it is composed.
    """

    what: str
    value: float | None
    unit: str
    aim: float | None = None
    note: str = ""

    @property
    def verdict(self) -> str:
        """`met`, `missed`, `not measured`, or empty where there is no aim."""
        if self.value is None:
            return "not measured"
        if self.aim is None:
            return ""
        return "met" if self.value <= self.aim else "missed"


def run(*, first: bool = False) -> int:
    """Measure the pipeline, or the `first` build in a fresh clone, and print the figures.

    The exit status is 1 when a figure could not be measured. Raises KilnError (exit status 1) where
    the first build cannot run.
    """
    about = machine()
    figures = first_figures() if first else pipeline()
    about |= {f"{name}_after": value for name, value in speed().items()}
    measured = [{**asdict(figure), "verdict": figure.verdict} for figure in figures]
    machine_text = ", ".join(f"{name} {value}" for name, value in about.items())
    output({"machine": about, "figures": measured}, _table(figures), machine_text)
    return int(any(figure.value is None for figure in figures))


def pipeline() -> list[Figure]:
    """Return all figures; one that cannot be measured here has the reason as its note."""
    measures: dict[str, Callable[[], list[Figure]]] = {
        "./invoke --list": list_figures,
        "validate": validate_figures,
        "warm lab build": build_figures,
    }
    figures = []
    for what, measure in measures.items():
        log(f"measuring: {what}")
        try:
            figures += measure()
        except KilnError as error:
            figures.append(Figure(what, None, "", note=error.message))
    return figures


def list_figures(runs: int = 9) -> list[Figure]:
    """Measure `./invoke --list` and Invoke alone on an empty tasks file, alternating; medians."""
    times: list[tuple[float, float]] = []
    with tempfile.TemporaryDirectory(prefix="kiln-bench-") as folder:
        Path(folder, "tasks.py").touch()
        for _ in range(runs + 1):
            ours, done = timed([INVOKE, "--list"])
            require(done.returncode == 0, done)
            bare, done = timed([sys.executable, "-m", "invoke", "--list"], cwd=folder)
            # Its exit status is 1, because there are no tasks to list.
            require("No tasks found" in done.stdout + done.stderr, done)
            times.append((ours, bare))
    # The first round only warms the caches.
    ours, bare = map(statistics.median, zip(*times[1:], strict=True))
    note = f"{ours * 1000:.0f} ms / {bare * 1000:.0f} ms"
    what = "./invoke --list / bare invoke --list"
    return [Figure(what, round(ours / bare, 2), "x", LIST_AIM, note)]


def validate_figures(rounds: int = 2) -> list[Figure]:
    """Measure `./invoke validate` and Packer alone for each row, alternating."""
    packer, recipes = program.find_packer(), load.load_recipes()
    whole, alone = [], []
    for _ in range(rounds):
        seconds, done = timed([INVOKE, "validate", "--no-install", "--json"])
        require(done.returncode == 0, done)
        whole.append(seconds)
        for recipe in recipes:
            argv = program.command(packer, "validate", variables=program.EXAMPLE_VARIABLES)
            folder, quiet = packer_dir() / recipe.line, {"CHECKPOINT_DISABLE": "1"}
            seconds, done = timed(argv, cwd=folder, environment=quiet)
            require(done.returncode == 0, done)
            alone.append(seconds)
    rows, cores = len(recipes), os.cpu_count() or 1
    mean, row = statistics.mean(whole), statistics.mean(alone)
    note = f"{mean:.1f} s / ({row:.2f} s × {rows} ÷ {cores})"
    what = "validate / (packer validate × rows ÷ cores)"
    return [Figure(what, round(mean / (row * rows / cores), 2), "x", VALIDATE_AIM, note)]


def build_figures() -> list[Figure]:
    """A warm lab build by `./invoke build`, split by its record."""
    (recipe,) = flags.select(load.load_recipes(), distro=DISTRO, driver=DRIVER)
    # Warm means: the lab is up and has the row's root filesystem and downloads.
    target = LabTarget("a bench", endpoint=settings.current().endpoint)
    argv = [INVOKE, "build", "--name", recipe.name, "--target", "lab", "--no-install", "--json"]
    with target.hooks.prepared("a bench", [recipe], Progress()):
        total, done = timed(argv)
    require(done.returncode == 0, done)
    (record,) = json.loads(done.stdout)
    path = Path(record["folder"], "record.json")
    shown = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
    return split(total, record["seconds"], str(shown))


def split(total: float, seconds: Mapping[str, float], record: str) -> list[Figure]:
    """Split the `total` seconds of a build by its record's `seconds`."""
    own = {stage: spent for stage, spent in seconds.items() if stage not in _OTHERS}
    added = total - sum(seconds[stage] for stage in _OTHERS)
    own["start, plan, record"] = added - sum(own.values())
    return [
        Figure("warm lab build", round(total, 1), "s", TOTAL_AIM_S, record),
        Figure("  packer build", round(seconds["packer build"], 1), "s", note="see packer.log"),
        Figure("  boot of the AMI", round(seconds["boot the AMI"], 1), "s"),
        Figure("  checks", round(seconds["checks"], 1), "s"),
        Figure("  lab", round(seconds["lab"], 1), "s", note="checks that it is up and complete"),
        Figure(
            "  added by the pipeline",
            round(added, 1),
            "s",
            ADDED_AIM_S,
            ", ".join(f"{stage} {spent:.1f}" for stage, spent in own.items()),
        ),
    ]


def _table(figures: list[Figure]) -> Table:
    rows = []
    for figure in figures:
        value = "" if figure.value is None else f"{figure.value:g} {figure.unit}"
        aim = "" if figure.aim is None else f"≤ {figure.aim:g} {figure.unit}"
        rows.append((figure.what, value, aim, figure.verdict, figure.note))
    return table(("what", "figure", "aim", "", "of what"), rows)


def first_figures() -> list[Figure]:
    """The first build of HEAD, or the reason why it failed."""
    host.can_run()
    missing = {need.package for need in needs.missing("packer", "ssh", "lab")}
    state = f"not installed before: {', '.join(sorted(missing))}" if missing else "all installed"
    log("cold: clone, .venv, home folder, caches of pip and uv, state of the lab")
    log(f"not cold: apt's lists, page cache, system packages ({state})")
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
                _step([invoke, "lab.clean", "--all"], clone, environment)
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


def timed(
    argv: list[str],
    *,
    cwd: Path | str = ROOT,
    environment: Mapping[str, str] | None = None,
    inherit: bool = True,
) -> tuple[float, subprocess.CompletedProcess[str]]:
    """Run a command; returns its wall-clock seconds and its output.

    `environment` is added to this process's, or replaces it when `inherit` is false.
    On Ctrl-C the command gets SIGTERM and unlimited time to clean up.
    """
    began = time.perf_counter()
    with subprocess.Popen(
        argv,
        cwd=cwd,
        env={**(os.environ if inherit else {}), **(environment or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # or it would get the terminal's SIGINT as well as our SIGTERM
    ) as process:
        try:
            out, err = process.communicate()
        except KeyboardInterrupt:
            process.terminate()
            process.communicate()
            raise
    seconds = time.perf_counter() - began
    return seconds, subprocess.CompletedProcess(argv, process.returncode, out, err)


def machine() -> dict[str, Any]:
    """Return the machine's facts that figures depend on; `load_1m` is the load average of the last
    minute."""
    return {
        "cpus": os.cpu_count(),
        **speed(),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def speed() -> dict[str, float]:
    """Return how fast the machine is now: its load, and a fixed loop's CPU time in milliseconds.

    A virtual machine has half its speed at times, which neither its load nor the CPU time shows.
    """
    started = time.process_time()
    texts = {}
    for number in range(500_000):
        texts[number % 1000] = str(number)
    loop = (time.process_time() - started) * 1000
    return {"load_1m": round(os.getloadavg()[0], 2), "loop_ms": round(loop)}


def require(fine: bool, done: subprocess.CompletedProcess[str]) -> None:
    """Raise operation_failed with the command's error, unless `fine`."""
    if not fine:
        output = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        errors = [line for line in output if line.startswith("error:")] or output[-1:]
        reason = errors[0] if errors else "no output"
        raise operation_failed(f"{Path(done.args[0]).name} {done.args[1]} failed: {reason}")
