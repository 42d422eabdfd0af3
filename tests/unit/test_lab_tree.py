"""How mmdebstrap is called for the tree from which all guests are made."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from lab import tree

EXCLUDED = ("/usr/share/man/*", "/usr/share/doc/*")


def run_hooks(root: Path, kind: str) -> None:
    """Run the hooks of that kind like mmdebstrap: in a shell, with the root as $1."""
    for option in tree._options(["systemd"], EXCLUDED):
        if option.startswith(f"--{kind}-hook="):
            script = option.split("=", 1)[1]
            subprocess.run(["sh", "-c", script, "exec", str(root)], check=True)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root filesystem in which the essential packages have been unpacked."""
    folder = tmp_path / "root"
    for path in ("usr/share/man/man1", "usr/share/doc/bash", "usr/bin", "etc/dpkg/dpkg.cfg.d"):
        (folder / path).mkdir(parents=True)
    (folder / "usr/share/man/man1/bash.1.gz").touch()
    (folder / "usr/share/doc/bash/copyright").touch()
    (folder / "usr/bin/bash").touch()
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


def test_a_tree_of_other_packages_has_another_name() -> None:
    assert tree._options(["systemd"], EXCLUDED) != tree._options(["systemd", "jq"], EXCLUDED)
    assert tree._options(["systemd"], EXCLUDED) != tree._options(["systemd"], EXCLUDED[:1])


def test_an_mmdebstrap_without_the_hook_works_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tree, "_EATMYDATA", tmp_path)
    assert tree._without_syncs() == [f"--hook-directory={tmp_path}"]
    monkeypatch.setattr(tree, "_EATMYDATA", tmp_path / "missing")
    assert tree._without_syncs() == []
