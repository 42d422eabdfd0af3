"""What a task needs on this machine: found, or installed after saying so, or refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kiln.base import needs
from kiln.base.errors import KilnError
from lab.daemon import host

INSTALL = "-q install -y --no-install-recommends packer"
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="others go through sudo")


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


def ensured(*, install: bool = True) -> list[str]:
    """What is said while Packer is ensured."""
    said: list[str] = []
    needs.ensure("packer", install=install, say=said.append)
    return said


def test_missing_program_is_named_with_package_and_reason(machine: Path) -> None:
    (packer,) = needs.missing("packer")
    assert (packer.command, packer.package, bool(packer.why)) == ("packer", "packer", True)
    program(machine, "packer")
    assert needs.missing("packer") == []
    assert ensured() == []


def test_no_install_and_no_apt_are_refused(machine: Path) -> None:
    with pytest.raises(KilnError, match="apt-get is not available"):
        ensured()
    program(machine, "apt-get", "exit 99")
    with pytest.raises(KilnError, match="--no-install was given") as caught:
        ensured(install=False)
    assert caught.value.exit_status == 1
    assert caught.value.hint.startswith("run: sudo sh -c 'apt-get update && apt-get install -y ")


@as_root
def test_installation_is_said_and_repeated_with_new_lists(machine: Path, tmp_path: Path) -> None:
    asked, lists = tmp_path / "asked", tmp_path / "lists"
    text = f'echo "$DEBIAN_FRONTEND $*" >> {asked}\ncase "$*" in *update) : > {lists};; esac\n'
    program(machine, "apt-get", f"{text}[ -e {lists} ]")
    assert ensured()[0].startswith("installing with apt-get:\n  packer: ")
    calls = [line.removeprefix("noninteractive ") for line in asked.read_text().splitlines()]
    assert calls == [INSTALL, "-q update", INSTALL]


@as_root
def test_failed_installation_has_apts_last_words(machine: Path) -> None:
    program(machine, "apt-get", 'echo "E: Unable to lock the list directory" >&2; exit 100')
    with pytest.raises(KilnError, match="update failed: E: Unable to lock") as caught:
        ensured()
    assert "install by hand" in caught.value.hint


def test_path_without_sbin_is_completed(
    machine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sbin = tmp_path / "sbin"
    sbin.mkdir()
    program(sbin, "packer")
    monkeypatch.setattr(needs, "_SBIN", (str(sbin),))
    ensured(install=False)
    assert os.environ["PATH"].split(os.pathsep) == [str(machine), str(sbin)]


def test_machine_without_linux_or_root_has_no_lab(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name, value, says in (
        (host.os, "geteuid", lambda: 1000, "it needs root"),
        (host.sys, "platform", "darwin", r"it needs Linux \(this is darwin\)"),
    ):
        monkeypatch.setattr(module, name, value)
        with pytest.raises(KilnError, match=says) as caught:
            host.can_run()
        assert "list, check, render, validate, and building in AWS" in caught.value.hint
