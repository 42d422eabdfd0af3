"""A guest with gpu-mig's unit and the lab's nvidia-smi; for tests."""

from __future__ import annotations

import json
import shutil
from typing import Any

import guests

from kiln.base.paths import RUNTIME
from tests import standins

SHIPPED = (
    "opt/kiln/lib/gpu_boot",
    "opt/kiln/lib/gpu_common",
    "opt/kiln/lib/gpu_mig",
    "usr/local/bin/gpu-mig",
    "usr/local/bin/kiln-gpu-gate",
    "etc/default/gpu-mig",
    "etc/kiln/mig-config.json",
    "etc/kiln/mig-config.d",
    "etc/systemd/system/kiln-.service.d",
    "etc/systemd/system/kiln-mig.service.d",
    "etc/systemd/system/kiln-mig.service",
    "etc/systemd/system/kubelet.service.d/20-kiln-gpu-gate.conf",
)
KUBELET = """[Unit]
Description=Test double of kubelet
[Service]
ExecStart=/bin/sleep infinity
[Install]
WantedBy=multi-user.target
"""


# In the place of kiln-gpu-boot, which reads the PCI bus: as many GPUs as nvidia-smi lists.
DECIDE = """#!/bin/sh
mkdir -p /run/kiln/gpu-boot
touch /run/kiln/gpu-boot/gpu
gpus=$(nvidia-smi -L | grep -c ^GPU)
python3 -c "import json; print(json.dumps({'gpus': [{}] * $gpus, 'apply': {'nvswitch': False}}))" \
    >/run/kiln/gpu-boot/decision.json
"""
BOOT = """[Unit]
Description=Test double of kiln-gpu-boot
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/local/bin/decide-gpus
"""


class Machine(guests.Guest):
    """A guest with gpu-mig's unit. It shows two GPUs: what applies to two applies to eight."""

    def settings(self, **values: str) -> None:
        lines = {"MIG_IMDS": "no", **values}
        self.write("/etc/default/gpu-mig", "".join(f"{k}={v}\n" for k, v in lines.items()))

    def unit(self, *names: str, of: str = "kiln-mig.service") -> list[str]:
        output = self.run("systemctl", "show", of, *[f"-p{n}" for n in names])
        result = dict(line.split("=", 1) for line in output.splitlines())
        return [result[n] for n in names]

    def verify(self) -> dict[str, Any]:
        return json.loads(self.run("gpu-mig", "verify", "--json"))


def lay_down(guest: Machine) -> None:
    """A p4d.24xlarge with the unit enabled and a kubelet."""
    standins.lay_down(guest.root)
    guest.write("/var/lib/kiln-lab/driver.json", '{"version": "580.105.08", "cuda": "13.0"}')
    for name in SHIPPED:
        source, target = RUNTIME / name, guest.root / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target)
    guest.write("/etc/systemd/system/kubelet.service", KUBELET)
    guest.write("/etc/systemd/system/kiln-gpu-boot.service", BOOT)
    guest.write("/usr/local/bin/decide-gpus", DECIDE, 0o755)
    wants = guest.root / "etc/systemd/system/multi-user.target.wants"
    wants.mkdir(parents=True, exist_ok=True)
    for unit in ("kiln-mig.service", "kubelet.service"):
        (wants / unit).symlink_to(f"/etc/systemd/system/{unit}")
    machine = {"instance_type": "p4d.24xlarge", "instance_id": "i-0guest"}
    guest.write("/etc/kiln-lab/instance.json", json.dumps(machine))
    guest.write("/etc/kiln-lab/nvidia-smi-faults.json", json.dumps({"hide": [*range(2, 8)]}))
    guest.settings()
