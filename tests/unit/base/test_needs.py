"""What a task needs on this machine: found, or installed after saying so, or refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kiln.base import needs
from kiln.base.errors import KilnError
from lab.daemon import host

INSTALL = "-q install -y --no-install-recommends packer"


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine of root whose PATH is one empty folder; programs can be put there."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr(needs, "_SBIN", ())
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    return folder


def program(folder: Path, name: str, text: str = "exit 0") -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def ensured(*, install: bool = True) -> list[str]:
    """What is said while packer is installed."""
    said: list[str] = []
    needs.ensure("packer", install=install, say=said.append)
    return said


def test_missing_program_is_named_until_it_is_there(machine: Path) -> None:
    (packer,) = needs.missing("packer")
    assert (packer.command, packer.package) == ("packer", "packer")
    program(machine, "packer")
    assert needs.missing("packer") == []
    assert ensured() == []


def test_no_install_gives_the_line_to_run(machine: Path) -> None:
    program(machine, "apt-get", "exit 99")
    with pytest.raises(KilnError, match="nothing may be installed") as caught:
        ensured(install=False)
    assert caught.value.exit_status == 1
    assert "apt-get install -y " in caught.value.hint


@pytest.mark.parametrize(
    ("apt", "reason"),
    [
        (None, "apt-get is not available"),
        ('echo "E: Unable to lock the directory" >&2; echo Reading; exit 100', "E: Unable to lock"),
    ],
)
def test_failed_installation_has_its_reason(machine: Path, apt: str | None, reason: str) -> None:
    if apt:
        program(machine, "apt-get", apt)
    with pytest.raises(KilnError, match=reason):
        ensured()


@pytest.mark.parametrize("outdated", [False, True])
def test_program_is_installed_after_saying_so(
    machine: Path, tmp_path: Path, outdated: bool
) -> None:
    """Package lists that are out of date are fetched once."""
    lists, asked = tmp_path / "lists", tmp_path / "asked"
    if not outdated:
        lists.touch()
    update = f'case "$*" in *update) : > {lists};; esac'
    program(machine, "apt-get", f'echo "$*" >> {asked}\n{update}\n[ -e {lists} ]')
    assert ensured()[0].startswith("installing with apt-get:\n  packer: ")
    again = ["-q update", INSTALL] if outdated else []
    assert asked.read_text().splitlines() == [INSTALL, *again]


def test_tools_are_found_in_sbin(
    machine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sbin = tmp_path / "sbin"
    sbin.mkdir()
    program(sbin, "packer")
    monkeypatch.setattr(needs, "_SBIN", (str(sbin),))
    assert ensured(install=False) == []
    assert os.environ["PATH"].split(os.pathsep) == [str(machine), str(sbin)]


def test_lab_needs_linux(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host.sys, "platform", "darwin")
    with pytest.raises(KilnError, match=r"it needs Linux \(this is darwin\)"):
        host.can_run()
