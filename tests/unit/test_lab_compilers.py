"""The compilers are unpacked beside mmdebstrap's own work and then linked into the guests' tree."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab import compilers

EXCLUDED = ("/usr/share/man/*", "/usr/share/doc/*")


@pytest.fixture
def unpacked(tmp_path: Path) -> Path:
    """A folder like the one that mmdebstrap unpacks: gcc, a library, its manual, dpkg's list."""
    folder = tmp_path / "unpacked"
    for path in ("usr/bin/gcc-12", "usr/lib/libc.so.6", "usr/share/man/man1/gcc.1.gz",
                 "etc/perl/net.cfg", "var/lib/dkms/.keep", "var/lib/dpkg/status"):  # fmt: skip
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text("unpacked")
    (folder / "usr/bin/gcc").symlink_to("gcc-12")
    (folder / "usr/lib/gcc").symlink_to("x86_64-linux-gnu", target_is_directory=True)
    (folder / "etc/perl").chmod(0o750)
    return folder


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A guest's tree that has the library already."""
    folder = tmp_path / "tree"
    (folder / "usr/lib").mkdir(parents=True)
    (folder / "usr/lib/libc.so.6").write_text("installed")
    (folder / "etc").mkdir()
    (folder / "var/lib").mkdir(parents=True)
    return folder


def test_the_tree_gets_what_it_lacks_and_keeps_what_it_has(unpacked: Path, tree: Path) -> None:
    compilers.add(unpacked, tree, EXCLUDED)
    assert (tree / "usr/bin/gcc").read_text() == "unpacked"
    assert (tree / "usr/bin/gcc").readlink() == Path("gcc-12")
    assert (tree / "usr/lib/gcc").readlink() == Path("x86_64-linux-gnu")
    assert (tree / "usr/lib/libc.so.6").read_text() == "installed"


def test_a_folder_of_state_that_a_package_brings_is_there(unpacked: Path, tree: Path) -> None:
    compilers.add(unpacked, tree, EXCLUDED)
    assert (tree / "var/lib/dkms").is_dir()


def test_folders_keep_their_permissions(unpacked: Path, tree: Path) -> None:
    compilers.add(unpacked, tree, EXCLUDED)
    assert (tree / "etc/perl").stat().st_mode & 0o7777 == 0o750


def test_documentation_and_the_database_of_dpkg_stay_behind(unpacked: Path, tree: Path) -> None:
    compilers.add(unpacked, tree, EXCLUDED)
    assert not (tree / "usr/share/man").exists()
    assert not (tree / "var/lib/dpkg").exists()


def test_a_second_time_changes_nothing(unpacked: Path, tree: Path) -> None:
    compilers.add(unpacked, tree, EXCLUDED)
    before = sorted(tree.rglob("*"))
    compilers.add(unpacked, tree, EXCLUDED)
    assert sorted(tree.rglob("*")) == before
