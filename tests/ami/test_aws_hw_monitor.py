"""The Xid event parser runs, and an event passes through it."""

import pytest
from expectations import assert_active, assert_enabled


@pytest.mark.bake
def test_it_is_enabled(machine):
    assert_enabled(machine, "kiln-xid.service")


@pytest.mark.boot
def test_it_runs(machine):
    assert_active(machine, "kiln-xid.service")


@pytest.mark.boot
def test_its_log_is_there_for_the_agent_to_read(machine):
    facts = machine["files"]["/var/log/gpuevent.log"]
    assert facts, "/var/log/gpuevent.log is missing"
    assert facts["mode"] in ("0644", "0640"), f"/var/log/gpuevent.log has mode {facts['mode']}"
