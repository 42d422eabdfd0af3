"""Tags of AMIs: the verdict is read as it was written; what cannot import the names has them."""

from __future__ import annotations

import pytest

from kiln.base import tags
from kiln.base.paths import runtime_module
from kiln.base.tags import TaggedVerdict, read_verdict, says_verified


def test_image_reads_the_tag_that_sets_the_mig_layout() -> None:
    assert runtime_module("gpu_mig.imds").TAG == tags.MIG_CONFIG


@pytest.mark.parametrize("passed", [True, False])
def test_verdict_is_read_as_it_was_written(*, passed: bool) -> None:
    verdict = TaggedVerdict(passed, "2026-08-01T12:00:00Z", "c0ffee0")
    assert read_verdict(str(verdict)) == verdict
    assert says_verified(str(verdict)) is passed


@pytest.mark.parametrize(
    "value", [None, "", "pass", "pass today", "passed 2026-08-01T12:00:00Z c0ffee0"]
)
def test_tag_of_another_form_verifies_nothing(value: str | None) -> None:
    assert not says_verified(value)
