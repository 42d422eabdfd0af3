"""A run's clean-up: begun once, hurried by a second Ctrl-C, and never skipped."""

from __future__ import annotations

import io
from typing import Any
from unittest.mock import MagicMock

import pytest

from kiln.base.errors import KilnError
from kiln.base.processes import Stop, StoppedError
from kiln.base.progress import Progress
from kiln.cloud import cleanup
from kiln.pipeline import draft
from kiln.pipeline.draft import Draft
from tests.unit.records import a_record


@pytest.fixture
def forgotten(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The runs whose keys were forgotten."""
    runs: list[object] = []
    monkeypatch.setattr(draft, "forget_key", runs.append)
    return runs


def a_draft(stop: Stop, out: io.StringIO | None = None) -> Draft:
    made = Draft(a_record(), MagicMock(), MagicMock(), Progress(out or io.StringIO()), stop)
    made.target.hooks.gone.return_value = None
    return made


@pytest.mark.usefixtures("forgotten")
def test_clean_up_goes_on_after_the_first_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A build that ended well left its security group when Ctrl-C came while it cleaned up."""
    seen: list[bool] = []
    stop = Stop()

    def remove(run_id: str, target: object, **given: Any) -> cleanup.Removal:
        for _ in range(2):
            stop.set()
            seen.append(given["hurried"]())
        return cleanup.Removal()

    monkeypatch.setattr(draft.cleanup, "remove", remove)
    draft.remove_resources(a_draft(stop.for_run()), amis=False)
    assert seen == [False, True]


def test_run_without_a_reader_is_still_cleaned_up(
    monkeypatch: pytest.MonkeyPatch, forgotten: list[object]
) -> None:
    """Ctrl-C in `./invoke build 2>&1 | tee log` ends tee too."""

    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError(text)

    monkeypatch.setattr(
        draft.cleanup, "remove", lambda *_, **given: cleanup.Removal(["instance i-1"])
    )
    made = a_draft(Stop(), Gone())
    monkeypatch.setattr(made, "write", lambda: None)
    with (
        pytest.raises(KilnError, match=r"interrupted\s+cleaned up: instance i-1"),
        draft.cleaned_up(made, delete_ami_on_failure=True),
        made.progress.stage("packer build"),
    ):
        raise StoppedError
    assert forgotten == [made.run]
    assert made.run.mark_clean.called  # type: ignore[attr-defined]
    assert made.record.error == "interrupted"
