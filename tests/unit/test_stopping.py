"""Ctrl-C and SIGTERM: a flag that a run looks at, and processes that end with it."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any
from unittest.mock import MagicMock

import pytest

from kiln.base import processes
from kiln.base.errors import KilnError
from kiln.base.processes import Stop, StoppedError
from kiln.base.progress import Progress
from kiln.cloud import cleanup
from kiln.pipeline import draft
from kiln.pipeline.draft import Draft
from tests.unit.records import a_record


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_raises_nothing_but_is_noticed(
    number: signal.Signals, capfd: pytest.CaptureFixture[str]
) -> None:
    stop = Stop()
    with processes.on_signals(stop):
        os.kill(os.getpid(), number)
        time.sleep(0.01)
        assert stop.is_set()
        os.kill(os.getpid(), number)
        time.sleep(0.01)
    assert capfd.readouterr().err.splitlines() == [
        "stopping: removing what the run created; Ctrl-C again waits no longer for Packer or EC2",
        "still stopping: not waiting any longer; what is left is named at the end",
    ]


def test_the_first_time_only_starts_the_clean_up_and_the_next_one_hurries_it() -> None:
    """Also when a build that ended well is cleaning up already: nobody has asked before."""
    build = Stop()
    run = build.for_run().for_run()
    assert [(run.is_set(), run.again)] == [(False, 0)]
    build.set()
    assert [(run.is_set(), run.again)] == [(True, 0)]
    build.set()
    assert run.again == build.again == 1


def test_a_clean_up_that_has_begun_goes_on_waiting_after_the_first_signal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A build that ended well left its security group when Ctrl-C came while it cleaned up."""
    seen: list[bool] = []
    stop = Stop()

    def remove(run_id: str, target: object, **given: Any) -> cleanup.Removal:
        for _ in range(2):
            stop.set()
            seen.append(given["hurried"]())
        return cleanup.Removal()

    monkeypatch.setattr(draft.cleanup, "remove", remove)
    monkeypatch.setattr(draft, "forget_key", lambda run: None)
    made = Draft(a_record(), MagicMock(), MagicMock(), Progress(), stop.for_run())
    made.target.hooks.gone.return_value = ""
    draft.remove_resources(made, amis=False)
    assert seen == [False, True]


def test_a_run_whose_reader_is_gone_is_still_cleaned_up_and_says_interrupted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ctrl-C in `./invoke build 2>&1 | tee log` ends tee too."""

    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError(text)

    forgotten: list[object] = []
    monkeypatch.setattr(
        draft.cleanup, "remove", lambda *_, **given: cleanup.Removal(["instance i-1"])
    )
    monkeypatch.setattr(draft, "forget_key", forgotten.append)
    made = Draft(a_record(), MagicMock(), MagicMock(), Progress(Gone()), Stop())
    made.target.hooks.gone.return_value = ""
    monkeypatch.setattr(made, "write", lambda: None)
    with (
        pytest.raises(KilnError, match=r"interrupted\s+cleaned up: instance i-1"),
        draft.cleaned_up(made, delete_ami_on_failure=True),
        made.progress.stage("packer build"),
    ):
        raise StoppedError
    assert forgotten == [made.run]
    assert made.run.settle.called
    assert made.record.error == "interrupted"


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


def test_a_sleep_ends_when_the_end_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    stop = Stop()
    clock = Clock(stop, ends=5)
    monkeypatch.setattr(processes, "time", clock)
    with pytest.raises(StoppedError):
        stop.sleep(600)
    assert 5 <= clock.seconds < 6


def test_a_process_that_says_nothing_ends_at_once_with_its_children() -> None:
    stop = Stop()
    threading.Timer(0.1, stop.set).start()
    with (
        subprocess.Popen(
            ["sh", "-c", "(sleep 600; echo the child) & sleep 600; echo the process"],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as process,
        processes.ending(process, stop),
    ):
        assert process.stdout
        assert process.stdout.read() == ""
    assert process.returncode == -signal.SIGKILL


def test_what_a_crashed_run_left_running_is_ended_and_nothing_of_another_run() -> None:
    sleep = [sys.executable, "-c", "import time; time.sleep(60)"]
    both = [
        subprocess.Popen(sleep, env={**os.environ, **processes.run_environment(run)})
        for run in ("run-of-test-1", "run-of-test-12")
    ]
    try:
        time.sleep(0.2)
        processes.end_processes("run-of-test-1")
        assert both[0].wait(timeout=60) == -signal.SIGKILL
        time.sleep(0.3)
        assert both[1].poll() is None
    finally:
        for call in both:
            call.kill()
            call.wait()
