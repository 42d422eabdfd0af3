"""The tags' names stand in kiln/base/tags.py; what cannot import it says the same."""

from __future__ import annotations

import re

import pytest

from kiln.base import tags
from kiln.base.paths import ROOT, runtime_module
from kiln.base.tags import TaggedVerdict, read_verdict, says_verified


def test_image_and_pages_name_the_same_tags() -> None:
    assert runtime_module("gpu_mig.imds").TAG == tags.MIG_CONFIG
    policy = (ROOT / "docs" / "iam-policy.json").read_text()
    assert set(re.findall(r"Tag/([a-z:-]+)", policy)) == {tags.RUN_ID}
    section = (ROOT / "docs" / "records.md").read_text().split("## Tags of an AMI")[1]
    named = re.findall(r"`(kiln:[a-z-]+)`", section.split("\n## ")[0])
    assert tuple(named) == (*tags.BAKE_TAGS, tags.VERIFIED, tags.OWN_KERNEL)


@pytest.mark.parametrize("passed", [True, False])
def test_verdict_is_read_as_it_was_written(passed: bool) -> None:
    verdict = TaggedVerdict(passed, "2026-08-01T12:00:00Z", "c0ffee0")
    assert read_verdict(str(verdict)) == verdict
    assert says_verified(str(verdict)) is passed


@pytest.mark.parametrize(
    "value", [None, "", "pass", "pass today", "passed 2026-08-01T12:00:00Z c0ffee0"]
)
def test_tag_of_another_form_verifies_nothing(value: str | None) -> None:
    assert not says_verified(value)
