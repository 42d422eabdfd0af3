"""`gpu-xid health`: remapped rows and fabric state as events, from what nvidia-smi prints.

The nvidia-smi here is a script of the test that prints the real tool's layout.
"""

from __future__ import annotations

import fcntl
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from kiln.base import paths

health = paths.runtime_module("gpu_xid.health")

GOOD_ROW = "NVIDIA A100-SXM4-40GB, 00000000:10:1C.0, 0, 0, 0, 0"
QUERY = """
==============NVSMI LOG==============

Attached GPUs                             : 1
GPU 00000000:10:1C.0
    Product Name                          : NVIDIA H100 80GB HBM3
    GPU Recovery Action                   : {recovery}
    Fabric
        State                             : {state}
        Status                            : {status}
        Health
            Summary                       : {summary}
            Bandwidth                     : N/A
    FB Memory Usage
        Total                             : 81559 MiB
"""


def smi(folder: Path, rows: str = GOOD_ROW, **answers: str) -> str:
    """An nvidia-smi that knows the two questions."""
    normal = {"state": "N/A", "status": "N/A", "summary": "N/A", "recovery": "None"}
    (folder / "rows").write_text(rows + "\n")
    (folder / "query").write_text(QUERY.format_map(normal | answers))
    script = folder / "nvidia-smi"
    script.write_text(
        f'#!/bin/sh\ncase "$1" in -q) cat {folder}/query ;; '
        f"--query-remapped-rows=*) cat {folder}/rows ;; *) exit 2 ;; esac\n"
    )
    script.chmod(0o755)
    return str(script)


def events(folder: Path, program: str, **more: Any) -> tuple[int, list[dict[str, Any]]]:
    """(exit status, event log) of one `gpu-xid health`."""
    log = folder / "gpuevent.log"
    (folder / "gpu-xid.json").write_text(json.dumps({"log": str(log), **more}))
    status = health.main(str(folder / "gpu-xid.json"), program)
    rows = log.read_text().splitlines() if log.exists() else []
    return status, [json.loads(row) for row in rows]


@pytest.mark.parametrize(
    ("rows", "answers"),
    [
        (GOOD_ROW, {"state": "Completed", "status": "Success", "summary": "Healthy"}),
        ("Tesla T4, 00000000:00:1E.0, [N/A], [N/A], [N/A], [N/A]", {}),
    ],
    ids=["H100", "T4"],
)
def test_gpus_in_order_leave_no_event(tmp_path: Path, rows: str, answers: dict[str, str]) -> None:
    assert events(tmp_path, smi(tmp_path, rows, **answers)) == (0, [])


@pytest.mark.parametrize(
    ("row", "severity", "name"),
    [
        ("A100, 00000000:10:1C.0, 1, 0, 0, 3", "fatal", "Row remapping failure"),
        ("A100, 00000000:10:1C.0, Yes, No, 0, 3", "fatal", "Row remapping failure"),
        ("A100, 00000000:10:1C.0, 0, 1, 0, 1", "warning", "Row remapping pending"),
    ],
)
def test_a_remapped_row_is_an_event_of_the_same_shape(
    tmp_path: Path, row: str, severity: str, name: str
) -> None:
    status, result = events(tmp_path, smi(tmp_path, row))
    assert status == 0
    assert [(line["event"], line["severity"], line["name"]) for line in result] == [
        ("health", severity, name)
    ]
    assert result[0]["pci"] == "0000:10:1c.0"
    assert next(iter(result[0])) == "time"
    for key in ("boot_id", "seq", "xid", "sxid", "action", "gpu", "uuid", "pid", "process", "raw"):
        assert key in result[0]


NOT_READY, UNHEALTHY = "NVLink fabric not ready", "NVLink fabric unhealthy"


@pytest.mark.parametrize(
    ("answers", "name", "severity"),
    [
        ({"state": "In Progress", "status": "N/A"}, NOT_READY, "error"),  # after 3 min, here none
        ({"state": "Not Started", "status": "N/A"}, NOT_READY, "error"),
        ({"status": "Insufficient Resources"}, NOT_READY, "fatal"),
        ({"summary": "Unhealthy"}, UNHEALTHY, "fatal"),
        ({"summary": "Limited Capacity"}, UNHEALTHY, "warning"),
        ({"recovery": "Reset"}, "GPU recovery action Reset", "fatal"),
        ({"recovery": "Drain P2P"}, "GPU recovery action Drain P2P", "warning"),
        ({"recovery": "Something New"}, "GPU recovery action Something New", "error"),
    ],
)
def test_fabric_and_recovery_action_are_events(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    answers: dict[str, str],
    name: str,
    severity: str,
) -> None:
    monkeypatch.setattr(health, "FABRIC_WAIT_S", 0)
    program = smi(tmp_path, **({"state": "Completed", "status": "Success"} | answers))
    _, result = events(tmp_path, program)
    assert [(line["name"], line["severity"]) for line in result] == [(name, severity)]
    assert result[0]["action"]


def test_fabric_that_registers_in_time_is_no_event(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = smi(tmp_path, state="In Progress")
    done = QUERY.format(state="Completed", status="Success", summary="Healthy", recovery="None")
    monkeypatch.setattr(health.time, "sleep", lambda _: (tmp_path / "query").write_text(done))
    assert events(tmp_path, program) == (0, [])


def test_a_hanging_nvidia_smi_is_given_up_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(health, "_TIMEOUT_S", 0.2)
    monkeypatch.setattr(health.host, "gpu_addresses", lambda: ["0000:10:1c.0"])
    script = tmp_path / "nvidia-smi"
    script.write_text("#!/bin/sh\nexec sleep 30\n")
    script.chmod(0o755)
    status, result = events(tmp_path, str(script))
    assert status == 1
    assert {line["name"] for line in result} == {"GPU health unknown"}
    assert "did not answer" in capsys.readouterr().err


def test_the_monitors_lock_is_waited_for(tmp_path: Path) -> None:
    log = tmp_path / "gpuevent.log"
    with log.open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        threading.Timer(0.05, lambda: fcntl.flock(held, fcntl.LOCK_UN)).start()
        status, result = events(tmp_path, smi(tmp_path, "A100, 00000000:10:1C.0, 1, 0, 0, 3"))
    assert (status, len(result)) == (0, 1)


@pytest.mark.parametrize(("there", "more"), [(True, {}), (False, {}), (True, {"wrong": 1})])
def test_finding_reaches_the_hooks_or_is_said(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    there: bool,
    more: dict[str, Any],
) -> None:
    """Without the folder as on a machine whose kiln-xid.service, which makes it, is masked; with an
    invalid configuration the defaults hold."""
    monkeypatch.setitem(health.config.DEFAULTS, "log", str(tmp_path / "gpuevent.log"))
    spool = tmp_path / "spool"
    if there:
        spool.mkdir()
    monkeypatch.setattr(health.hooks.Spool.__init__, "__defaults__", (str(spool),))
    monkeypatch.setattr(health.hooks, "executables", lambda directory: ["hook"])
    status, rows = events(tmp_path, smi(tmp_path, "A100, 00000000:10:1C.0, 1, 0, 0, 3"), **more)
    assert status == int(not there)
    said = capsys.readouterr().err
    assert ("'wrong'" in said) == bool(more)
    if there:
        assert [json.loads(path.read_text()) for path in spool.iterdir()] == rows
    else:
        assert f"1 events did not reach the hooks: {spool}" in said
