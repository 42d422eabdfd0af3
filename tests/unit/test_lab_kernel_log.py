"""The kernel log is open to guests as long as any lab of the machine has some."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lab import host
from lab.settings import Lab


@pytest.fixture
def setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """dmesg_restrict of a machine that closes its log."""
    path = tmp_path / "dmesg_restrict"
    path.write_text("1\n")
    monkeypatch.setattr(host, "_DMESG", path)
    monkeypatch.setattr(host, "_LIMITS", {})
    monkeypatch.setattr(host, "_OF_KERNEL_LOG", tmp_path / "run" / "kernel-log")
    return path


@pytest.mark.parametrize("folder", ["labs", "others"])
def test_a_lab_that_goes_down_leaves_the_log_open_for_one_that_is_not_up_yet_in_any_folder(
    setting: Path, tmp_path: Path, folder: str
) -> None:
    old, new = Lab(0, tmp_path / "labs"), Lab(3, tmp_path / folder)
    host.prepare(old)
    host.prepare(new)
    host.restore(old)
    assert setting.read_text() == "0"
    host.restore(new)
    assert setting.read_text() == "1\n"


def test_a_lab_that_was_never_up_leaves_the_log_as_it_is(setting: Path, tmp_path: Path) -> None:
    host.restore(Lab(0, tmp_path / "labs"))
    assert setting.read_text() == "1\n"


def test_a_lab_that_was_killed_keeps_the_log_open_for_nobody(setting: Path, tmp_path: Path) -> None:
    lab, killed = Lab(0, tmp_path / "labs"), Lab(3, tmp_path / "labs")
    host.prepare(killed)
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    (file,) = (tmp_path / "run").rglob("*.pid")
    file.write_text(str(child))
    host.prepare(lab)
    host.restore(lab)
    assert setting.read_text() == "1\n"
