"""A guest's root folder with the stand-ins laid down, driven as a program would drive them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from lab.vendors.standins.nvidia_smi import install
from tests import standins

DATA = Path(__file__).parents[2] / "data" / "nvidia-smi"


class Said(NamedTuple):
    """What a command printed and how it ended."""

    out: str
    code: int
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


class Guest:
    """One lab guest: an instance type, a driver, and the stand-ins."""

    def __init__(self, root: Path, instance_type: str, driver: str, **settings: Any) -> None:
        self.root = root
        self.python = settings.pop("python", sys.executable)
        standins.lay_down(root)
        folder = install.LIB.rsplit("/", 1)[0]
        for program in (root / "usr/bin").iterdir():  # the launchers name the guest's folder
            program.write_text(program.read_text().replace(folder, f"{root}{folder}"))
        identity = {"instance_id": settings.pop("instance_id", "i-1")}
        self.write("etc/kiln-lab/instance.json", {"instance_type": instance_type, **identity})
        installed = {"version": driver, "kernel_module": "open", "cuda": "13.0"}
        self.write("var/lib/kiln-lab/driver.json", installed)
        self.euid = settings.pop("euid", 0)
        assert not settings, settings

    def write(self, path: str, value: Any) -> None:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(json.dumps(value))

    def faults(self, **faults: Any) -> None:
        self.write("etc/kiln-lab/nvidia-smi-faults.json", faults)

    def command(self, program: str) -> list[str]:
        """The program as laid down, run as its first line says, by the chosen Python."""
        return [self.python, "-S", "-E", "-I", str(self.root / "usr/bin" / program)]

    @property
    def env(self) -> dict[str, str]:
        return {**os.environ, "KILN_LAB_ROOT": str(self.root), "KILN_LAB_EUID": str(self.euid)}

    def run(self, program: str, *words: str) -> Said:
        command = [*self.command(program), *words]
        done = subprocess.run(
            command, check=False, env=self.env, capture_output=True, text=True, timeout=120
        )
        return Said(done.stdout, done.returncode, done.stderr)

    def smi(self, *words: str) -> Said:
        return self.run("nvidia-smi", *words)

    def ok(self, *words: str) -> str:
        output = self.smi(*words)
        assert output.code == 0, output
        return output.out

    def reboot(self) -> None:
        shutil.rmtree(self.root / "run", ignore_errors=True)

    @contextmanager
    def running(self, program: str, *words: str) -> Iterator[subprocess.Popen[str]]:
        """A program that stays up: the lab's `hold`, a daemon in the foreground."""
        command = [*self.command(program), *words]
        process = subprocess.Popen(command, env=self.env, stdout=subprocess.PIPE, text=True)
        try:
            yield process
        finally:
            process.terminate()
            process.wait(60)

    @contextmanager
    def work(self, *gpus: int) -> Iterator[int]:
        """A program that works on these GPUs (all without one)."""
        with self.running("kiln-lab-gpu", "hold", *map(str, gpus)) as process:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("holding")
            yield process.pid


def until(condition: Any, seconds: float = 60) -> None:
    """Wait for a condition; fail when it does not come."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "did not happen"
        time.sleep(0.02)
