"""`./invoke bench`: the pipeline's speed, as ratios and differences measured in one run.

The figures depend on the machine's load, so take them on an idle machine; no test asserts them.
docs/bench.md explains each.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from devel.figures import DISTRO, DRIVER, Figure, machine, require, speed, timed
from kiln.base import needs
from kiln.base.errors import KilnError, operation_failed
from kiln.base.paths import ROOT, packer_dir
from kiln.base.progress import Progress
from kiln.cli.output import output, table
from kiln.matrix import flags, load
from kiln.packer import program
from lab import host, settings
from lab.target import LabTarget

if TYPE_CHECKING:
    from rich.table import Table

INVOKE = str(ROOT / "invoke")
LIST_AIM = 1.5
VALIDATE_AIM = 1.2
TOTAL_AIM_S = 30.0
ADDED_AIM_S = 2.5
# Stages that are not the pipeline's own work.
_OTHERS = ("lab", "packer build", "boot the AMI", "checks")
# Messages of Packer's amazon-ebs builder: the build instance starts, answers, is stopped.
_MARKS = ("Launching a source AWS instance", "Connected to SSH!", "Stopping the source instance")


def run(*, first: bool = False) -> int:
    """Measure the pipeline, or the `first` build in a fresh clone, and print the figures.

    The exit status is 1 when a figure could not be measured. Raises KilnError (exit status 1) where
    the first build cannot run.
    """
    about = machine()
    if first:
        from devel import bench_first

        figures = bench_first.figures()
    else:
        figures = pipeline()
    about |= {f"{name}_after": value for name, value in speed().items()}
    measured = [{**asdict(figure), "verdict": figure.verdict} for figure in figures]
    machine_text = ", ".join(f"{name} {value}" for name, value in about.items())
    output({"machine": about, "figures": measured}, _table(figures), machine_text)
    return int(any(figure.value is None for figure in figures))


def pipeline() -> list[Figure]:
    """All figures of the pipeline; one that cannot be measured here has the reason as its note."""
    parts: tuple[tuple[str, str, Callable[[], list[Figure]]], ...] = (
        ("./invoke --list", "x", list_figures),
        ("validate", "x", validate_figures),
        ("warm lab build", "s", build_figures),
    )
    figures = []
    for what, unit, measure in parts:
        print(f"measuring: {what}", file=sys.stderr)
        try:
            figures += measure()
        except KilnError as error:
            figures.append(Figure(what, None, unit, note=error.message))
    return figures


def list_figures(runs: int = 9) -> list[Figure]:
    """`./invoke --list` and Invoke alone on an empty tasks file, alternating; medians."""
    ours, bare = [], []
    with tempfile.TemporaryDirectory(prefix="kiln-bench-") as folder:
        Path(folder, "tasks.py").touch()
        for _ in range(runs + 1):
            seconds, done = timed([INVOKE, "--list"])
            require(done.returncode == 0, done)
            ours.append(seconds)
            seconds, done = timed([sys.executable, "-m", "invoke", "--list"], cwd=folder)
            # Its exit status is 1, because there are no tasks to list.
            require("No tasks found" in done.stdout + done.stderr, done)
            bare.append(seconds)
    # The first round only warms the caches.
    return [list_figure(statistics.median(ours[1:]), statistics.median(bare[1:]))]


def list_figure(ours: float, bare: float) -> Figure:
    """The ratio of two start-up times, given in seconds."""
    note = f"{ours * 1000:.0f} ms / {bare * 1000:.0f} ms"
    return Figure(
        "./invoke --list / bare invoke --list", round(ours / bare, 2), "x", LIST_AIM, note
    )


def validate_figures(rounds: int = 2) -> list[Figure]:
    """`./invoke validate` and Packer alone for each row, alternating."""
    packer = program.find_packer()
    recipes = load.load_recipes()
    whole, alone = [], []
    for _ in range(rounds):
        seconds, done = timed([INVOKE, "validate", "--no-install", "--json"])
        require(done.returncode == 0, done)
        whole.append(seconds)
        for recipe in recipes:
            argv = program.command(packer, "validate", variables=program.EXAMPLE_VARIABLES)
            seconds, done = timed(
                argv, cwd=packer_dir() / recipe.line, environment={"CHECKPOINT_DISABLE": "1"}
            )
            require(done.returncode == 0, done)
            alone.append(seconds)
    cores = os.cpu_count() or 1
    mean = statistics.mean(alone)
    return [validate_figure(statistics.mean(whole), mean, len(recipes), cores)]


def validate_figure(whole: float, row_s: float, rows: int, cores: int) -> Figure:
    """`whole` seconds for all rows / (`row_s` seconds of Packer for a row × rows ÷ cores)."""
    return Figure(
        "validate / (packer validate × rows ÷ cores)",
        round(whole / (row_s * rows / cores), 2),
        "x",
        VALIDATE_AIM,
        f"{whole:.1f} s / ({row_s:.2f} s × {rows} ÷ {cores})",
    )


def build_figures() -> list[Figure]:
    """A warm lab build by `./invoke build`, split by its record and Packer's log."""
    host.can_run()
    missing = [need.package for need in needs.missing("packer", "ssh", "lab")]
    if missing:
        raise operation_failed(f"not installed: {', '.join(missing)}")
    (recipe,) = flags.select(load.load_recipes(), distro=DISTRO, driver=DRIVER)
    # Warm means: the lab is up and has the row's root filesystem and downloads.
    target = LabTarget("a bench", endpoint=settings.current().endpoint)
    target.hooks.prepare([recipe], Progress(), install=False, own_kernel=False)
    argv = [INVOKE, "build", "--name", recipe.name, "--target", "lab", "--no-install", "--json"]
    total, done = timed(argv)
    require(done.returncode == 0, done)
    (record,) = json.loads(done.stdout)
    log = Path(record["folder"], "packer.log").read_text(encoding="utf-8")
    path = Path(record["folder"], "record.json")
    shown = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
    return split(total, record["seconds"], log, str(shown))


