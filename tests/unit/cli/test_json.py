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


def answer(capsys: pytest.CaptureFixture[str], task: Task[Any], **flags: Any) -> Any:
    """The document that a task prints with --json."""
    task(Context(), **flags, json=True)
    return json.loads(capsys.readouterr().out)


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
