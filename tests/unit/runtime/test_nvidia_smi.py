"""The runner of nvidia-smi that gpu-xid, gpu-mig and kiln-gpu-boot share."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from kiln.base import paths

nvidia_smi = paths.runtime_module("gpu_common.nvidia_smi")


def program(folder: Path, body: str) -> str:
    path = folder / "nvidia-smi"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


def test_output_is_returned_with_what_stands_on_stderr(tmp_path: Path) -> None:
    assert nvidia_smi.run(["-L"], 60, program(tmp_path, "echo $1; echo more >&2")) == "-L\nmore\n"


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ("echo No devices were found; exit 6", 6, "nvidia-smi -q: exit status 6: No devices"),
        ("exit 9", 9, "no output"),
    ],
)
def test_failure_is_named_with_its_first_line(
    tmp_path: Path, body: str, status: int, words: str
) -> None:
    with pytest.raises(nvidia_smi.NvidiaSmiError, match=words) as caught:
        nvidia_smi.run(["-q"], 60, program(tmp_path, body))
    assert caught.value.status == status


def test_missing_program_is_named(tmp_path: Path) -> None:
    with pytest.raises(nvidia_smi.NvidiaSmiError, match="is not installed"):
        nvidia_smi.run([], 60, str(tmp_path / "none"))


def test_process_that_no_signal_ends_is_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broken GPU keeps nvidia-smi in the kernel, where SIGKILL waits."""
    left: list[subprocess.Popen[bytes]] = []
    monkeypatch.setattr(subprocess.Popen, "kill", lambda child: left.insert(0, child))
    with pytest.raises(nvidia_smi.NvidiaSmiError, match=r"did not answer in 0\.2 s"):
        nvidia_smi.run([], 0.2, program(tmp_path, "exec sleep 600"))
    (child,) = left
    assert child.poll() is None
    child.terminate()
    child.wait()
