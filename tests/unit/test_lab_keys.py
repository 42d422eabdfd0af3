"""The lab's own key, and the folders that nobody else enters."""

from __future__ import annotations

import json
import os
import stat
import threading
from pathlib import Path

import boto3
import pytest
from moto import mock_aws

from kiln.base.errors import KilnError
from lab import folders
from lab.access import keys, moto_keys
from lab.settings import Lab


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(7, tmp_path / "kiln-lab")


def test_a_key_is_made_once_and_only_its_owner_reads_it(lab: Lab) -> None:
    before = os.umask(0)
    try:
        key = keys.ensure(lab)
    finally:
        os.umask(before)
    assert keys.ensure(lab) == key
    (file,) = lab.state.iterdir()
    assert (mode(file), mode(lab.state), mode(lab.root)) == (0o600, 0o700, 0o700)
    assert key.secret in file.read_text()
    other = keys.ensure(Lab(8, lab.root))
    assert (other.id, other.secret) != (key.id, key.secret)
    assert len({*keys.ensure(lab).secret}) > 15


def test_two_threads_that_need_the_first_key_get_the_same(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    others: list[keys.Key] = []
    dump = json.dump

    def interrupted(*arguments: object) -> None:
        monkeypatch.setattr(json, "dump", dump)
        other = threading.Thread(target=lambda: others.append(keys.ensure(lab)))
        other.start()
        other.join()
        dump(*arguments)

    monkeypatch.setattr(json, "dump", interrupted)
    assert [keys.ensure(lab)] == others


def test_a_lab_starts_whose_folder_another_lab_makes_at_the_same_moment(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    exists = Path.exists

    def a_moment_ago(path: Path) -> bool:
        was = exists(path)
        path.mkdir(parents=True, exist_ok=True)
        return was

    monkeypatch.setattr(Path, "exists", a_moment_ago)
    folders.private(lab.root, lab.state)
    assert lab.state.is_dir()


def test_a_damaged_file_is_one_message(lab: Lab) -> None:
    keys.ensure(lab)
    (file,) = lab.state.iterdir()
    for text in ("", "[]", "{}", "null"):
        file.write_text(text)
        with pytest.raises(KilnError, match="does not hold the lab's keys") as error:
            keys.ensure(lab)
        assert error.value.exit_status == 1


def test_who_may_not_read_it_is_told_to_use_sudo(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(folders, "private", refuse)
    with pytest.raises(KilnError, match="readable by root only") as error:
        keys.ensure(lab)
    assert "sudo" in error.value.hint


def test_a_folder_of_root_is_a_matter_of_sudo(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid() != 0:
        pytest.skip("root: a folder must belong to it")
    assert keys.read(lab) is None
    assert not lab.root.exists(), "who only asks makes nothing"
    lab.state.mkdir(parents=True)
    monkeypatch.setattr(os, "geteuid", lambda: 4242)
    with pytest.raises(KilnError, match="readable by root only"):
        keys.ensure(lab)


def test_folders_that_an_older_lab_left_open_are_closed(lab: Lab) -> None:
    lab.instances.mkdir(parents=True, mode=0o755)
    lab.state.chmod(0o755)
    folders.private(lab.root, lab.instances)
    assert (mode(lab.state), mode(lab.instances)) == (0o700, 0o700)


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


def test_each_guest_has_user_ids_of_its_own() -> None:
    ranges = {
        Lab(index, Path("/")).first_id(f"10.{201 + index}.{1 + number // 250}.{2 + number % 250}")
        for index in range(55)
        for number in range(256)
    }
    assert len(ranges) == 55 * 256
    assert all(first % 65536 == 0 for first in ranges)
    # https://systemd.io/UIDS-GIDS/: what a host leaves to containers.
    assert min(ranges) >= 0x00080000
    assert max(ranges) + 65535 <= 0x6FFFFFFF


def test_the_folders_of_labs_of_an_older_version_are_closed(tmp_path: Path) -> None:
    """They were open to all, with setuid programs in the layers of their AMIs."""
    old, other = tmp_path / "lab30", tmp_path / "labels"
    for folder in (old / "images", other):
        folder.mkdir(parents=True)
    old.chmod(0o755)
    (tmp_path / "lab31").symlink_to(other)
    other.chmod(0o755)
    folders.close_others(tmp_path)
    assert stat.S_IMODE(old.stat().st_mode) == 0o700
    assert stat.S_IMODE(other.stat().st_mode) == 0o755


@mock_aws
def test_a_key_of_an_iam_user_counts_while_it_is_active() -> None:
    iam = boto3.client("iam", aws_access_key_id="x", aws_secret_access_key="x")
    iam.create_user(UserName="u")
    made = iam.create_access_key(UserName="u")["AccessKey"]
    found = moto_keys.find(made["AccessKeyId"])
    assert found
    assert found.secret == made["SecretAccessKey"]
    iam.update_access_key(UserName="u", AccessKeyId=made["AccessKeyId"], Status="Inactive")
    assert moto_keys.find(made["AccessKeyId"]) is None
