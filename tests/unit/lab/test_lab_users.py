"""A lab that a run uses is not taken down under it."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kiln.base.errors import KilnError
from kiln.base.paths import ROOT
from lab.base.settings import Lab
from lab.daemon import users

# Uses the lab until it is ended.
_RUN = """
import sys, time
from pathlib import Path
from lab.base import settings
from lab.daemon import users
with users.using(settings.Lab(7, Path(sys.argv[1])), "20260101T000000Z-0000", "al2"):
    print("inside", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(7, tmp_path)


def started(lab: Lab) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", _RUN, str(lab.root)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout
    assert process.stdout.readline() == "inside\n"
    return process


def test_a_lab_in_use_names_the_run_and_says_how_to_end_it(lab: Lab) -> None:
    with users.using(lab, "20260101T000000Z-abcd", "al2-510"):
        with pytest.raises(KilnError, match="lab7 is in use") as error:
            users.refuse_if_used(lab)
        text = f"run 20260101T000000Z-abcd of al2-510, process {os.getpid()}"
        assert text in error.value.message
        assert "--force" in error.value.hint
        assert error.value.exit_status == 1
        assert users.users(Lab(8, lab.root)) == []
    assert users.users(lab) == []
    users.refuse_if_used(lab)


def test_a_killed_run_does_not_use_the_lab(lab: Lab) -> None:
    process = started(lab)
    assert [user.process for user in users.users(lab)] == [process.pid]
    process.kill()
    process.wait()
    assert users.users(lab) == []
    assert [path for path in lab.root.rglob("*") if path.is_file()] == []


def test_run_that_begins_is_not_taken_for_killed(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    flock = fcntl.flock

    def looked_at_before(file: Any, how: int) -> None:
        monkeypatch.setattr(fcntl, "flock", flock)
        assert users.users(lab) == []
        flock(file, how)

    monkeypatch.setattr(fcntl, "flock", looked_at_before)
    with users.using(lab, "20260101T000000Z-abcd", "al2-510"):
        assert [user.process for user in users.users(lab)] == [os.getpid()]
    assert users.users(lab) == []


def test_preparing_build_counts_as_a_user_of_the_lab(lab: Lab) -> None:
    with users.preparing(lab, "al2-510 and 2 more"):
        with pytest.raises(KilnError, match="lab7 is in use") as error:
            users.refuse_if_used(lab)
        assert f"al2-510 and 2 more, process {os.getpid()}" in error.value.message
        assert users.runs(lab) == [], "a lab of other code is still started anew for it"
    assert users.users(lab) == []


def test_force_ends_the_run_as_ctrl_c_does_and_says_which(lab: Lab) -> None:
    process = started(lab)
    messages: list[str] = []
    users.end(lab, messages.append)
    assert process.wait(timeout=60) == -signal.SIGTERM
    assert messages == [f"ending run 20260101T000000Z-0000 of al2, process {process.pid}"]
    assert users.users(lab) == []
