"""When a running lab counts as that of another checkout."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from kiln.base.errors import KilnError
from lab.base import origin
from lab.base.settings import Lab
from lab.daemon import cell, control
from lab.machine import bridge


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with a lab; the code of this process is that of this checkout."""
    here = tmp_path / "here"
    (here / "lab").mkdir(parents=True)
    (here / "lab" / "target.py").write_text("")
    monkeypatch.setattr(origin, "ROOT", here)
    return here


def running(checkout: Path, **more: Any) -> dict[str, Any]:
    """The status of a lab that was started from a checkout."""
    return {"lab": "lab0", "checkout": str(checkout), "started_from": "older", **more}


def test_a_lab_in_use_whose_checkout_is_gone_is_not_taken_as_up(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = Lab(0, tmp_path / "state")
    status = running(checkout, in_use=True)
    monkeypatch.setattr(control, "status", lambda lab: status)
    assert control.up(lab) is status
    status["checkout"] = str(tmp_path / "deleted")
    with pytest.raises(KilnError, match="which no longer exists") as caught:
        control.up(lab)
    assert caught.value.exit_status == 1
    assert "lab.down" in caught.value.hint


def test_lab_down_ignores_reused_pid(tmp_path: Path) -> None:
    lab = Lab(49, tmp_path)
    lab.state.mkdir()
    with subprocess.Popen(["sleep", "600"]) as program:
        lab.pid_file.write_text(str(program.pid))
        try:
            assert not control.is_running(lab)
            assert control.died_of(lab).startswith("it was never started")
            control.down(lab)
            assert program.poll() is None
        finally:
            program.kill()


def test_down_ends_a_lab_that_does_not_answer(tmp_path: Path) -> None:
    lab = Lab(49, tmp_path)
    lab.state.mkdir()
    holds = (
        "import fcntl, os, sys, time; file = open(sys.argv[1], 'w'); "
        "fcntl.flock(file, fcntl.LOCK_EX); print(os.getpid(), file=file, flush=True); "
        "print(flush=True); time.sleep(600)"
    )
    command = [sys.executable, "-c", holds, str(lab.pid_file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as server:
        try:
            assert server.stdout
            server.stdout.readline()
            assert control.is_running(lab)
            control.down(lab)
            assert server.wait(60) == -signal.SIGTERM
        finally:
            server.kill()


def test_port_of_another_program_is_one_clear_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(cell.NET_CORE, "{}")
    monkeypatch.setenv(cell.PORT, "")
    with pytest.raises(KilnError, match=r"another program listens on .*:4648") as refused:
        control.up(Lab(49, tmp_path))
    assert "KILN_LAB_PORT" in refused.value.hint


@pytest.mark.parametrize(
    ("route", "message"),
    [("10.250.7.0/24", "10.250.7.0/24 is reached by tun0"), ("10.0.0.0/8", "")],
)
def test_network_that_a_vpn_has_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, route: str, message: str
) -> None:
    routes = [{"dst": "default", "dev": "eth0"}, {"dst": route, "dev": "tun0"}]
    monkeypatch.setattr(bridge, "run", lambda *command, check: json.dumps(routes))
    with pytest.raises(KilnError, match=message) if message else nullcontext():
        bridge.require_free_network(Lab(49, tmp_path))
