"""A machine with the lab's stand-in nvidia-smi under a temporary root, for gpu-mig to work on.

`Machine.run` is gpu-mig's program in a fork of a small Python, in which nvidia-smi is called
instead of started; `Machine.start` starts both as programs. `InProcess` answers nvidia-smi's
commands in this process, for the tests that try thousands of layouts.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import io
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from importlib import import_module
from pathlib import Path
from typing import IO, Any
from unittest import mock

from kiln import facts
from kiln.base.paths import ROOT, RUNTIME, runtime_module
from kiln.mig import check
from kiln.mig.profiles import gpu_types
from lab.vendors.standins.nvidia_smi import install
from tests import standins

GPU_MIG = RUNTIME / "usr" / "local" / "bin" / "gpu-mig"
_smi = runtime_module("gpu_mig.smi")


SYSTEMCTL = """#!/bin/sh
# Test double: active units are files in $UNITS; every call is written down.
echo "$@" >> "$UNITS/.log"
verb=$1
shift
while [ "${1#--}" != "${1:-}" ]; do shift; done
case $verb in
  is-failed) test -e "$UNITS/failed-$1" ;;
  is-active|is-enabled) test -e "$UNITS/$1" ;;
  stop) for u; do rm -f "$UNITS/$u" "$UNITS/$u.service"; done ;;
  start) for u; do : > "$UNITS/$u"; done ;;
