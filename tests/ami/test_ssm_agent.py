"""The Systems Manager agent: installed once, and started."""

import pytest
from expectations import assert_active, assert_enabled, packages, recorded


@pytest.mark.bake
def test_it_is_there_once(machine, version_info):
    record = recorded(version_info, "ssm-agent")
    package, snap = packages(machine, "amazon-ssm-agent"), machine["commands"]["snap"]["rc"] == 0
    assert len(package) + snap == 1, f"{len(package)} packages, {int(snap)} snaps: want one agent"
    assert snap == ("snap" in record), "it is not what ssm-agent.sh recorded"


@pytest.mark.bake
def test_it_is_enabled(machine, version_info):
    assert_enabled(machine, recorded(version_info, "ssm-agent")["units"][0])


@pytest.mark.boot
def test_it_runs(machine, version_info):
    assert_active(machine, recorded(version_info, "ssm-agent")["units"][0])
