"""Ctrl-C ends ./invoke without a traceback, however early it comes."""

from __future__ import annotations

import os
import signal
import subprocess
import time

import pytest

from kiln.base.paths import ROOT

pytestmark = pytest.mark.slow
# Milliseconds after the start. It takes about 150 until a task runs; on a fast machine it may end.
MOMENTS = (10, 50, 90, 130, 200)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_early_signal_ends_it_without_a_traceback(number: signal.Signals) -> None:
    for moment in MOMENTS:
        process = subprocess.Popen(
            [str(ROOT / "invoke"), "list", "--json"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        time.sleep(moment / 1000)
        os.killpg(process.pid, number)
        _, error = process.communicate(timeout=60)
        assert process.returncode in (-number, 128 + number, 1, 0), (moment, error)
        assert "Traceback" not in error, (moment, error)
        assert "Fatal Python error" not in error, (moment, error)
