"""Updates that the lab's mirror publishes: what is kept of them, and where."""

from __future__ import annotations

import stat
import threading
from pathlib import Path

import pytest

from lab.mirror import updates
from lab.mirror.updates import PublishedUpdate
from lab.settings import current


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KILN_LAB_STATE", str(tmp_path / "state"))
    return current().state


def test_an_update_before_the_first_start_of_a_lab_makes_a_folder_that_only_its_user_reads(
    state: Path,
) -> None:
    updates.add(PublishedUpdate("al2", "curl", "9.9", "1"))
    for folder in (state, state.parent):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_updates_that_are_published_at_once_are_all_kept() -> None:
    wanted = [PublishedUpdate("al2", "curl", "9.9", str(number)) for number in range(20)]
    threads = [threading.Thread(target=updates.add, args=(update,)) for update in wanted]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    kept = updates.published("al2")
    assert len(kept) == len(wanted)
    assert {*kept} == {*wanted}
