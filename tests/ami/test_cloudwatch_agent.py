"""The CloudWatch agent: pinned, configured from the recipe, without state of the bake."""

import json
import re
import time

import pytest
from expectations import assert_active, assert_enabled, assert_held, packages


@pytest.mark.bake
def test_it_is_of_that_version(machine, recipe):
    result = packages(machine, "amazon-cloudwatch-agent")
    assert len(result) == 1, f"{len(result)} packages installed, one expected"
    # The vendor's own package adds its build number: 1.300072.0b1766.
    version, _, _ = result[0]["version"].partition("b")
    assert version == recipe["cloudwatch_agent"]


@pytest.mark.bake
def test_it_is_held(machine):
    assert_held(machine, ["amazon-cloudwatch-agent"])


@pytest.mark.bake
def test_it_is_enabled(machine):
    assert_enabled(machine, "amazon-cloudwatch-agent.service")


@pytest.mark.boot
def test_it_runs(machine):
    assert_active(machine, "amazon-cloudwatch-agent.service")


@pytest.mark.bake
def test_its_configuration_ships_the_event_log(machine):
    files = {path: json.loads(text) for path, text in machine["agent_files"].items()}
    collected = [
        entry["file_path"]
        for config in files.values()
        for entry in config.get("logs", {})
        .get("logs_collected", {})
        .get("files", {})
        .get("collect_list", [])
    ]
    assert "/var/log/gpuevent.log" in collected, f"none of {sorted(files)} collects it"


@pytest.mark.boot
def test_its_log_has_no_error(machine, expect):
    log = machine["text"]["/opt/aws/amazon-cloudwatch-agent/logs/amazon-cloudwatch-agent.log"]
    assert log, "the agent wrote no log"
    booted = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(machine["boot"]["time"]))
    errors = [line for line in log.splitlines() if " E! " in line and line >= booted]
    if machine["imds"].get("role") != 200 or expect["exercise"]:
        # Without a role, or with that of a build, it may send nothing, and says so.
        errors = [line for line in errors if not re.search("(?i)credential|AccessDenied", line)]
    assert errors == [], "the agent loses data: fix its configuration or the instance's role"
