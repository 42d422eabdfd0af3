"""A row that is pinned: what is left of it on the image."""

import pytest
from applies import only_if
from expectations import assert_seen

pytestmark = pytest.mark.bake


@only_if(lambda expect: expect["recipe"].get("distro", {}).get("package_manager") == "dnf")
def test_dnf_stays_at_the_release_that_a_row_is_pinned_to(machine, recipe):
    release = machine["text"]["/etc/dnf/vars/releasever"] or ""
    assert release.strip() == recipe["package_snapshot"]


def test_instances_do_not_take_packages_from_the_snapshot(machine):
    assert_seen(machine, "text")
    assert not machine["text"]["/etc/apt/sources.list.d/kiln-package-snapshot.list"]
