"""Deleting the tree from which all guests are made."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest

from lab.rootfs import tree


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
