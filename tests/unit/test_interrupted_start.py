"""Ctrl-C ends ./invoke without a traceback, however early it comes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from kiln.base.paths import ROOT

IN_A_CLASS_STATEMENT = """
import signal
from kiln.cli import front
class Field:
    def __set_name__(self, owner, name):
        signal.raise_signal(signal.SIGTERM)
def run(argv):
    class Row:
        account = Field()
    return 0
front.run = run
front.main()
"""


def test_a_signal_in_a_class_statement_ends_it() -> None:
    done = subprocess.run(
        [sys.executable, "-c", IN_A_CLASS_STATEMENT],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (1, "")


# Milliseconds after the start. It takes about 150 until a task runs.
MOMENTS = range(0, 240, 12)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_early_signal_ends_it_without_a_traceback(number: signal.Signals) -> None:
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
        assert process.returncode in (-number, 128 + number, 1), (moment, error)
        assert "Traceback" not in error, (moment, error)
        assert "Fatal Python error" not in error, (moment, error)
