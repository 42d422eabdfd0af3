"""`./invoke` for tests: the whole command line in a process of its own, without a new Python.

A first process has imported the program and starts a copy of itself (a fork) for each call. What
the shell script `invoke` does before is left out; test_program.py and test_first_call.py run it.
"""

from __future__ import annotations

import gc
import importlib
import multiprocessing
import os
import subprocess
import sys
import tempfile
import threading
from multiprocessing.forkserver import ensure_running
from pathlib import Path

from kiln.base.paths import ROOT

# Imported once, before the first call: nothing that depends on the environment.
_PROGRAM = (
    *("tasks", "kiln.cli.main", "tests.unit.commands", "tests.unit.preloaded"),
    *("boto3", "botocore.session", "jinja2", "jsonschema", "pydantic", "rich.table", "yaml"),
    *("kiln.cli.targets", "kiln.compat.engine", "kiln.matrix.load", "kiln.packer.render"),
    *("kiln.pipeline.build", "kiln.pipeline.verify", "lab.target"),
)
_STARTING = threading.Lock()
# As setup/start.py does for `./invoke`.
gc.set_threshold(100_000, 50, 50)


class Call:
    """A call of `./invoke` that is under way, in a session of its own."""

    def __init__(self, arguments: tuple[str, ...], environment: dict[str, str]) -> None:
        self.arguments = ["./invoke", *arguments]
        self._files = [tempfile.TemporaryFile() for _ in range(2)]  # noqa: SIM115 - until it ends
        paths = [f"/proc/{os.getpid()}/fd/{file.fileno()}" for file in self._files]
        self._process = _processes().Process(target=_call, args=(arguments, environment, *paths))
        self._process.start()

    @property
    def pid(self) -> int:
        """The id of the process and of its group."""
        assert self._process.pid
        return self._process.pid

    def poll(self) -> int | None:
        """The exit status, negative for a signal; None while it runs."""
        return self._process.exitcode

    def end(self, timeout: float = 300) -> subprocess.CompletedProcess[str]:
        """Wait for its end. Raises TimeoutExpired after `timeout` seconds, when it is killed."""
        self._process.join(timeout)
        status = self._process.exitcode
        if status is None:
            self._process.kill()
            self._process.join()
            raise subprocess.TimeoutExpired(self.arguments, timeout)
        out, err = (_read(file.fileno()) for file in self._files)
        return subprocess.CompletedProcess(self.arguments, status, stdout=out, stderr=err)


class Program:
    """A call of the `./invoke` of another checkout, in a session of its own; used as a `Call`."""

    def __init__(
        self, checkout: Path, arguments: tuple[str, ...], environment: dict[str, str]
    ) -> None:
        self._files = [tempfile.TemporaryFile() for _ in range(2)]  # noqa: SIM115 - until it ends
        self._process = subprocess.Popen(
            [checkout / "invoke", *arguments],
            cwd=checkout,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=self._files[0],
            stderr=self._files[1],
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        """The id of the process and of its group."""
        return self._process.pid

    def poll(self) -> int | None:
        """The exit status, negative for a signal; None while it runs."""
        return self._process.poll()

    def end(self, timeout: float = 300) -> subprocess.CompletedProcess[str]:
        """Wait for its end. Raises TimeoutExpired after `timeout` seconds, when it is killed."""
        try:
            status = self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise
        out, err = (_read(file.fileno()) for file in self._files)
        return subprocess.CompletedProcess(self._process.args, status, stdout=out, stderr=err)


def start(*arguments: str, cwd: Path = ROOT, env: dict[str, str] | None = None) -> Call:
    """Start `./invoke` with these arguments in `cwd`; standard input is empty.

    `env` is the whole environment, without it that of the tests.
    """
    environment = {**(os.environ if env is None else env), "KILN_CWD": str(cwd), "PYTHONUTF8": "1"}
    return Call(arguments, environment)


def invoke(
    *arguments: str, cwd: Path = ROOT, timeout: float = 300, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """`start`, and wait for the end. Raises TimeoutExpired after `timeout` seconds."""
    return start(*arguments, cwd=cwd, env=env).end(timeout)


def _read(descriptor: int) -> str:
    size = os.fstat(descriptor).st_size
    return os.pread(descriptor, size, 0).decode()


def _processes() -> multiprocessing.context.ForkServerContext:
    """The process that has imported the program, started by the first call."""
    context = multiprocessing.get_context("forkserver")
    with _STARTING:
        context.set_forkserver_preload(list(_PROGRAM))
        ensure_running()
    return context


def _call(arguments: tuple[str, ...], environment: dict[str, str], out: str, err: str) -> None:
    """In the copy: become `./invoke`, as the shell script starts it."""
    # What is imported is shared with the first process until something writes to it.
    gc.freeze()
    os.setsid()
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(ROOT)
    for descriptor, path in enumerate((os.devnull, out, err)):
        opened = os.open(path, (os.O_RDONLY if descriptor == 0 else os.O_WRONLY) | os.O_APPEND)
        os.dup2(opened, descriptor)
        os.close(opened)
    sys.stdin, sys.stdout, sys.stderr = (
        open(descriptor, mode, encoding="utf-8", closefd=False)  # noqa: SIM115 - for the whole call
        for descriptor, mode in enumerate("rww")
    )
    sys.argv = ["./invoke", *arguments]
    importlib.import_module("kiln.cli.main").main(importlib.import_module("tasks").ns)
