"""`lab.clean --all`: what is removed, what is left, and how the user removes that."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest

from kiln.base.errors import KilnError, operation_failed
from lab.base.settings import Lab
from lab.daemon import control, uninstall, users

# As /var/log/apt/history.log has it.
HISTORY = """
Start-Date: 2026-11-23  09:15:01
Commandline: apt-get -q install -y --no-install-recommends dpkg mmdebstrap nosuchpackage
Install: mmdebstrap:amd64 (1.3.5-7), arch-test:amd64 (0.20-1, automatic)
End-Date: 2026-11-23  09:15:04

Start-Date: 2026-11-23  09:16:01
Commandline: apt-get install -y packer
End-Date: 2026-11-23  09:16:04
"""


def test_only_packages_of_our_tasks_are_named(tmp_path: Path) -> None:
    (tmp_path / "history.log").write_text(HISTORY)
    (tmp_path / "history.log.1.gz").write_bytes(gzip.compress(HISTORY.encode()))
    for name in ("dpkg.list", "mmdebstrap:amd64.list", "packer.list"):
        (tmp_path / name).touch()
    assert uninstall.packages_from_apt(tmp_path, tmp_path) == ["dpkg", "mmdebstrap"]


@pytest.fixture
def labs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Labs 0 and 3 of a folder; what the clean-up of one does is left out."""
    root = tmp_path / "labs"
    for name in ("lab0", "lab3", "bases"):
        (root / name).mkdir(parents=True)
    monkeypatch.setenv("KILN_LAB_STATE", str(root))

    def clean(lab: Lab, *, bases: bool = False, **more: Any) -> list[str]:
        return [f"{lab.bridge} {'with' if bases else 'without'} bases"]

    monkeypatch.setattr(control, "clean", clean)
    monkeypatch.setattr(uninstall, "packages_from_apt", lambda: ["mmdebstrap", "packer"])
    return root


def test_every_lab_goes_and_leftovers_are_named(
    labs: Path,
) -> None:
    done = uninstall.remove_all_labs(force=False, say=lambda line: None)
    assert done["removed"] == ["lab3 without bases", "lab0 with bases", f"folder {labs}"]
    assert not labs.exists()
    lines = uninstall.text(done).splitlines()
    assert "  to remove them: apt-get purge --autoremove mmdebstrap packer" in lines
    assert any(line.startswith("left: ") and ".venv, which goes with" in line for line in lines)


def test_nothing_is_removed_while_a_build_uses_one_of_them(
    labs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(lab: Lab) -> None:
        if lab.index == 3:
            raise operation_failed("lab3 is in use")

    monkeypatch.setattr(users, "refuse_if_used", refuse)
    with pytest.raises(KilnError, match="lab3 is in use"):
        uninstall.remove_all_labs(force=False, say=lambda line: None)
    assert labs.exists()
