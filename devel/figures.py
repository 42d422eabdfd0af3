"""What every bench has: a figure, the row that is built, a command's seconds, the load."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kiln.base.errors import operation_failed
from kiln.base.paths import ROOT

# The row whose warm build is timed: the first in the README.
DISTRO, DRIVER = "al2", "510.47.03"


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
    """What the figures depend on; `load_1m` is the load average of the last minute."""
    return {
        "cpus": os.cpu_count(),
        **speed(),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def speed() -> dict[str, float]:
    """How fast the machine is now: its load, and a fixed loop's CPU time in milliseconds.

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
