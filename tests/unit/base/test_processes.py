"""Ctrl-C and SIGTERM: a flag that a run looks at, and processes that end with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from kiln.base import processes
from kiln.base.processes import Stop, StoppedError


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_is_noticed_and_said(
    number: signal.Signals, capfd: pytest.CaptureFixture[str]
) -> None:
    stop = Stop()
    with processes.on_signals(stop):
        signal.raise_signal(number)
        assert stop.is_set()
        signal.raise_signal(number)
    first, second = capfd.readouterr().err.splitlines()
    assert first.startswith("stopping: removing what the run created")
    assert second.startswith("still stopping: not waiting any longer")


def test_second_request_hurries_the_clean_up_of_a_run() -> None:
    """Also when a build that ended well is cleaning up already: nobody has asked before."""
    build = Stop()
    run = build.for_run().for_run()
    assert [(run.is_set(), run.again)] == [(False, 0)]
    build.set()
    assert [(run.is_set(), run.again)] == [(True, 0)]
    build.set()
    assert run.again == build.again == 1


class Clock:
    """A clock that only sleeping moves; at `ends` seconds the stop is set."""

    def __init__(self, stop: Stop, ends: float) -> None:
        self.seconds = 0.0
        self._stop = stop
        self._ends = ends

    def monotonic(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds
        if self.seconds >= self._ends:
            self._stop.set()


def test_sleep_ends_when_the_end_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    stop = Stop()
    clock = Clock(stop, ends=5)
    monkeypatch.setattr(processes, "time", clock)
    with pytest.raises(StoppedError):
        stop.sleep(600)
    assert 5 <= clock.seconds < 6


def test_silent_process_ends_at_once_with_its_children() -> None:
    stop = Stop()
    with (
        subprocess.Popen(
            ["sh", "-c", "(sleep 600; echo the child) & echo began; sleep 600; echo the process"],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as process,
        processes.ending(process, stop),
    ):
        assert process.stdout
        assert process.stdout.readline() == "began\n"
        stop.set()
        assert process.stdout.read() == ""
    assert process.returncode == -signal.SIGKILL


def test_processes_of_a_crashed_run_end_and_no_others() -> None:
    program = [sys.executable, "-c", "print(flush=True); import time; time.sleep(60)"]
    both = [
        subprocess.Popen(
            program,
            env={**os.environ, **processes.run_environment(run)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for run in ("run-of-test-1", "run-of-test-12")
    ]
    try:
        for call in both:
            assert call.stdout and call.stdout.readline() == "\n"
        processes.end_processes("run-of-test-1")
        assert both[0].wait(timeout=60) == -signal.SIGKILL
        assert both[1].poll() is None
    finally:
        for call in both:
            call.kill()
            call.communicate()
