"""`--json`: a program reads one document on standard output."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from invoke import Context, Task

from kiln.base.yaml_files import parse_template
from kiln.cli import launch, telemetry
from lab import tasks as lab
from lab.base.settings import current
from lab.daemon import control
from lab.rootfs import importer


def answer(capsys: pytest.CaptureFixture[str], task: Task[Any], **flags: Any) -> Any:
    """The document that a task prints with --json."""
    task(Context(), **flags, json=True)
    return json.loads(capsys.readouterr().out)


def test_lab_tasks_answer_in_json(
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


def test_document_is_in_the_answer_and_in_the_file(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    stack, nodes, script = (tmp_path / name for name in ("gpu.yaml", "nodes.yaml", "install.sh"))
    flags: dict[str, Any] = {"gpu_type": ["g6.12xlarge"], "watch": []}
    shown = answer(capsys, telemetry.render, **flags, out=str(stack))
    assert shown == {"file": str(stack), "template": parse_template(stack.read_text())}
    assert answer(capsys, telemetry.render, **flags) == {**shown, "file": None}
    flags = {"line": "al2023/lts/eks/x86_64", "for_": "karpenter"}
    shown = answer(capsys, launch.consume, **flags, out=str(nodes))
    assert shown["document"] == nodes.read_text()
    assert answer(capsys, launch.consume, **flags) == {**shown, "file": None}
    shown = answer(capsys, telemetry.bundle, out=str(script))
    sha256 = hashlib.sha256(script.read_bytes()).hexdigest()
    assert shown == {"file": str(script), "sha256": sha256}
