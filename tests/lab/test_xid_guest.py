"""The Xid monitor as its unit on a booted guest: events, hooks, kills, reboots, sandbox."""

from __future__ import annotations

import json
import shutil
import uuid
from collections import Counter
from collections.abc import Iterator

import pytest
import xid_guest
from xid_guest import UNIT, Guest

pytestmark = xid_guest.NEEDS


@pytest.fixture(scope="module")
def guest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guest]:
    with xid_guest.booted(tmp_path_factory.mktemp("xid")) as result:
        yield result


@pytest.fixture(autouse=True)
def fresh_marker(guest: Guest) -> None:
    guest.marker = uuid.uuid4().hex[:12]


def journal(guest: Guest, unit: str) -> str:
    """The log of a unit, which journald writes a little later."""
    return guest.run("journalctl", "-u", unit, "-o", "cat", "--no-pager")


def configure(guest: Guest, **settings: object) -> None:
    guest.write("/etc/kiln/gpu-xid.json", json.dumps(settings))
    guest.run("systemctl", "restart", UNIT)


def test_kill_9_and_restart_lose_and_repeat_nothing(guest: Guest) -> None:
    assert guest.show("ActiveState") == "active"
    guest.xid(1, 50)
    before = guest.show("MainPID")
    guest.run("kill", "-9", before)
    guest.xid(51, 100)
    assert guest.until(lambda: guest.show("MainPID") not in ("0", before))
    guest.run("systemctl", "stop", UNIT)
    guest.xid(101, 150)
    guest.run("systemctl", "start", UNIT)
    assert guest.until(lambda: len(guest.mine()) >= 150)
    assert guest.pids() == Counter(range(1, 151))
    memory = guest.run("cat", f"/proc/{guest.show('MainPID')}/smaps_rollup")
    assert int(memory.partition("\nPss:")[2].split()[0]) <= 10 * 1024  # kB


def test_a_reboot_loses_nothing(guest: Guest) -> None:
    guest.xid(1, 30)
    assert guest.until(lambda: len(guest.mine()) == 30)
    guest.reboot()
    guest.xid(31, 60)
    assert guest.until(lambda: set(guest.pids()) == set(range(1, 61)))
    # The guest's kernel log goes on: after a reboot the old records are there once more.
    assert {guest.pids()[pid] for pid in range(31, 61)} == {1}
    assert len({row["boot_id"] for row in guest.mine()}) == 2


def test_hooks_get_the_event_and_a_hanging_one_is_killed(guest: Guest) -> None:
    configure(guest, hooks={"severity": ["fatal"], "injected": True, "timeout_s": 1})
    guest.write("/etc/kiln/xid.d/10-hang", "#!/bin/sh\nsleep 60\n", 0o755)
    guest.write("/etc/kiln/xid.d/20-note", "#!/bin/sh\ncat >> /root/hooked\n", 0o755)
    guest.write("/etc/kiln/xid.d/30-off.example", "#!/bin/sh\ntouch /root/example\n", 0o755)
    guest.xid(1, 1)
    guest.xid(2, 2, code=79)
    try:
        assert guest.until(lambda: guest.marker in guest.read("/root/hooked"))
        rows = [json.loads(line) for line in guest.read("/root/hooked").splitlines()]
        assert [row["pid"] for row in rows if guest.marker in row["raw"]] == [2]
        assert guest.read("/root/example") == ""
        assert guest.until(lambda: "10-hang: killed after 1 s" in journal(guest, "kiln-xid-hooks"))
    finally:
        shutil.rmtree(guest.root / "etc/kiln/xid.d")


def test_hooks_run_for_each_of_many_events(guest: Guest) -> None:
    """By default systemd gives up on a unit that is started five times in ten seconds."""
    configure(guest, hooks={"severity": ["fatal"], "injected": True, "timeout_s": 5})
    guest.write("/etc/kiln/xid.d/10-note", "#!/bin/sh\ncat >> /root/noted\n", 0o755)
    try:
        for pid in range(1, 9):
            guest.xid(pid, pid, code=79)
            assert guest.until(lambda n=pid: guest.read("/root/noted").count(guest.marker) >= n)
        rows = [json.loads(line) for line in guest.read("/root/noted").splitlines()]
        assert [row["pid"] for row in rows if guest.marker in row["raw"]] == list(range(1, 9))
        assert guest.show("ActiveState", "kiln-xid-hooks.path") == "active"
    finally:
        shutil.rmtree(guest.root / "etc/kiln/xid.d")


def test_the_sandbox_lets_nothing_but_the_log_be_written(guest: Guest) -> None:
    pid = guest.show("MainPID")
    status = guest.run("cat", f"/proc/{pid}/status")
    effective = next(line for line in status.splitlines() if line.startswith("CapEff"))
    assert int(effective.split()[1], 16) == 1 << 34  # CAP_SYSLOG
    mounts = guest.run("cat", f"/proc/{pid}/mounts").splitlines()
    root = next(line for line in mounts if line.split()[1] == "/")
    assert root.split()[3].split(",")[0] == "ro"
