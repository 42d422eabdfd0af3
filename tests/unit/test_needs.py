"""What a task needs on this machine: found, or installed after saying so, or refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kiln.base import needs
from kiln.base.errors import KilnError
from lab.daemon import host


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine whose PATH is one empty folder; programs can be put there."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr(needs, "_SBIN", ())
    return folder


def program(folder: Path, name: str, text: str = "exit 0") -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def test_what_is_missing_is_named_with_its_package_and_reason(machine: Path) -> None:
    (packer,) = needs.missing("packer")
    assert (packer.command, packer.package) == ("packer", "packer")
    assert packer.why
    program(machine, "packer")
    assert needs.missing("packer") == []


def test_nothing_is_said_or_run_when_nothing_is_missing(machine: Path) -> None:
    program(machine, "packer")
    messages: list[str] = []
    needs.ensure("packer", install=True, say=messages.append)
    assert messages == []


def test_no_install_gives_the_line_to_run(machine: Path) -> None:
    program(machine, "apt-get", "exit 99")
    with pytest.raises(KilnError, match="--no-install was given") as caught:
        needs.ensure("packer", install=False, say=lambda text: None)
    assert caught.value.exit_status == 1
    assert caught.value.hint.startswith("run: sudo sh -c 'apt-get update && apt-get install -y ")


def test_a_machine_without_apt_is_told_what_to_bring(machine: Path) -> None:
    with pytest.raises(KilnError, match="apt-get is not available"):
        needs.ensure("packer", install=True, say=lambda text: None)


@pytest.mark.skipif(os.geteuid() != 0, reason="others go through sudo")
def test_before_installing_it_says_what_and_why_and_then_asks_apt(
    machine: Path, tmp_path: Path
) -> None:
    program(machine, "apt-get", f'echo "$DEBIAN_FRONTEND $*" >> {tmp_path}/asked')
    messages: list[str] = []
    needs.ensure("packer", install=True, say=messages.append)
    assert messages[0].startswith("installing with apt-get:\n  packer: ")
    assert (tmp_path / "asked").read_text().splitlines() == [
        "noninteractive -q install -y --no-install-recommends packer",
    ]


@pytest.mark.skipif(os.geteuid() != 0, reason="others go through sudo")
def test_outdated_package_lists_are_updated_once_and_the_installation_is_repeated(
    machine: Path, tmp_path: Path
) -> None:
    lists = tmp_path / "lists"
    program(
        machine,
        "apt-get",
        f'echo "$*" >> {tmp_path}/asked\ncase "$*" in *update) : > {lists};; esac\n[ -e {lists} ]',
    )
    needs.ensure("packer", install=True, say=lambda text: None)
    install = "-q install -y --no-install-recommends packer"
    assert (tmp_path / "asked").read_text().splitlines() == [install, "-q update", install]


@pytest.mark.skipif(os.geteuid() != 0, reason="others go through sudo")
def test_when_apt_fails_its_last_words_are_told(machine: Path) -> None:
    program(machine, "apt-get", 'echo "E: Unable to lock the list directory" >&2; exit 100')
    with pytest.raises(KilnError, match="update failed: E: Unable to lock") as caught:
        needs.ensure("packer", install=True, say=lambda text: None)
    assert "install by hand" in caught.value.hint


def test_a_users_path_may_leave_out_where_the_systems_tools_are(
    machine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sbin = tmp_path / "sbin"
    sbin.mkdir()
    program(sbin, "packer")
    monkeypatch.setattr(needs, "_SBIN", (str(sbin),))
    needs.ensure("packer", install=False, say=lambda text: None)
    assert os.environ["PATH"].split(os.pathsep) == [str(machine), str(sbin)]


def test_a_machine_without_linux_has_no_lab(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host.sys, "platform", "darwin")
    with pytest.raises(KilnError, match=r"it needs Linux \(this is darwin\)") as caught:
        host.can_run()
    assert "list, check, render, validate, and building in AWS" in caught.value.hint
