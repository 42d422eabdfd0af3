"""Nothing of the build instance is left, and the instance has made its own keys and ids."""

import json
import re

import pytest
from expectations import assert_seen

pytestmark = pytest.mark.boot


def report(machine):
    text = machine["text"]["/etc/kiln/hygiene.json"]
    assert text, "/etc/kiln/hygiene.json is missing: hygiene.sh did not run last"
    return json.loads(text)


def test_the_snapshot_was_clean(machine):
    checks = report(machine)["checks"]
    assert len(checks) > 10
    assert [check for check in checks if not check["ok"]] == []


def test_the_ssh_host_keys_were_made_by_this_instance(machine):
    assert machine["host_keys"], "there are no SSH host keys"
    baked = machine["files"]["/etc/kiln/version-info.json"]["mtime"]
    for path in machine["host_keys"]:
        assert machine["files"][path]["mtime"] > baked, f"{path} is as old as the image"


def test_the_machine_id_was_made_by_this_instance(machine):
    machine_id = (machine["text"]["/etc/machine-id"] or "").strip()
    assert re.fullmatch("[0-9a-f]{32}", machine_id), f"the machine id is {machine_id!r}"


def test_no_key_of_the_build_may_log_in(machine):
    assert machine["authorized_keys"], "no user was seen"
    result = [
        f"{user}: {line[-40:]}"
        for user, lines in machine["authorized_keys"].items()
        for line in lines
        if "packer" in line.rsplit(" ", 1)[-1]
    ]
    assert result == []


def test_only_the_ssh_user_and_root_have_keys(machine, recipe):
    assert machine["authorized_keys"], "no user was seen"
    have_keys = {user for user, lines in machine["authorized_keys"].items() if lines}
    assert have_keys <= {recipe["distro"]["ssh_user"], "root"}


def test_the_build_folder_is_gone(machine):
    assert_seen(machine, "files")
    assert machine["files"]["/var/tmp/kiln"] is None
