"""The lab's folders: closed to other users, complete once in their place."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from kiln.base.errors import KilnError
from lab.base import folders
from lab.base.settings import Lab


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(7, tmp_path / "kiln-lab")


def test_a_folder_of_the_user_is_left_as_it_is(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    lab = Lab(7, tmp_path)
    folders.private(lab.root, lab.state)
    assert (mode(tmp_path), mode(lab.state)) == (0o755, 0o700)


def test_a_folder_that_another_user_could_change_is_refused(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    lab = Lab(7, tmp_path)
    lab.state.symlink_to(elsewhere)
    with pytest.raises(KilnError, match="is a link, or belongs to another user"):
        folders.private(lab.root, lab.state)
    if os.geteuid() == 0:  # only root can give a folder away
        lab.state.unlink()
        lab.state.mkdir()
        os.chown(lab.state, 4242, 4242)
        with pytest.raises(KilnError, match="is a link, or belongs to another user"):
            folders.private(lab.root, lab.state)
