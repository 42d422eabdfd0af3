"""A row that is pinned: what is left of it on the image."""

import pytest
from applies import only_if
from expectations import recorded

pytestmark = pytest.mark.bake


@only_if(lambda expect: expect["recipe"]["distro"]["family"] == "al")
def test_dnf_stays_at_the_pinned_release(machine, recipe):
    assert (machine["text"]["/etc/dnf/vars/releasever"] or "").strip() == recipe["package_snapshot"]


@only_if(lambda expect: expect["recipe"]["distro"]["family"] == "debian")
def test_instances_do_not_take_packages_from_the_snapshot(machine):
    assert not machine["text"]["/etc/apt/sources.list.d/kiln-package-snapshot.list"]


def test_the_packages_are_those_of_the_row(recipe, version_info):
    assert recorded(version_info, "package-snapshot")["version"] == recipe["package_snapshot"]