def split(total: float, seconds: Mapping[str, float], log: str, record: str) -> list[Figure]:
    """Split the `total` seconds of a build by its record's `seconds` and the text of packer.log."""
    own = {stage: spent for stage, spent in seconds.items() if stage not in _OTHERS}
    added = total - sum(seconds[stage] for stage in _OTHERS)
    own["start, plan, record"] = added - sum(own.values())
    boot, provisioners = phases(log)
    packer_s = seconds["packer build"]
    return [
        Figure("warm lab build", round(total, 1), "s", TOTAL_AIM_S, record),
        Figure("  packer build", round(packer_s, 1), "s"),
        Figure("    boot of the build instance", boot, "s", note="packer.log, whole seconds"),
        Figure("    provisioners", provisioners, "s", note="reboot into the kernel included"),
        Figure("    image, Packer itself", round(packer_s - boot - provisioners, 1), "s"),
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


def phases(log: str) -> tuple[int, int]:
    """Seconds from launch to SSH and from there to the end of provisioning, from packer.log.

    Raises operation_failed when the log does not contain a message of _MARKS.
    """
    moments = []
    for mark in _MARKS:
        match = re.search(rf"^(\d\d):(\d\d):(\d\d) .*{re.escape(mark)}", log, re.MULTILINE)
        if not match:
            raise operation_failed(f"packer.log does not contain {mark!r}")
        hours, minutes, rest = map(int, match.groups())
        moments.append(hours * 3600 + minutes * 60 + rest)
    launched, connected, stopping = moments
    # The log has no dates: a build may run past midnight.
    return (connected - launched) % 86400, (stopping - connected) % 86400


def _table(figures: list[Figure]) -> Table:
    rows = []
    for figure in figures:
        value = "" if figure.value is None else f"{figure.value:g} {figure.unit}"
        aim = "" if figure.aim is None else f"≤ {figure.aim:g} {figure.unit}"
        rows.append((figure.what, value, aim, figure.verdict, figure.note))
    return table(("what", "figure", "aim", "", "of what"), rows)
