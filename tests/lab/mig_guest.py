"""A guest with gpu-mig's unit and the lab's nvidia-smi, whose GPUs can be replaced; for tests."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
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
Layout = tuple[bool, tuple[tuple[str, int], ...]]  # MIG mode; how many of which profile


class Machine(guests.Guest):
    """A guest with gpu-mig's unit, whose GPUs can be replaced.

    It shows two of them: what applies to two applies to eight.
    """

    def settings(self, **values: str) -> None:
        lines = {"MIG_IMDS": "no", **values}
        self.write("/etc/default/gpu-mig", "".join(f"{k}={v}\n" for k, v in lines.items()))

    def gpus(self, instance_type: str) -> None:
        """Replace the GPUs by others in their factory state."""
        self.write(
            "/etc/kiln-lab/instance.json",
            json.dumps({"instance_type": instance_type, "instance_id": "i-0guest"}),
        )
        self.faults()
        self.forget()
        shutil.rmtree(self.root / "var/lib/kiln-lab/nvidia-smi", ignore_errors=True)

    def forget(self) -> None:
        """What a reboot does to the GPUs: all goes that is not in their InfoROM."""
        shutil.rmtree(self.run_dir / "nvidia-smi", ignore_errors=True)

    @property
    def run_dir(self) -> Path:
        """The stand-in's folder on the guest's /run, seen from outside."""
        return Path(f"/proc/{self.leader}/root/run/kiln-lab")

    def faults(self, **values: object) -> None:
        """What the stand-in does wrong from now on; nothing without values."""
        shown = {"hide": list(range(2, 8)), **values}
        self.write("/etc/kiln-lab/nvidia-smi-faults.json", json.dumps(shown))

    def restart(self) -> None:
        """Run the unit again, as at boot; fails the test with its log when it fails."""
        try:
            self.run("systemctl", "restart", "kiln-mig")
        except AssertionError as error:
            output = self.run("journalctl", "-u", "kiln-mig", "-n", "20", check=False)
            raise AssertionError(f"{error}\n{output}") from error

    def apply(self, label: str) -> None:
        """Apply the label through the unit."""
        self.settings(MIG_CONFIG=label)
        self.restart()

    def unit(self, *names: str, of: str = "kiln-mig.service") -> list[str]:
        output = self.run("systemctl", "show", of, *[f"-p{n}" for n in names])
        result = dict(line.split("=", 1) for line in output.splitlines())
        return [result[n] for n in names]

    def changes(self) -> list[list[str]]:
        """The changing nvidia-smi commands since the last call."""
        log = self.run_dir / "nvidia-smi.log"
        if not log.exists():  # nothing was asked
            return []
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        log.write_text("")
        return [line["argv"] for line in lines if line["changes"]]

    def verify(self) -> dict[str, Any]:
        return json.loads(self.run("gpu-mig", "verify", "--json"))

    def state(self) -> set[Layout]:
        """The layouts that its GPUs have as the stand-in keeps them; gpu-mig is not asked.

        An instance is counted under its profile when one compute instance fills it.
        """
        kept = self.run_dir / "nvidia-smi/state.json"
        # Without the file nothing was changed since the boot, or the factory.
        text = kept.read_text() if kept.exists() else self.run("kiln-lab-gpu", "show")
        result = set()
        for gpu in json.loads(text).values():
            assert gpu["mig"] == gpu["mig_pending"]
            slices = Counter(
                i["profile"] if [c["name"] for c in i["cis"]] == [whole(i["profile"])] else str(i)
                for i in gpu["instances"]
            )
            result.add((gpu["mig"], tuple(sorted(slices.items()))))
        return result


def whole(profile: str) -> str:
    """What the driver calls the compute instance that fills a GPU instance: without attribute."""
    return profile.split("+", maxsplit=1)[0].removesuffix("-me")


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
    # The tests start it more often than systemd's start limit allows.
    guest.write(
        "/etc/systemd/system/kiln-mig.service.d/test.conf",
        "[Unit]\nStartLimitIntervalSec=0\n",
    )
    wants = guest.root / "etc/systemd/system/multi-user.target.wants"
    wants.mkdir(parents=True, exist_ok=True)
    for unit in ("kiln-mig.service", "kubelet.service"):
        (wants / unit).symlink_to(f"/etc/systemd/system/{unit}")
    guest.gpus("p4d.24xlarge")
    guest.settings()
