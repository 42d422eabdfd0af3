"""A machine that cannot run guests: the lab refuses it with the reason."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kiln.base.errors import KilnError
from lab.base import shell
from lab.daemon import cell, host
from lab.rootfs import aptsources


@pytest.mark.parametrize(
    ("file", "text", "reason"),
    [
        ("filesystems", "nodev\tproc\n\text4\n", "modprobe overlay"),
        ("sys/user/max_user_namespaces", "0\n", "sysctl -w user.max_user_namespaces=10000"),
        (
            "sys/kernel/apparmor_restrict_unprivileged_userns",
            "1\n",
            "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0",
        ),
    ],
)
def test_machine_without_namespaces_or_overlays_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, text: str, reason: str
) -> None:
    works = {"filesystems": "nodev\toverlay\n", "sys/user/max_user_namespaces": "9\n"}
    for name, fine in works.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(fine)
    monkeypatch.setattr(host, "PROC", tmp_path)
    monkeypatch.setattr(host, "DEVICES", ())
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    host.can_run()
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text(text)
    with pytest.raises(KilnError, match=reason):
        host.can_run()


def test_closed_device_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    absent = tmp_path / "tun"
    monkeypatch.setattr(host, "DEVICES", (Path("/dev/null"), absent))
    with pytest.raises(KilnError, match=f"needs read and write access: chmod a[+]rw {absent}"):
        host.can_run()


@pytest.mark.parametrize("listed", ["", "0: nobody 100000 1000\n"])
def test_user_without_subordinate_ids_is_told_the_command(
    monkeypatch: pytest.MonkeyPatch, listed: str
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 65534)
    monkeypatch.setattr(cell, "run", lambda *words, check: listed)
    with pytest.raises(KilnError, match="nobody has no range of 65,536") as refused:
        cell.first_ids()
    assert "usermod --add-subuids" in refused.value.hint


def test_failed_command_is_told_with_its_output() -> None:
    with pytest.raises(shell.CommandError, match="exit status 3: no"):
        shell.run("sh", "-c", "echo no; exit 3")


def test_archive_is_found_by_who_cannot_write_apts_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configuration = tmp_path / "apt.conf"
    # Nobody makes a file there. What an image of Docker sets instead is left out.
    cache = 'Dir::Cache::srcpkgcache "/proc/srcpkgcache.bin";'
    configuration.write_text(f'{cache}\nDir::Etc::Parts "/nowhere";\n')
    monkeypatch.setenv("APT_CONFIG", str(configuration))
    monkeypatch.setenv("KILN_LAB_STATE", str(tmp_path / "lab"))
    assert aptsources.host().sources
