"""The same fatal Xid after restart upon restart: summary and hooks say so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kiln.base import runtime_import

cli = runtime_import.runtime_module("gpu_xid.cli")
config = runtime_import.runtime_module("gpu_xid.config")
hooks_run = runtime_import.runtime_module("gpu_xid.hooks_run")
repeats = runtime_import.runtime_module("gpu_xid.repeats")


def event(day: int, boot: str, **more: Any) -> dict[str, Any]:
    row = {"time": f"2026-11-{day:02d}T01:02:03.000004Z", "event": "xid", "boot_id": boot}
    row |= {"xid": 79, "name": "fallen", "severity": "fatal", "pci": "0000:3b:00", "uuid": "GPU-1"}
    return row | more


def conf(**restarts: int) -> dict[str, Any]:
    checked: dict[str, Any] = config.check({"restarts": restarts}, "test")["restarts"]
    return checked


def advice(*rows: dict[str, Any], **restarts: int) -> list[dict[str, Any]]:
    found = repeats.Repeats(conf(**restarts))
    repeats.add_all(found, rows)
    result: list[dict[str, Any]] = found.advice()
    return result


THRICE = [event(1, "a"), event(2, "b"), event(3, "c")]


def test_the_same_fatal_xid_after_two_restarts_calls_for_another_instance() -> None:
    assert advice(*THRICE) == [{"kind": "xid", "code": 79, "gpu": "GPU-1", "restarts": 2}]
    assert advice(*THRICE, replace_after=3) == []
    assert advice(*THRICE[:2], replace_after=1)


def lost(day: int, boot: str, **more: Any) -> dict[str, Any]:
    """A GPU that fell off the bus without an Xid; the driver names it with its function."""
    gone = {"event": "gpu-lost", "xid": None, "implied_xid": 79, "pci": "0000:3b:00.0"}
    return event(day, boot, **gone) | more


def test_a_gpu_that_is_lost_without_an_xid_counts_as_the_xid_that_says_so() -> None:
    wanted = [{"kind": "xid", "code": 79, "gpu": "GPU-1", "restarts": 2}]
    assert advice(lost(1, "a"), lost(2, "b"), lost(3, "c")) == wanted
    assert advice(*THRICE[:2], lost(3, "c")) == wanted
    nameless = [event(1, "a", uuid=None), lost(2, "b", uuid=None), lost(3, "c", uuid=None)]
    assert advice(*nameless) == [wanted[0] | {"gpu": "0000:3b:00"}]
    assert advice(*THRICE[:2], lost(3, "c", pci=None, uuid=None)) == []


@pytest.mark.parametrize(
    "last",
    [
        event(3, "b"),
        event(3, "c", xid=48),
        event(3, "c", severity="error"),
        event(3, "c", injected=True),
        event(3, "c", uuid="GPU-2"),
        event(9, "c"),
        event(3, "c", time="unknown time"),
    ],
    ids=["same boot", "other code", "not fatal", "drill", "other GPU", "later", "no date"],
)
def test_what_is_not_the_same_event_after_a_restart_does_not_count(last: dict[str, Any]) -> None:
    assert advice(*THRICE[:2], last) == []


def test_the_summary_says_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "gpuevent.log"
    log.write_text("".join(json.dumps(row) + "\n" for row in THRICE))
    assert cli.main(["summary", "--log", str(log)]) == 0
    assert "xid 79 on GPU-1 came again after 2 restarts: replace" in capsys.readouterr().out
    assert cli.main(["summary", "--log", str(log), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["replace"][0]["restarts"] == 2


def test_the_summary_counts_gpus_that_were_lost_without_an_xid(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "gpuevent.log"
    log.write_text(json.dumps(lost(1, "a")) + "\n")
    assert cli.main(["summary", "--log", str(log)]) == 0
    output = capsys.readouterr().out
    assert "gpu-lost 79" in output
    assert "no Xid or SXid events" not in output


@pytest.mark.parametrize(("before", "says"), [(THRICE[:2], "2 yes"), (THRICE[:1], "1 no")])
def test_a_hook_knows_whether_a_restart_is_worth_a_try(
    tmp_path: Path, before: list[dict[str, Any]], says: str
) -> None:
    """Its own event may not be in the log yet."""
    log, spool, hook = tmp_path / "log", tmp_path / "spool", tmp_path / "xid.d/say"
    log.write_text("".join(json.dumps(row) + "\n" for row in before))
    spool.mkdir()
    hook.parent.mkdir()
    hook.write_text(f'#!/bin/sh\necho "$GPU_XID_RESTARTS $GPU_XID_REPLACE" >{tmp_path}/said\n')
    hook.chmod(0o755)
    (spool / "1.json").write_text(json.dumps(THRICE[2]))
    settings = config.check({"hooks": {"dir": str(hook.parent)}}, "test")["hooks"]
    assert hooks_run.run(settings, str(spool), repeats.of_log(str(log), conf())) == 0
    assert (tmp_path / "said").read_text() == says + "\n"


def test_without_a_log_the_hooks_still_run(tmp_path: Path) -> None:
    found = repeats.of_log(str(tmp_path / "none"), conf())
    assert found.environment(THRICE[0]) == {"GPU_XID_RESTARTS": "0", "GPU_XID_REPLACE": "no"}
