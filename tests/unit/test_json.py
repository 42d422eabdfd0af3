"""`--json`: a program reads one document on standard output."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from invoke import Context, Exit, Task

import devel.tasks
from devel import testing
from devel.testing import Finished
from kiln.base.paths import ROOT
from kiln.base.yaml_files import parse_template
from kiln.cli import lab, launch, telemetry
from lab.base.settings import current
from lab.daemon import control
from lab.rootfs import importer


def answer(capsys: pytest.CaptureFixture[str], task: Task[Any], **flags: Any) -> Any:
    """The document that a task prints with --json."""
    task(Context(), **flags, json=True)
    return json.loads(capsys.readouterr().out)


def ended(task: Task[Any], **flags: Any) -> int:
    """The exit status of a task with --json."""
    with pytest.raises(Exit) as end:
        task(Context(), **flags, json=True)
    return end.value.code


def test_the_labs_tasks_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KILN_LAB_STATE", str(tmp_path / "labs"))
    console = current().instances / "i-1" / "console.log"
    console.parent.mkdir(parents=True)
    console.touch()
    current().log.write_text('up\n"two"\x0c\n')
    shown = answer(capsys, lab.logs)
    assert shown == {"instance": None, "file": str(current().log), "lines": ["up", '"two"\x0c']}
    shown = answer(capsys, lab.logs, instance="i-1")
    assert shown == {"instance": "i-1", "file": str(console), "lines": []}
    monkeypatch.setattr(control, "down", lambda **_: ["bridge lab6"])
    monkeypatch.setattr(control, "clean", lambda **_: [])
    assert answer(capsys, lab.down) == {"took_down": ["bridge lab6"]}
    assert answer(capsys, lab.clean) == {"removed": []}
    monkeypatch.setattr("lab.daemon.host.can_run", lambda: None)
    monkeypatch.setattr(importer, "import_rootfs", lambda *_: tmp_path)
    shown = answer(capsys, lab.import_, distro="al2023", rootfs="al2023.tar")
    assert shown == {"distro": "al2023", "rootfs": str(tmp_path)}


def test_a_document_is_in_the_answer_and_in_the_file_that_out_names(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    stack, nodes, script = (tmp_path / name for name in ("gpu.yaml", "nodes.yaml", "install.sh"))
    flags: dict[str, Any] = {"gpu_type": ["g6.12xlarge"], "watch": []}
    shown = answer(capsys, telemetry.render, **flags, out=str(stack))
    assert shown == {"file": str(stack), "template": parse_template(stack.read_text())}
    assert answer(capsys, telemetry.render, **flags) == {**shown, "file": None}
    flags = {"line": "al2023/lts/eks/x86_64", "for_": "karpenter"}
    shown = answer(capsys, launch.consume, **flags, out=str(nodes))
    assert shown == {
        "line": flags["line"],
        "channel": "stable",
        "kind": "karpenter",
        "file": str(nodes),
        "document": nodes.read_text(),
    }
    assert answer(capsys, launch.consume, **flags) == {**shown, "file": None}
    shown = answer(capsys, telemetry.bundle, out=str(script))
    sha256 = hashlib.sha256(script.read_bytes()).hexdigest()
    assert shown == {"file": str(script), "sha256": sha256}


def test_each_linter_has_its_verdict_time_and_output(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ruff = Finished("ruff", ok=False, seconds=0.5, output="a.py:1: F401")
    monkeypatch.setattr(testing, "side_by_side", lambda commands: [ruff])
    monkeypatch.setattr(testing.generate, "stale", list)
    monkeypatch.setattr(testing.links, "pages", lambda root: [])
    monkeypatch.setattr(testing.needs, "ensure", lambda *_, **__: None)
    assert ended(devel.tasks.lint) == 1
    read = capsys.readouterr()
    found = json.loads(read.out)
    assert (found["exit_status"], found["linters"][0]) == (1, vars(ruff))
    assert {check["name"]: check["ok"] for check in found["linters"][1:]} == {
        "generated files": True,
        "links": True,
    }
    assert "FAILED ruff" in read.err


TESTS = """
import pytest

class TestBusy:
    def test_bad(self): assert 1 == 2

@pytest.mark.skipif(True, reason="groups take root")
def test_root(): pass

def test_good(): print("printed by a test")

@pytest.fixture
def broken():
    yield
    raise ValueError("left behind")

def test_ends_badly(broken): pass
"""


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with a few tests, and linters that find nothing."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)  # pytest's options are there
    (tmp_path / "tests" / "unit").mkdir(parents=True)
    monkeypatch.setattr(testing, "ROOT", tmp_path)
    monkeypatch.setattr(testing, "lint", lambda: [Finished("mypy", ok=True, seconds=1, output="")])
    monkeypatch.setattr(testing, "browser_if_there_is_one", lambda: None)
    monkeypatch.setattr(testing.needs, "ensure", lambda *_, **__: None)
    monkeypatch.setattr(testing.packers, "in_words", lambda: "none")
    # No test of the folder uses them, and each process would import them.
    monkeypatch.setenv("PYTEST_ADDOPTS", "-pno:hypothesispytest -pno:pytest11.testinfra")
    return tmp_path


def test_the_outcome_of_the_tests_is_one_document_and_pytest_prints_on_stderr(
    checkout: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (checkout / "tests" / "unit" / "test_x.py").write_text(TESTS)
    assert ended(devel.tasks.test, no_lab=True) == 1
    read = capfd.readouterr()
    found = json.loads(read.out)
    assert "test_bad" in read.err and "1 test was skipped" in read.err
    assert (found["exit_status"], found["not_run"]) == (1, [])
    (unit,) = found["parts"]
    counts = {name: unit[name] for name in ("exit_status", "passed", "failed", "skipped")}
    assert counts == {"exit_status": 1, "passed": 1, "failed": 2, "skipped": 1}
    failures = {failure["test"]: failure["message"] for failure in unit["failures"]}
    assert failures.keys() == {
        "tests/unit/test_x.py::TestBusy::test_bad",
        "tests/unit/test_x.py::test_ends_badly",
    }
    assert "assert 1 == 2" in failures["tests/unit/test_x.py::TestBusy::test_bad"]
    skip = {"test": "tests/unit/test_x.py::test_root", "reason": "groups take root"}
    assert unit["skips"] == [skip]


def test_what_ended_early_or_could_not_run_has_failed(tmp_path: Path) -> None:
    found = testing.Outcome(tmp_path, parts={"labs": 4}).as_json()
    assert (found["exit_status"], found["parts"][0]["passed"]) == (4, 0)
    found = testing.Outcome(tmp_path, not_run={"tests/lab": "root is needed"}).as_json()
    assert found["exit_status"] == 1
    assert found["not_run"] == [{"part": "tests/lab", "reason": "root is needed"}]
