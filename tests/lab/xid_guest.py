"""A booted guest with the Xid monitor, installed as by the provisioner; shared by tests.

The guest is the lab's debian12 base with this checkout's runtime/ on it and a kernel log of its
own.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import guests
from event_log import whole_lines

from kiln.base.paths import RUNTIME

NEEDS = guests.IN_CELL
UNITS = (
    "kiln-xid.service",
    "kiln-xid-hooks.path",
    "kiln-xid-hooks.service",
    "kiln-gpu-health.service",
    "kiln-gpu.target",
    "kiln-.service.d",
    "kiln-xid.service.d",
    "kiln-xid-hooks.service.d",
)
SHIPPED = (
    "opt/kiln/lib/gpu_common",
    "opt/kiln/lib/gpu_xid",
    "usr/local/bin/gpu-xid",
    "etc/kiln/gpu-xid.json",
    *(f"etc/systemd/system/{unit}" for unit in UNITS),
)
LOG = "/var/log/gpuevent.log"
UNIT = "kiln-xid.service"
# systemd-nspawn gives a guest a boot id of its own by a mount over /proc, which a unit with
# mounts of its own does not get to see: it would see the host's, the same after each reboot.
# So the monitor reads a copy.
BOOT_ID = """[Unit]
DefaultDependencies=no
Before=kiln-xid.service
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/cp /proc/sys/kernel/random/boot_id /opt/boot_id
[Install]
WantedBy=multi-user.target
"""


class Guest(guests.Guest):
    """A booted machine with the monitor's unit enabled."""

    def __init__(self, home: Path, base: Path) -> None:
        super().__init__(home, base)
        self.marker = uuid.uuid4().hex[:12]

    def xid(self, first: int, last: int, code: int = 31) -> None:
        """Xid lines with pids first..last, written to /dev/kmsg from inside the guest."""
        fault = f"{code}, pid=$n, name=t, channel 0x0000000a {self.marker}"
        line = f"NVRM: Xid (PCI:0000:00:1e): {fault}"
        loop = f'for n in $(seq {first} {last}); do echo "{line}" > /dev/kmsg; done'
        self.run("bash", "-c", loop)

    def mine(self) -> list[dict[str, Any]]:
        rows = [json.loads(line) for line in whole_lines(self.read(LOG))]
        return [row for row in rows if self.marker in row.get("raw", "")]

    def pids(self) -> Counter[int]:
        return Counter(row["pid"] for row in self.mine())

    def show(self, name: str, unit: str = UNIT) -> str:
        return super().show(name, unit)


@contextlib.contextmanager
def booted(home: Path) -> Iterator[Guest]:
    """A guest in `home`, removed when the block ends."""
    with guests.made(Guest, home) as result:
        install(result.root)
        result.boot()
        yield result


def install(root: Path) -> None:
    """Install as the provisioner does: copy runtime/, compile, enable."""
    for name in SHIPPED:
        source, target = RUNTIME / name, root / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            skip = shutil.ignore_patterns("__pycache__")
            shutil.copytree(source, target, dirs_exist_ok=True, ignore=skip)
        else:
            shutil.copy2(source, target)
    reader = root / "opt/kiln/lib/gpu_xid/host.py"
    reader.write_text(reader.read_text().replace("/proc/sys/kernel/random/", "/opt/"))
    subprocess.run(
        ["chroot", root, "python3", "-m", "compileall", "-q", "/opt/kiln/lib/gpu_xid"], check=True
    )
    (root / "etc/systemd/system/boot-id.service").write_text(BOOT_ID)
    subprocess.run(
        ["systemctl", f"--root={root}", "enable", UNIT, "kiln-xid-hooks.path", "boot-id"],
        check=True, capture_output=True,
    )  # fmt: skip
