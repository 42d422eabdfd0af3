"""The tags' names stand in kiln/base/tags.py; what cannot import it says the same."""

from __future__ import annotations

import re

import pytest

from kiln.base import tags
from kiln.base.paths import ROOT, runtime_module
from kiln.base.tags import TaggedVerdict, read_verdict, says_verified

NAMES = {
    value
    for value in vars(tags).values()
    if isinstance(value, str) and value.startswith(tags.PREFIX) and value != tags.PREFIX
}


def test_the_image_reads_the_tag_that_sets_the_mig_layout() -> None:
    assert runtime_module("gpu_mig.imds").TAG == tags.MIG_CONFIG


def test_the_page_on_records_lists_the_tags_of_an_ami() -> None:
    section = (ROOT / "docs" / "records.md").read_text().split("## Tags of an AMI")[1]
    named = re.findall(r"`(kiln:[a-z-]+)`", section.split("\n## ")[0])
    assert tuple(named) == (
        *tags.BAKE_TAGS,
        tags.VERIFIED,
        tags.OWN_KERNEL,
    )


@pytest.mark.parametrize("passed", [True, False])
def test_a_verdict_is_read_as_it_was_written(passed: bool) -> None:
    verdict = TaggedVerdict(passed, "2026-08-01T12:00:00Z", "c0ffee0")
    assert read_verdict(str(verdict)) == verdict
    assert says_verified(str(verdict)) is passed


@pytest.mark.parametrize(
    "value", [None, "", "pass", "pass today", "passed 2026-08-01T12:00:00Z c0ffee0"]
)
def test_a_tag_of_another_form_verifies_nothing(value: str | None) -> None:
    assert not says_verified(value)


def test_the_policy_asks_for_the_tag_that_a_run_sets() -> None:
    text = (ROOT / "docs" / "iam-policy.json").read_text()
    assert set(re.findall(r"Tag/([a-z:-]+)", text)) == {tags.RUN_ID}
