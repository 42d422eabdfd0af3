"""How mmdebstrap is called for the tree from which all guests are made."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest

from lab.rootfs import mmdebstrap, tree
from lab.rootfs.aptsources import Archive

ARCHIVE = Archive("debian", "bookworm", ())


def test_tree_waits_for_an_orphaned_mmdebstrap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    # It writes until it is told to end, whatever becomes of who has started it.
    (programs / "mmdebstrap").write_text(
        f"#!/bin/sh\nmkdir -p {tmp_path}/tree\nuntil [ -e {tmp_path}/end ]; do\n"
        f"    touch {tmp_path}/tree/$(date +%N)\ndone\n"
    )
    (programs / "mmdebstrap").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    killed = os.fork()
    if not killed:
        with mmdebstrap.alone(tmp_path, print) as lock:
            mmdebstrap.make(ARCHIVE, "x86_64", (), tmp_path / "tree", tmp_path / "log", lock)
    while not (tmp_path / "tree").exists():
        assert os.waitpid(killed, os.WNOHANG) == (0, 0), (tmp_path / "log").read_text()
    os.kill(killed, signal.SIGKILL)
    os.waitpid(killed, 0)
    waits: list[str] = []

    def say(line: str) -> None:
        waits.append(line)
        (tmp_path / "end").touch()

    with mmdebstrap.alone(tmp_path, say):
        tree.delete(tmp_path / "tree")
    assert len(waits) == 1
    assert not (tmp_path / "tree").exists()
    with mmdebstrap.alone(tmp_path, say):
        assert len(waits) == 1


def test_interrupted_deletion_leaves_no_whole_tree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = tmp_path / "al2-x86_64-1"
    (whole / "etc").mkdir(parents=True)
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", lambda path: os.kill(os.getpid(), signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            tree.delete(whole)
    assert not whole.exists()
    assert tree.delete(whole), "the next call deletes what was left"
    assert list(tmp_path.iterdir()) == []
    assert not tree.delete(whole)
