"""The HTML report: all that the record says, failures first, and nothing from outside."""

from __future__ import annotations

import re
from pathlib import Path

from kiln.pipeline import report
from tests.unit.records import a_record, checks


def text_of(page: str) -> str:
    """What a reader sees, without the marks."""
    body = page[page.index("<body>") :]
    return " ".join(re.sub(r"<[^>]+>", " ", body).split())


def test_report_says_ami_source_and_checks() -> None:
    text = text_of(report.report_html(a_record()))
    assert "verified ami-0fade000 in eu-central-1, run 20261121T000000Z-aaaa" in text
    assert "Source AMI ami-0a0e0000 amzn2" in text
    assert "Checks: 1 passed , 0 failed , 0 skipped" in text
    assert "cuda 1 passed passed test_the_packages_are_held" in text
    assert "packer build 59.3 s" in text


def test_report_loads_nothing() -> None:
    page = report.report_html(a_record())
    assert page.startswith("<!DOCTYPE html>")
    assert not re.search(r"<script|<link|<img|https?://|@import|url\(", page)


def test_failures_come_first() -> None:
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


def test_broken_run_says_why_and_its_leftovers() -> None:
    page = report.report_html(
        a_record(
            status="failed",
            ami_id=None,
            checks=None,
            error="packer build failed: InsufficientInstanceCapacity",
            left=("instance i-1", "key pair kiln-x"),
        )
    )
    text = text_of(page)
    assert "failed no AMI in eu-central-1" in text
    assert "It broke off: packer build failed: InsufficientInstanceCapacity" in text
    assert "Still in EC2, because the clean-up was refused: instance i-1 key pair kiln-x" in text
    assert "Nothing was checked." in text
    assert "passed" not in text
    assert "Checked on" not in text


def test_hostile_text_is_escaped(tmp_path: Path) -> None:
    """Half a surrogate pair is valid in JSON, and is not a character of UTF-8."""
    hostile = "<script>alert(1)</script>\ud800"
    failing = checks(("test_boot", "test_x", "failed", hostile))
    report.write_report(tmp_path / "report.html", a_record(error=hostile, checks=failing))
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "<script" not in page
    assert page.count("&lt;script&gt;alert(1)&lt;/script&gt;\\ud800") == 3
