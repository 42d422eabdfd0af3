"""The kernel's settings while any lab of the machine needs them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lab.base.settings import Lab
from lab.daemon import host


@pytest.fixture
def setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """dmesg_restrict of a machine that closes its log, forwards nothing, and has no bridge."""
    for name, value in (("kernel/dmesg_restrict", "1"), ("net/ipv4/ip_forward", "0")):
        (tmp_path / "sys" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "sys" / name).write_text(f"{value}\n")
    (tmp_path / "net" / "eth0").mkdir(parents=True)
    monkeypatch.setattr(host, "SYSCTLS", tmp_path / "sys")
    monkeypatch.setattr(host, "INTERFACES", tmp_path / "net")
    monkeypatch.setattr(host, "_LIMITS", {})
    monkeypatch.setattr(host, "_NEEDED", tmp_path / "run")
    return tmp_path / "sys" / "kernel" / "dmesg_restrict"


@pytest.mark.parametrize("folder", ["labs", "others"])
def test_lab_down_keeps_the_log_open_for_a_starting_lab(
    setting: Path, tmp_path: Path, folder: str
) -> None:
    old, new = Lab(0, tmp_path / "labs"), Lab(3, tmp_path / folder)
    host.prepare(old)
    host.prepare(new)
    host.restore(old)
    assert setting.read_text() == "0"
    host.restore(new)
    assert setting.read_text().strip() == "1"


def test_a_lab_that_was_killed_keeps_the_log_open_for_nobody(setting: Path, tmp_path: Path) -> None:
    lab, killed = Lab(0, tmp_path / "labs"), Lab(3, tmp_path / "labs")
    host.prepare(killed)
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    (file,) = (tmp_path / "run").rglob("*.pid")
    file.write_text(str(child))
    host.prepare(lab)
    host.restore(lab)
    assert setting.read_text().strip() == "1"


@pytest.mark.parametrize(("bridge", "after"), [("", "0"), ("docker0/bridge", "1")])
def test_ip_forward_is_restored_unless_containers_need_it(
    setting: Path, tmp_path: Path, bridge: str, after: str
) -> None:
    forward, lab = setting.parents[1] / "net" / "ipv4" / "ip_forward", Lab(0, tmp_path / "labs")
    host.prepare(lab)
    assert forward.read_text() == "1"
    if bridge:
        (tmp_path / "net" / bridge).mkdir(parents=True)
    host.restore(lab)
    assert forward.read_text().strip() == after
