"""The HTML report: all that the record says, failures first, and nothing from outside."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from kiln.pipeline import report
from kiln.pipeline.record import Failure
from tests.unit.records import a_record, checks


def text_of(page: str) -> str:
    """What a reader sees, without the marks."""
    body = page[page.index("<body>") :]
    return " ".join(re.sub(r"<[^>]+>", " ", body).split())


def test_report_says_what_was_built_and_checked() -> None:
    page = report.report_html(a_record())
    assert page.startswith("<!DOCTYPE html>")
    assert not re.search(r"<script|<link|<img|https?://|@import|url\(", page)
    text = text_of(page)
    assert "verified ami-0fade000 in eu-central-1, run 20261121T000000Z-aaaa" in text
    assert "Source AMI ami-0a0e0000 amzn2" in text
    assert "Checks: 1 passed , 0 failed , 0 skipped" in text
    assert "cuda 1 passed passed test_the_packages_are_held" in text
    assert "packer build 59.3 s" in text


def test_failures_come_first_with_their_words() -> None:
    failing = checks(
        ("test_cuda", "test_it_is_there", "passed", ""),
        ("test_nvidia_driver", "test_it_answers", "failed", "assert '510' == '580'"),
    )
    page = report.report_html(a_record(status="failed", checks=failing))
    text = text_of(page)
    assert text.index(
        "nvidia-driver: test_nvidia_driver.py::test_it_answers assert &#39;510&#39;"
    ) < text.index("What was")
    assert re.findall(r"<details( open)?>\s*<summary><b>([\w-]+)", page) == [
        ("", "cuda"),
        (" open", "nvidia-driver"),
    ]


def test_skipped_component_says_why_once() -> None:
    why = "dcgm is not part of this image"
    skipped = checks(
        ("test_dcgm", "test_a", "skipped", why),
        ("test_dcgm", "test_b", "skipped", why),
        ("test_boot", "test_c", "passed", ""),
        ("test_boot", "test_d", "skipped", "no"),
    )
    text = text_of(report.report_html(a_record(checks=skipped)))
    assert f"dcgm 2 skipped ({why})" in text
    assert "boot 1 passed , 1 skipped passed test_c" in text
    assert f"Skipped, by reason 2 {why} test_dcgm.py::test_a test_dcgm.py::test_b 1 no" in text


def test_broken_off_run_says_why_and_what_is_left() -> None:
    error = "packer build failed: InsufficientInstanceCapacity"
    failure = Failure("cuda", "provisioners/cuda.sh", "no nvcc", 14, ("make it",), ("a < b",))
    left = ("instance i-1", "key pair kiln-x")
    record = a_record(status="failed", ami_id=None, checks=None, error=error, left=left)
    text = text_of(report.report_html(record))
    assert "failed no AMI in eu-central-1" in text
    assert f"It broke off: {error}" in text
    assert "instance i-1 key pair kiln-x" in text
    assert "Nothing was checked." in text
    assert "passed" not in text
    page = report.report_html(replace(record, failure=failure))
    assert "provisioners/cuda.sh line 14" in page
    assert "make it" in page and "a &lt; b" in page


def test_words_of_an_image_are_no_markup(tmp_path: Path) -> None:
    """Half a surrogate pair is valid in JSON, and is not a character of UTF-8."""
    hostile = "<script>alert(1)</script>\ud800"
    failing = checks(("test_boot", "test_x", "failed", hostile))
    report.write_report(tmp_path / "report.html", a_record(error=hostile, checks=failing))
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "<script" not in page
    assert page.count("&lt;script&gt;alert(1)&lt;/script&gt;\\ud800") == 3
