"""A report says what its image has otherwise than the row's build before."""

from __future__ import annotations

from typing import Any

import pytest

from kiln.pipeline.report import report_html
from tests.unit.records import a_record


def versions(**lists: Any) -> dict[str, Any]:
    package = {"name": "curl", "version": "8.4.0", "release": "1", "arch": "x86_64"}
    return {
        "packages": [package],
        "files": {"/etc/acme/banner": "sha256:aa 0644"},
        "units": [{"name": "acme.service", "state": "enabled"}],
        "sysctls": {"vm.swappiness": "10"},
        "boot": {"GRUB_TIMEOUT": "0"},
        **lists,
    }


@pytest.mark.parametrize(
    ("lists", "says"),
    [
        ({"files": {"/etc/acme/banner": "sha256:bb 0644"}}, "1 differ: /etc/acme/banner"),
        ({"files": {}}, "1 differ: /etc/acme/banner"),
        ({"units": [{"name": "acme.service", "state": "disabled"}]}, "1 differ: acme.service"),
        ({"sysctls": {"vm.swappiness": "60"}}, "1 differ: vm.swappiness"),
        ({"boot": {"GRUB_TIMEOUT": "5"}}, "1 differ: GRUB_TIMEOUT"),
        (
            {"packages": [{"name": "curl", "version": "8.5.0", "release": "1", "arch": "x86_64"}]},
            "1 differ: curl",
        ),
        ({"files": {f"/etc/{n}": "sha256:bb 0644" for n in range(10)}}, "and 3 more"),
    ],
)
def test_a_changed_thing_is_named(lists: dict[str, Any], says: str) -> None:
    before, now = a_record(versions=versions()), a_record(versions=versions(**lists))
    assert says in report_html(now, before)


def test_the_same_image_is_said_to_be_the_same() -> None:
    same = a_record(versions=versions())
    page = report_html(same, same)
    assert "kernel and boot parameters and the checks are the same" in page
    assert "differ:" not in page
