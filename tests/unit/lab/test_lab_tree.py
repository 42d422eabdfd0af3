"""How mmdebstrap is called for the tree from which all guests are made."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from lab.rootfs import mmdebstrap, tree
from lab.rootfs.aptsources import Archive

ARCHIVE = Archive("debian", "bookworm", ())
EXCLUDED = ("/usr/share/man/*", "/usr/share/doc/*")


def run_hooks(root: Path, kind: str) -> None:
    """Run the hooks of that kind like mmdebstrap: in a shell, with the root as $1."""
    for option in tree.mmdebstrap_options(["systemd"], EXCLUDED):
        if option.startswith(f"--{kind}-hook="):
            script = option.split("=", 1)[1]
            subprocess.run(
                ["sh", "-c", script, "exec", str(root)],
                env={**os.environ, "PATH": f"{root.parent / 'bin'}:{os.environ['PATH']}"},
                check=True,
            )


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root filesystem in which the essential packages have been unpacked."""
    folder = tmp_path / "root"
    for path in ("usr/share/man/man1", "usr/share/doc/bash", "usr/bin", "etc/dpkg/dpkg.cfg.d"):
        (folder / path).mkdir(parents=True)
    (folder / "usr/share/man/man1/bash.1.gz").touch()
    (folder / "usr/share/doc/bash/copyright").touch()
    (folder / "usr/bin/bash").touch()
    # Programs of the tree cannot run here: what would be run is written down instead.
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "chroot").write_text(f'#!/bin/sh\nshift\necho "$*" >> {tmp_path}/in-the-tree\n')
    (programs / "chroot").chmod(0o755)
    return folder


def test_dpkg_leaves_documentation_out_while_the_tree_is_made(root: Path) -> None:
    run_hooks(root, "extract")
    (setting,) = (root / "etc/dpkg/dpkg.cfg.d").iterdir()
    lines = setting.read_text().splitlines()
    assert lines == ["path-exclude=/usr/share/man/*", "path-exclude=/usr/share/doc/*"]


def test_guests_have_no_such_setting_and_no_documentation(root: Path) -> None:
    run_hooks(root, "extract")
    run_hooks(root, "customize")
    files = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}
    assert files == {"usr/bin/bash"}
    assert not any((root / "usr/share/man").iterdir())


def test_a_tree_waits_for_the_mmdebstrap_that_a_killed_build_has_left(
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


def test_a_tree_whose_deletion_was_interrupted_is_not_taken_for_a_whole_one(
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