esac
"""


class Machine:
    """A booted machine of some instance type with a driver, its files under `root`."""

    def __init__(self, root: Path, instance_type: str, driver: str = "580.105.08") -> None:
        self.root = root
        standins.lay_down(root)
        self.write("/var/lib/kiln-lab/driver.json", json.dumps({"version": driver, "cuda": "13.0"}))
        self.write(
            "/etc/kiln-lab/instance.json",
            json.dumps({"instance_type": instance_type, "instance_id": "i-0test"}),
        )
        self.write("/etc/kiln/mig-config.json", (RUNTIME / "etc/kiln/mig-config.json").read_text())
        self.write("/etc/default/gpu-mig", "MIG_IMDS=no\n")
        self.write("/etc/machine-id", "0123456789abcdef\n")
        self.bin = root / "bin"
        self.bin.mkdir()
        self.units = root / "units"
        self.units.mkdir()
        (self.units / ".log").touch()
        self.launcher = install.LAUNCHER.format(
            folder=str(root / install.LIB.lstrip("/").rsplit("/", 1)[0]),
            module="main",
            function="main",
        ).replace("/usr/bin/python3", str(Path(sys.executable).resolve()), 1)
        self.program("nvidia-smi", self.launcher)
        self.program("systemctl", SYSTEMCTL)

    def write(self, path: str, text: str) -> Path:
        target = self.root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
        return target

    def program(self, name: str, text: str) -> None:
        (self.bin / name).write_text(text)
        (self.bin / name).chmod(0o755)

    def settings(self, **values: str) -> None:
        """Writes /etc/default/gpu-mig; IMDS is off unless it is named."""
        lines = {"MIG_IMDS": "no", **values}
        self.write("/etc/default/gpu-mig", "".join(f'{k}="{v}"\n' for k, v in lines.items()))

    def faults(self, **values: Any) -> None:
        """What the stand-in does wrong: see lab/vendors/standins/nvidia-smi.md."""
        self.write("/etc/kiln-lab/nvidia-smi-faults.json", json.dumps(values))

    def active(self, *units: str) -> None:
        for unit in units:
            (self.units / unit).touch()

    def systemctl_log(self) -> list[str]:
        return (self.units / ".log").read_text().splitlines()

    def env(self, **more: str) -> dict[str, str]:
        return {
            **os.environ,
            "PATH": f"{self.bin}:/usr/bin:/bin",
            "GPU_MIG_ROOT": str(self.root),
            "KILN_LAB_ROOT": str(self.root),
            "UNITS": str(self.units),
            "PYTHONDONTWRITEBYTECODE": "",
            **more,
        }

    def run(self, *args: str, kill_after: int = 0, **env: str) -> subprocess.CompletedProcess[str]:
        """gpu-mig with these arguments, in a fork: all that `start` does, without three Pythons.

        `kill_after`: it is killed right after that command to nvidia-smi.
        """
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            files = [f"/proc/{os.getpid()}/fd/{file.fileno()}" for file in (out, err)]
            status = _forks().call(self, args, files, kill_after, self.env(**env))
            for file in (out, err):
                file.seek(0)
            return subprocess.CompletedProcess(args, status, out.read(), err.read())

    def start(
        self,
        *args: str,
        python: str = sys.executable,
        stdout: int | IO[str] = subprocess.PIPE,
    ) -> subprocess.CompletedProcess[str]:
        """gpu-mig with these arguments, as a program that starts programs."""
        return subprocess.run(
            [python, str(GPU_MIG), *args],
            env=self.env(),
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=120,
        )

    def has(self, program: str, text: str) -> bool:
        """Whether that program is there with that text."""
        path = self.bin / program
        return path.is_file() and path.read_text() == text

    def json(self, *args: str, status: int = 0, **env: str) -> Any:
        """gpu-mig's JSON answer; the exit status is checked."""
        done = self.run(*args, "--json", **env)
        assert done.returncode == status, f"status {done.returncode}\n{done.stdout}\n{done.stderr}"
        return json.loads(done.stdout)

    def gate(self) -> str:
        """Why kiln-gpu-gate keeps this node out for its MIG layout; empty if it does not."""
        gate = runtime_module("gpu_boot.gate")
        with (
            mock.patch.object(gate, "MIG_RESULT", str(self.root / "run/gpu-mig/result.json")),
            mock.patch.object(gate, "MIG_UNIT", str(self.root)),
        ):
            try:
                gate._require_mig()
            except gate.ClosedError as error:
                return str(error)
        return ""

    def smi(self, *args: str) -> str:
        done = subprocess.run(
            [str(self.bin / "nvidia-smi"), *args],
            env=self.env(),
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        return done.stdout + done.stderr

    def journal(self) -> list[dict[str, Any]]:
        """Every nvidia-smi call so far: argv, exit, changes."""
        path = self.root / "run/kiln-lab/nvidia-smi.log"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def forget_journal(self) -> None:
        (self.root / "run/kiln-lab/nvidia-smi.log").unlink(missing_ok=True)

    def reboot(self) -> None:
        """/run is gone: instances, and the mode of Hopper and later; faults stay."""
        shutil.rmtree(self.root / "run", ignore_errors=True)

    def save(self, name: str) -> Path:
        """Keeps what the driver and gpu-mig hold, for `restore`."""
        kept = self.root / "kept" / name
        shutil.rmtree(kept, ignore_errors=True)
        for name in ("run", "var"):
            shutil.copytree(self.root / name, kept / name)
        return kept

    def restore(self, kept: Path) -> None:
        for name in ("run", "var"):
            shutil.rmtree(self.root / name, ignore_errors=True)
            shutil.copytree(kept / name, self.root / name)

    def slices(self) -> dict[int, list[str]]:
        """{GPU: profiles of its instances}, from the stand-in's own state."""
        return {
            n: sorted(i["profile"] for i in gpu["instances"]) for n, gpu in enumerate(self._gpus())
        }

    def in_mig(self) -> dict[int, tuple[bool, bool, list[str]]]:
        """{GPU: mode, mode pending, profiles}, from the same, for those that have any of it."""
        result = {
            n: (gpu["mig"], gpu["mig_pending"], sorted(i["profile"] for i in gpu["instances"]))
            for n, gpu in enumerate(self._gpus())
        }
        return {n: state for n, state in result.items() if any(state)}

    def _gpus(self) -> list[dict[str, Any]]:
        path = self.root / "run/kiln-lab/nvidia-smi/state.json"
        return list(json.loads(path.read_text()).values()) if path.exists() else []


class InProcess(_smi.Smi):  # type: ignore[misc, name-defined]
    """gpu-mig's Smi with the stand-in called in this process; `changes` counts what it changed."""

    def __init__(self) -> None:
        super().__init__()
        self.changes: list[list[str]] = []

    def installed(self) -> bool:
        return True

    def run(self, *args: object) -> tuple[int, str]:
        from lab.vendors.standins.nvidia_smi.smi import main

        words = [str(a) for a in args]
        try:
            (text, code), changed = main.command(words)
        except main.Stop as stop:
            text, code, changed = stop.text, stop.code, False
        self.journal.append({"argv": ["nvidia-smi", *words], "rc": code, "seconds": 0})
        if changed:
            self.changes.append(words)
        return code, text


class _Forks:
    """A Python that has imported gpu-mig and makes its forks, one at a time.

    It is small: a fork of the tests' process costs three times as much, for its memory is copied.
    """

    def __init__(self) -> None:
        program = (
            f"import sys; sys.path.insert(0, {str(ROOT)!r}); "
            "from tests.unit.mig import machine; machine.serve_forks()"
        )
        self._process = subprocess.Popen(
            [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def call(self, *arguments: Any) -> int:
        """`_become_gpu_mig` with these arguments in a fork; its exit status, negative if killed."""
        assert self._process.stdin and self._process.stdout
        pickle.dump(arguments, self._process.stdin)
        self._process.stdin.flush()
        return int(self._process.stdout.readline())


@functools.cache
def _forks() -> _Forks:
    return _Forks()


def serve_forks() -> None:
    """What `_Forks` runs, until the tests' process is gone."""
    _composed()
    gc.freeze()  # a fork that looks for garbage copies the pages of everything
    with contextlib.suppress(EOFError):
        while True:
            arguments = pickle.load(sys.stdin.buffer)
            child = os.fork()
            if child == 0:
                _become_gpu_mig(*arguments)
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            print(status, flush=True)


def _become_gpu_mig(
    machine: Machine,
    args: tuple[str, ...],
    outputs: list[str],
    kill_after: int,
    env: dict[str, str],
) -> None:
    """In the fork: gpu-mig's `main` with these arguments, until the end of the process."""
    status = 70
    try:
        os.environ.clear()
        os.environ.update(env)
        for descriptor, path in enumerate(["/dev/null", *outputs]):
            opened = os.open(path, os.O_RDWR | os.O_APPEND)
            os.dup2(opened, descriptor)
            os.close(opened)
        sys.stdout, sys.stderr = (
            open(descriptor, "w", closefd=False)  # noqa: SIM115 -- for the rest of the process
            for descriptor in (1, 2)
        )
        os.getppid = os.getpid  # nvidia-smi's parent, which a fault may kill, is this process
        with _at(machine.root):
            smi = runtime_module("gpu_common.nvidia_smi")
            smi.call = _instead(machine, smi.call, kill_after)
            status = runtime_module("gpu_mig.cli").main(list(args))
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        try:
            sys.stderr.flush()
        finally:
            os._exit(status)


def _instead(machine: Machine, real: Callable[..., Any], kill_after: int) -> Callable[..., Any]:
    """nvidia_smi.call, but for the stand-in, which is called here."""
    calls = 0

    def call(arguments: list[str], timeout_s: float, program: str) -> tuple[int, str]:
        nonlocal calls
        if program != "nvidia-smi" or not machine.has("nvidia-smi", machine.launcher):
            answer: tuple[int, str] = real(arguments, timeout_s, program)
            return answer
        from lab.vendors.standins.nvidia_smi.smi import main

        calls += 1
        with redirect_stderr(io.StringIO()) as err:
            text, status = main.once(list(arguments))
        if calls == kill_after:
            os.kill(os.getpid(), signal.SIGKILL)
        return status, text + err.getvalue()

    return call


def layouts(gpu: str, driver: str) -> tuple[list[dict[str, int]], list[dict[str, int]]]:
    """Every layout of a GPU with a driver, and the full ones: nothing can be added to them."""
    (known,) = (row for row in facts.table("mig")["gpus"] if row["gpu"] == gpu)
    since, branch = known.get("since_driver", {}), int(driver.partition(".")[0])
    names = [
        name for name in sorted(gpu_types()[gpu].profiles) if int(since.get(name, 0)) <= branch
    ]
    fits = list(check.all_layouts(gpu_types()[gpu], names))
    parts = {(*c[:i], c[i] - 1, *c[i + 1 :]) for c in fits for i in range(len(c))}

    def named(counts: tuple[int, ...]) -> dict[str, int]:
        return {name: n for name, n in zip(names, counts, strict=True) if n}

    return list(map(named, fits)), [named(counts) for counts in fits if counts not in parts]


@contextmanager
def in_process(
    root: Path, instance_type: str, gpus: int = 2, driver: str = "580.105.08"
) -> Iterator[InProcess]:
    """An InProcess on a machine whose stand-in has no state yet; `root` is its root.

    Only the first `gpus` of the machine are shown: what holds for two GPUs holds for eight.
    """
    from lab.vendors.standins.nvidia_smi.smi import box

    shutil.rmtree(root, ignore_errors=True)
    with _at(root), _in_memory():
        box.write_json(box.DRIVER, {"version": driver, "cuda": "13.0"})
        box.write_json(box.FAULTS, {"hide": list(range(gpus, 16))})
        box.write_json(box.INSTANCE, {"instance_type": instance_type, "instance_id": "i-0test"})
        yield InProcess()


@contextmanager
def _in_memory() -> Iterator[None]:
    """What the stand-in writes is kept here: files are half of the cost of a layout."""
    from lab.vendors.standins.nvidia_smi.smi import box

    kept: dict[str, str] = {}
    read, write = box.read_json, box.write_json
    box.read_json = lambda path: json.loads(kept[path]) if path in kept else read(path)

    def keep(path: str, value: Any) -> None:
        kept[path] = json.dumps(value)
        if path == box.FAULTS:
            write(path, value)  # it is asked for its time

    try:
        box.write_json = keep
        yield
    finally:
        box.read_json, box.write_json = read, write


@contextmanager
def _at(root: Path) -> Iterator[None]:
    """The stand-in in this process works under `root`."""
    from lab.vendors.standins.nvidia_smi.smi import box, gpus

    places = {
        "ROOT": str(root),
        "RUN": f"{root}/run/kiln-lab/nvidia-smi",
        "DRIVER": f"{root}/var/lib/kiln-lab/driver.json",
        "INSTANCE": f"{root}/etc/kiln-lab/instance.json",
        "FAULTS": f"{root}/etc/kiln-lab/nvidia-smi-faults.json",
        "OWN_FAULTS": f"{root}/var/lib/kiln-lab/nvidia-smi-faults.json",
        "JOURNAL": f"{root}/run/kiln-lab/nvidia-smi.log",
    }
    before = {name: getattr(box, name) for name in places}
    before_data, before_holders = box.data, box.holders
    before_state = (gpus.STATE, gpus.INFOROM)
    composed = _composed()
    try:
        for name, value in places.items():
            setattr(box, name, value)
        box.data = lambda name: composed[name]
        box.holders = lambda: {}  # it looks through all of /proc
        gpus.STATE = places["RUN"] + "/state.json"
        gpus.INFOROM = f"{root}/var/lib/kiln-lab/nvidia-smi/inforom.json"
        yield
    finally:
        for name, value in before.items():
            setattr(box, name, value)
        box.data, box.holders = before_data, before_holders
        gpus.STATE, gpus.INFOROM = before_state


_COMPOSED: dict[str, Any] = {}


def _composed() -> dict[str, Any]:
    """The stand-in's data; with it all that gpu-mig and the stand-ins import."""
    if not _COMPOSED:
        runtime_module("gpu_mig.cli")
        for name in ("attributes", "main", "mig_cli", "query", "settings"):
            import_module(f"lab.vendors.standins.nvidia_smi.smi.{name}")
        import_module("xml.etree.ElementTree")
        _COMPOSED.update(json.loads(json.dumps(install.compose())))
    return _COMPOSED
