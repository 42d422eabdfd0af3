"""Two guests with Debian's real Slurm, joined by a bridge: the controller and one node."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import guests
import pytest
import xid_guest

from kiln.base.paths import RUNTIME
from lab.base.shell import run

PACKAGES = ("slurmctld", "slurmd", "munge")
HOOK = "etc/kiln/xid.d/50-slurm-drain"
CODES = (64, 95)  # fatal, and used by no other test
CONTROLLER, NODE = "controller", "gpu-1"
CONF = """ClusterName=test
SlurmctldHost={controller}
SlurmUser=slurm
AuthType=auth/munge
StateSaveLocation=/var/lib/slurm/slurmctld
SlurmdSpoolDir=/var/lib/slurm/slurmd
SlurmctldLogFile=/var/log/slurm/slurmctld.log
SlurmdLogFile=/var/log/slurm/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
ReturnToService=1
SlurmdTimeout=20
SlurmctldParameters=node_reg_mem_percent=1
RebootProgram=/sbin/reboot
ResumeTimeout=180
NodeName={node} CPUs=1 RealMemory=64 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
ADDRESS = """[Unit]
DefaultDependencies=no
Before=network.target slurmctld.service slurmd.service
After=systemd-tmpfiles-setup.service
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/sbin/ip address add {address}/24 dev host0
ExecStart=/sbin/ip link set host0 up
[Install]
WantedBy=multi-user.target
"""


class Controller(guests.Guest):
    """The guest with slurmctld."""

    def state(self) -> dict[str, str]:
        """What the controller says of the node."""
        words = self.run("scontrol", "--oneliner", "show", "node", NODE)
        pairs = (word.split("=", 1) for word in words.split("Reason=")[0].split() if "=" in word)
        return {**dict(pairs), "Reason": words.partition("Reason=")[2].strip()}

    def becomes(self, state: str) -> dict[str, str]:
        """The node once the controller says that it is in this state."""
        assert self.until(lambda: self.state()["State"] == state, 120), self.state()
        return self.state()

    def job(self, seconds: int) -> None:
        """Start a job on the node, and wait until it runs."""
        script = f"cd /tmp; sbatch --uid=games --output=/dev/null --wrap 'sleep {seconds}'"
        self.run("sh", "-c", script)
        assert self.until(lambda: "RUNNING" in self.run("squeue", "--format=%T")), self.state()


class Node(xid_guest.Guest):
    """The guest with slurmd, the Xid monitor and its hook for Slurm."""


@contextlib.contextmanager
def cluster(home: Path, index: int) -> Iterator[tuple[Controller, Node]]:
    """Both guests booted, the node idle; removed when the block ends."""
    bridge = f"slurm{index}"
    addresses = {CONTROLLER: f"198.19.{index}.1", NODE: f"198.19.{index}.2"}
    for name in (CONTROLLER, NODE):
        (home / name).mkdir()
    run("ip", "link", "add", bridge, "type", "bridge")
    try:
        run("ip", "link", "set", bridge, "up")
        with (
            guests.made(Controller, home / CONTROLLER) as controller,
            guests.made(Node, home / NODE) as node,
        ):
            install(controller.root)
            copy(home / CONTROLLER / "upper", node.root)
            key = os.urandom(1024)
            for guest, name in ((controller, CONTROLLER), (node, NODE)):
                configure(guest, name, addresses, key)
                guest.options = (*guest.options, f"--network-bridge={bridge}")
            install_ours(node)
            enable(controller.root, "slurmctld")
            enable(node.root, "slurmd")
            controller.boot()
            node.boot()
            yield controller, node
    finally:
        run("ip", "link", "delete", bridge, check=False)


def install(root: Path) -> None:
    """Debian's packages with apt, from the mirror of this machine; skips without one."""
    shutil.copy("/etc/resolv.conf", root / "etc/resolv.conf")
    (root / "usr/sbin/policy-rc.d").write_text("#!/bin/sh\nexit 101\n")
    (root / "usr/sbin/policy-rc.d").chmod(0o755)
    apt = ("chroot", str(root), "env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-qq", "-y")
    for _ in range(2):
        done = subprocess.run(
            [*apt, "install", "--no-install-recommends", *PACKAGES],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if not done.returncode:
            break
        subprocess.run([*apt, "update"], capture_output=True, check=False)
    else:
        pytest.skip(f"no Debian mirror gives slurm: {done.stderr.strip()[-300:]}")
    run("systemctl", f"--root={root}", "disable", "slurmctld", "slurmd", check=False)


def install_ours(node: Node) -> None:
    """What the image has for Slurm, and its hook, not yet switched on."""
    xid_guest.install(node.root)
    node.write(HOOK, (RUNTIME / "etc/kiln/xid.d/slurm-drain.example").read_text())
    node.write("/etc/kiln/xid.d/60-done", "#!/bin/sh\ncat >> /root/done\n", 0o755)
    # Guests read one kernel log: other tests write codes of their own into it.
    chosen = {"severity": [], "codes": [f"xid {code}" for code in CODES], "injected": True}
    node.write("/etc/kiln/gpu-xid.json", json.dumps({"hooks": chosen}))
    # The uptime of a guest is the host's, so slurmd must be told that a start of it is a boot.
    node.write("/etc/default/slurmd", "SLURMD_OPTIONS=-b\n")


def copy(upper: Path, root: Path) -> None:
    """What one guest got beyond its base, into another; a removed file is a device in overlayfs."""
    packed = "find . ! -type c -print0 | tar --null -T - --no-recursion -cf -"
    run("bash", "-c", f"cd {upper} && {packed} | tar -C {root} -xf -")


def configure(guest: guests.Guest, name: str, addresses: dict[str, str], key: bytes) -> None:
    guest.write("/etc/hostname", name + "\n")
    hosts = "".join(f"{address} {host}\n" for host, address in addresses.items())
    guest.write("/etc/hosts", f"127.0.0.1 localhost\n{hosts}")
    guest.write("/etc/slurm/slurm.conf", CONF.format(controller=CONTROLLER, node=NODE))
    munge = guest.root / "etc/munge/munge.key"
    munge.write_bytes(key)
    guest.write("/etc/systemd/system/address.service", ADDRESS.format(address=addresses[name]))
    enable(guest.root, "address", "munge")


def enable(root: Path, *units: str) -> None:
    run("systemctl", f"--root={root}", "enable", *units)
