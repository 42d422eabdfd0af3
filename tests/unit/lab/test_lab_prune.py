"""Old root filesystems of the lab are deleted when they are unused, and never before."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import time
from pathlib import Path

import pytest

from lab.rootfs import prune, tree

OLD = "al2-x86_64-0123456789ab"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The lab's folder of root filesystems, with an old one in it."""
    base = tmp_path / "bases" / OLD
    (base / "etc").mkdir(parents=True)
    (base / "etc" / "os-release").write_text("ID=amzn\n")
    return tmp_path / "bases"


def much_later() -> float:
    return time.time() + prune.GRACE + 60


def test_one_that_nothing_stands_on_is_deleted(home: Path) -> None:
    assert prune.prune(home, much_later()) == [OLD]
    assert [path.name for path in home.iterdir() if path.name != ".used"] == []


def test_one_that_a_build_asked_for_just_now_stays(home: Path) -> None:
    prune.use(home / OLD)
    assert prune.prune(home) == []
    assert (home / OLD / "etc" / "os-release").exists()
    assert prune.prune(home, much_later()) == [OLD]
    assert list((home / ".used").iterdir()) == []


def test_one_under_an_ami_of_another_lab_stays(home: Path) -> None:
    image = home.parent / "lab7" / "images" / "ami-1" / "image.json"
    image.parent.mkdir(parents=True)
    image.write_text(json.dumps({"base": str(home / OLD)}))
    assert prune.prune(home, much_later()) == []
    image.unlink()
    assert prune.prune(home, much_later()) == [OLD]


def test_one_that_was_imported_stays_until_another_is(home: Path) -> None:
    link = home / "al2-x86_64-imported"
    link.symlink_to(OLD)
    assert prune.prune(home, much_later()) == []
    (home / "newer").mkdir()
    link.unlink()
    link.symlink_to("newer")
    assert prune.prune(home, much_later()) == [OLD]


def test_prune_spares_a_tree_that_mmdebstrap_still_makes(home: Path) -> None:
    left = home / ".making-tree-arm64-0123456789ab"
    left.mkdir()
    with (home / ".mmdebstrap.lock").open("w") as lock:  # as mmdebstrap that goes on writing
        fcntl.flock(lock, fcntl.LOCK_EX)
        prune.prune(home)
        assert left.exists()
    prune.prune(home)
    assert not left.exists()


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
