"""When a running lab counts as that of another checkout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kiln.base.errors import KilnError
from lab.base import origin
from lab.base.settings import Lab
from lab.daemon import control, left_behind, server_processes
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


@contextmanager
def serving(lab: Lab, user: int | None = None) -> Iterator[int]:
    """A process that looks as if it served a lab, and ends when it is told to."""
    sleep = [sys.executable, "-c", "import time; print(flush=True); time.sleep(600)"]
    names = {"KILN_LAB_INDEX": str(lab.index), "KILN_LAB_STATE": str(lab.root)}
    with subprocess.Popen(
        [*sleep, *server_processes.PROGRAM],
        env={**os.environ, **names},
        stdout=subprocess.PIPE,
        user=user,
        cwd="/",
    ) as process:
        try:
            assert process.stdout
            process.stdout.readline()
            yield process.pid
        finally:
            process.kill()


@pytest.fixture
def host_as_it_is(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Nothing of this machine is changed; what a lab would have removed of its own."""
    swept: list[str] = []
    monkeypatch.setattr(left_behind, "guests", lambda lab: swept.append(lab.bridge) or [])
    monkeypatch.setattr(left_behind, "cgroups", SimpleNamespace(remaining=lambda start: []))
    monkeypatch.setattr(left_behind.bridge, "down", lambda lab: None)
    monkeypatch.setattr(control.host, "restore", lambda lab: None)
    return swept


@pytest.mark.usefixtures("host_as_it_is")
def test_lab_down_ignores_reused_pid(
    tmp_path: Path,
) -> None:
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


@pytest.mark.usefixtures("host_as_it_is")
def test_down_ends_a_lab_that_a_killed_call_left_starting(tmp_path: Path) -> None:
    lab = Lab(49, tmp_path)
    with serving(lab):
        assert len(server_processes.find(lab)) == 1
        control.down(lab)
        assert server_processes.find(lab) == []


def test_lab_of_another_folder_is_left_alone(host_as_it_is: list[str], tmp_path: Path) -> None:
    lab, other = Lab(49, tmp_path / "own"), Lab(49, tmp_path / "other")
    with serving(other) as pid:
        with pytest.raises(KilnError, match=f"another folder: {other.root}") as refused:
            server_processes.refuse_second(lab)
        assert f"KILN_LAB_STATE={other.root} ./invoke lab.down" in refused.value.hint
        assert control.down(lab) == []
        assert host_as_it_is == []
        assert server_processes.find(other) == [pid]
    control.down(lab)
    assert host_as_it_is == ["lab49"]


@pytest.mark.skipif(os.geteuid() != 0, reason="another user's process is started by root")
def test_process_of_another_user_is_no_lab(tmp_path: Path) -> None:
    lab = Lab(48, tmp_path)
    with serving(lab):
        assert server_processes.find(lab)
    with serving(lab, user=65534) as pid:
        assert server_processes.find(lab) == []
        assert server_processes.elsewhere(Lab(48, tmp_path / "other")) is None
        assert not server_processes.serves(pid, lab)


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
