"""A row that is pinned: what is left of it on the image."""

import pytest
from expectations import recorded

pytestmark = pytest.mark.bake


def test_dnf_stays_at_the_release_that_a_row_is_pinned_to(machine, recipe):
    expected = recipe["package_snapshot"] if recipe["distro"]["package_manager"] == "dnf" else ""
    assert (machine["text"]["/etc/dnf/vars/releasever"] or "").strip() == expected


def test_instances_do_not_take_packages_from_the_snapshot(machine):
    assert not machine["text"]["/etc/apt/sources.list.d/kiln-package-snapshot.list"]


def test_the_packages_are_those_of_the_row(recipe, version_info):
    assert recorded(version_info, "package-snapshot")["version"] == recipe["package_snapshot"]
