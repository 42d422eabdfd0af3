"""When a running lab counts as that of another checkout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from invoke import Context, Exit
from moto.ec2.exceptions import EC2ClientError

from kiln.base.errors import KilnError
from kiln.cli import lab as lab_tasks
from lab.api.faults import Faults
from lab.base import origin
from lab.base.settings import GUESTS, Lab
from lab.daemon import control, left_behind, server_processes
from lab.machine import bridge
from lab.moto.instances import LabInstance
from lab.moto.machines import Machines


def test_only_its_own_files_tell_a_lab_from_another_not_what_python_is_compiling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(origin, "ROOT", tmp_path)
    compiled = tmp_path / "lab" / "__pycache__"
    compiled.mkdir(parents=True)
    (tmp_path / "lab" / "guest.py").write_text("one = 1\n")
    before = origin.started_from()
    (compiled / "guest.cpython-311.pyc.140234").write_bytes(b"half of it")
    assert origin.started_from() == before
    (tmp_path / "lab" / "guest.py").write_text("one = 2\n")
    assert origin.started_from() != before


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


def test_a_lab_of_this_code_does_not_differ(checkout: Path) -> None:
    assert origin.difference(running(checkout, started_from=origin.started_from())) == ""


def test_what_another_lab_runs_and_from_where_is_said(checkout: Path, tmp_path: Path) -> None:
    assert "before the lab's code" in origin.difference(running(checkout))
    other = tmp_path / "other"
    gone = origin.difference(running(other))
    assert gone == f"it was started from {other}, which no longer exists"
    (other / "lab").mkdir(parents=True)
    (other / "lab" / "target.py").write_text("")
    assert origin.difference(running(other)) == f"it was started from another checkout: {other}"


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


def test_a_lab_that_died_is_told_from_one_that_is_down(tmp_path: Path) -> None:
    lab = Lab(7, tmp_path)
    lab.state.mkdir()
    lab.log.write_text("t lab INFO up at http://x\n")
    assert control.died_of(lab) == ""
    with subprocess.Popen(["true"]) as ended:
        pass
    lab.pid_file.write_text(str(ended.pid))
    assert control.died_of(lab).startswith("its process was killed")
    with serving(lab) as pid:
        lab.pid_file.write_text(str(pid))
        assert control.died_of(lab) == ""


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
def test_a_lab_that_goes_down_ends_no_program_that_has_the_number_of_its_process_since(
    tmp_path: Path,
) -> None:
    lab = Lab(49, tmp_path)
    lab.state.mkdir()
    with subprocess.Popen(["sleep", "600"]) as program:
        lab.pid_file.write_text(str(program.pid))
        try:
            assert not control.is_running(lab)
            assert control.died_of(lab).startswith("it has no log")
            control.down(lab)
            assert program.poll() is None
        finally:
            program.kill()


@pytest.mark.usefixtures("host_as_it_is")
def test_down_ends_a_lab_that_a_killed_call_left_starting(tmp_path: Path) -> None:
    lab = Lab(49, tmp_path)
    with serving(lab):
        assert len(server_processes.of(lab)) == 1
        control.down(lab)
        assert server_processes.of(lab) == []


def test_a_lab_of_another_folder_with_the_same_index_is_left_as_it_is(
    host_as_it_is: list[str], tmp_path: Path
) -> None:
    lab, other = Lab(49, tmp_path / "own"), Lab(49, tmp_path / "other")
    with serving(other) as pid:
        with pytest.raises(KilnError, match=f"another folder: {other.root}") as refused:
            server_processes.refuse_second(lab)
        assert f"KILN_LAB_STATE={other.root} ./invoke lab.down" in refused.value.hint
        assert control.down(lab) == []
        assert host_as_it_is == []
        assert server_processes.of(other) == [pid]
    control.down(lab)
    assert host_as_it_is == ["lab49"]


@pytest.mark.parametrize(
    ("log", "says"),
    [
        (
            "t lab INFO up at http://x\nt lab INFO going down\nt lab INFO down\n",
            "it was taken down",
        ),
        ("t lab INFO up at http://x\nt lab ERROR FATAL port in use\n", "port in use"),
        ("t lab INFO up at http://x\nt lab.api INFO refused\n", "its process was killed"),
        (
            "t lab INFO up at http://x\nt lab INFO going down\nt lab INFO up at http://x\n",
            "its process was killed",
        ),
        (
            "t lab INFO up at http://x\nFatal Python error: Segmentation fault\n\nThread 1:\n",
            "Fatal Python error: Segmentation fault",
        ),
        (None, "it has no log"),
    ],
)
def test_how_a_lab_ended_is_read_from_its_log(log: str | None, says: str, tmp_path: Path) -> None:
    lab = Lab(7, tmp_path)
    lab.state.mkdir()
    if log is not None:
        lab.log.write_text(log)
    assert control.how_it_ended(lab).startswith(says)


def status_of_the_task(as_json: bool) -> int:
    try:
        lab_tasks.status(Context(), json=as_json)
    except Exit as end:
        return end.code
    return 0


def test_a_lab_that_is_down_is_an_object_for_a_program(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(control, "status", lambda: None)
    monkeypatch.setattr(control, "died_of", lambda _: "")
    assert status_of_the_task(as_json=True) == 1
    assert json.loads(capsys.readouterr().out) == {"running": False, "died_of": None}
    monkeypatch.setattr(control, "died_of", lambda _: "killed")
    assert status_of_the_task(as_json=True) == 1
    assert json.loads(capsys.readouterr().out) == {"running": False, "died_of": "killed"}


def test_a_lab_that_runs_says_so_to_a_program(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = running(
        checkout,
        started_from=origin.started_from(),
        endpoint="http://127.0.0.1:4599",
        seconds_up=1,
        instances=[],
        amis=[],
    )
    monkeypatch.setattr(control, "status", lambda: answer)
    assert status_of_the_task(as_json=True) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown == {"running": True, **answer, "differs": ""}


@pytest.mark.skipif(os.geteuid() != 0, reason="another user's process is started by root")
def test_process_of_another_user_is_no_lab(tmp_path: Path) -> None:
    lab = Lab(48, tmp_path)
    with serving(lab):
        assert server_processes.of(lab)
    with serving(lab, user=65534) as pid:
        assert server_processes.of(lab) == []
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


def test_no_two_guests_have_the_same_ids_on_this_machine(tmp_path: Path) -> None:
    lab = Lab(49, tmp_path)
    machines = Machines(lab, [], lambda distro, arch: tmp_path, Faults())
    instance: Any = SimpleNamespace()
    for _ in range(GUESTS):
        machines.address(instance)
    ids = {lab.first_id(address) for address in machines.by_address}
    assert len(ids) == len(machines.by_address) == GUESTS
    with pytest.raises(EC2ClientError, match="256 instances at most"):
        machines.address(instance)
    gone = list(machines.by_address)[7]
    del machines.by_address[gone]
    assert lab.first_id(machines.address(instance)) == lab.first_id(gone)


@pytest.mark.parametrize(("host", "stopped"), [(2, True), (1, False)])
def test_machine_that_powers_off_while_it_is_started_is_stopped_and_not_its_successor(
    host: int, stopped: bool
) -> None:
    calls: list[str] = []
    instance: Any = SimpleNamespace(
        _busy=threading.Lock(),
        state="pending",
        hosts=2,
        instance_initiated_shutdown_behavior="stop",
        _settle_stopped=lambda: calls.append("stopped"),
    )
    with instance._busy:
        ending = threading.Thread(target=LabInstance._ended, args=(instance, host))
        ending.start()
        instance.state = "running"
    ending.join()
    assert bool(calls) is stopped
