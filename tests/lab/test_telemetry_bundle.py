"""The bundle on running machines of each distribution, with their own systemd and package tool.

Guests are booted straight from the lab's bases; the CloudWatch agent is the lab's stand-in package,
which dies as the real one does when it is asked for GPU metrics without nvidia-smi.
"""

from __future__ import annotations

import hashlib
import json
import re
import signal
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import guests
import pytest
from event_log import whole_lines

from kiln.telemetry import bundle
from kiln.telemetry.settings import Telemetry, telemetry_facts
from lab.vendors.mirror import cloudwatch

pytestmark = guests.IN_CELL

AGENT_BUILD = "1.300072.0b1766"
MERGED = "/opt/aws/amazon-cloudwatch-agent/etc/amazon-cloudwatch-agent.d"
SERVICES = ("kiln-xid.service", "amazon-cloudwatch-agent.service")
# What an installation may change; other files of a running system change by themselves.
WATCHED = ("etc", "opt", "usr/local", "var/lib/kiln")
CHANGES_BY_ITSELF = {"etc/ld.so.cache", "etc/resolv.conf", "etc/machine-id", "etc/mtab"}
# The agent's package makes the user cwagent and, as packages do, leaves it behind.
CHANGED_BY_THE_PACKAGE = re.compile(r"etc/(passwd|shadow|group|gshadow|subuid|subgid)-?")


class Guest(guests.Guest):
    """A booted system of one of the bundle's distributions."""

    def put(self, source: Path, target: str) -> None:
        (self.root / target.lstrip("/")).write_bytes(source.read_bytes())

    def install(self, *options: str, rc: int = 0) -> str:
        return self.run("bash", "/root/kiln-telemetry.sh", *options, rc=rc)

    def states(self) -> list[str]:
        return [self.run("systemctl", "show", "-p", "ActiveState", s).strip() for s in SERVICES]

    def metrics(self) -> list[str]:
        names = self.run("ls", MERGED).split()
        return [name for name in names if name != "kiln-events.json"]

    def tree(self) -> dict[str, str]:
        result = {}
        for folder in WATCHED:
            for path in sorted((self.root / folder).rglob("*")):
                name = str(path.relative_to(self.root))
                if name not in CHANGES_BY_ITSELF and not CHANGED_BY_THE_PACKAGE.fullmatch(name):
                    result[name] = _content(path)
        return result


SUPPORTED = list(telemetry_facts()["bundle"]["distros"])


def _content(path: Path) -> str:
    if path.is_symlink():
        return str(path.readlink())
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "other"


@pytest.fixture(scope="session")
def installer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("bundle") / "kiln-telemetry.sh"
    bundle.write_bundle(out, Telemetry(efa=True))
    return out


@pytest.fixture(scope="session")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    def package(kind: str) -> Path:
        target = tmp_path_factory.mktemp("agent") / f"amazon-cloudwatch-agent.{kind}"
        assert cloudwatch.package(AGENT_BUILD, kind, "x86_64", target)
        return target

    return package


@pytest.fixture
def guest(request, tmp_path, installer, agent) -> Iterator[Guest]:
    """A machine of `request.param`, or of guests.DISTRO, with installer and agent's package."""
    distro = getattr(request, "param", guests.DISTRO)
    with guests.made(Guest, tmp_path, distro) as machine:
        machine.boot()
        machine.put(installer, "/root/kiln-telemetry.sh")
        kind = "rpm" if distro.startswith("al") else "deb"
        machine.put(agent(kind), f"/root/agent.{kind}")
        machine.run("ln", "-s", f"/root/agent.{kind}", "/root/agent")
        yield machine


@pytest.mark.parametrize(
    "guest",
    # One of each package tool; the others with --all.
    [
        name if name in ("al2", "ubuntu2204") else pytest.param(name, marks=pytest.mark.all)
        for name in SUPPORTED
    ],
    indirect=True,
)
def test_every_distribution_installs_reports_and_goes_back(guest):
    before = guest.tree()
    assert "installed and running" in guest.install("--agent-package", "/root/agent")
    assert guest.states() == ["ActiveState=active"] * 2
    assert guest.metrics() == []

    mark = f"kiln{uuid.uuid4().hex[:8]}"
    guest.log.add(f"NVRM: Xid (PCI:0000:00:1e): 79, pid=7, name={mark}, GPU lost".encode(), 4)
    assert _event(guest, mark)["xid"] == 79

    monitor = guest.run("systemctl", "show", "-p", "MainPID", SERVICES[0])
    assert "nothing to do" in guest.install()
    assert guest.run("systemctl", "show", "-p", "MainPID", SERVICES[0]) == monitor

    guest.install("--uninstall")
    assert guest.states() == ["ActiveState=inactive"] * 2
    assert guest.tree() == before
    assert mark in (guest.root / "var/log/gpuevent.log").read_text()


# Sourced by the installer's shell alone: counts its commands, and kills it before number KILL_AT.
COUNTING = """
unset BASH_ENV
commands=0
set -o functrace
trap '
    ((++commands == KILL_AT)) && kill -KILL $$
    ((KILL_AT)) || echo $commands > /root/commands
' DEBUG
"""


@pytest.mark.all
def test_killed_at_any_moment_it_can_be_taken_back_or_finished(guest):
    before = guest.tree()
    guest.write("/root/counting", COUNTING)

    def install(kill_at: int, rc: int) -> None:
        guest.run(
            *("env", "BASH_ENV=/root/counting", f"KILL_AT={kill_at}"),
            *("bash", "/root/kiln-telemetry.sh", "--without-agent"),
            rc=rc,
        )

    install(0, rc=0)
    commands = int(guest.read("/root/commands"))
    guest.install("--uninstall")
    for part in (5, 15, 19):
        moment = commands * part // 20
        install(moment, rc=128 + signal.SIGKILL)
        guest.install("--uninstall")
        assert guest.tree() == before, f"after a kill at command {moment} of {commands}"
    install(commands // 2, rc=128 + signal.SIGKILL)
    guest.install("--without-agent")
    assert guest.states()[0] == "ActiveState=active"


def _event(guest: Guest, mark: str) -> dict[str, object]:
    """The first line with `mark` in the event log, which is waited for."""

    def marked() -> list[str]:
        return [line for line in whole_lines(guest.read("/var/log/gpuevent.log")) if mark in line]

    assert guest.until(marked), f"no event with {mark}"
    event: dict[str, object] = json.loads(marked()[0])
    return event
