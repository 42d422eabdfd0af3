"""The machine behind an instance that boots its AMI's own kernel: qemu with the AMI's disk.

It has the methods of `lab.machine.guest`. What it writes to its disk is gone when it is off: qemu
keeps that in a file without a name.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from lab.base.settings import Lab
from lab.machine import bridge, cgroups, disks
from lab.machine.common import DidNotStartError, has_booted, hypervisor_id
from lab.machine.own_kernel import accelerator, dhcp

log = logging.getLogger("lab.own_kernel")

_CONTROL = "qemu.sock"
_MEMORY = 2048  # MiB
_PROCESSORS = 2
_START_TIMEOUT = 30.0
# An emulated sshd needs seconds for its first word.
_SSH_TIMEOUT = 10.0


@dataclass
class QemuMachine:
    """A machine from its start to its end. `ended` is called once, when it is off for good."""

    lab: Lab
    instance_id: str
    instance_type: str
    address: str
    mac: str
    disk: Path
    name: str  # EC2's private one
    ended: Callable[[], None]
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False)
    _off: threading.Event = field(default_factory=threading.Event, init=False)

    def start(self) -> None:
        """Set up its port on the bridge, and boot.

        Raises DidNotStartError and CommandError (ip), after removing all of the machine.
        """
        home = disks.folder(self.lab, self.instance_id)
        home.mkdir(parents=True, exist_ok=True)
        self._control.unlink(missing_ok=True)
        try:
            bridge.attach_tap(self.lab, self.address, self.mac)
            dhcp.offer(self.lab, self.mac, self.address, self.name.partition(".")[2])
            self._boot(home)
        except Exception:
            self._clear()
            raise
        threading.Thread(target=self._watch, daemon=True).start()

    def wait_until_booted(self, timeout: float) -> bool:
        """Wait until the machine answers on port 22; False after `timeout` seconds."""
        return has_booted(self.address, self._off, timeout, 0.2, _SSH_TIMEOUT)

    def power_off(self, timeout: float) -> None:
        """Press the power button; kill the machine after `timeout` seconds."""
        self._order("system_powerdown")
        self._off.wait(timeout)
        self.kill()

    def reboot(self) -> None:
        """Press Ctrl-Alt-Del, on which systemd reboots."""
        keys = [{"type": "qcode", "data": key} for key in ("ctrl", "alt", "delete")]
        self._order("send-key", keys=keys)

    def kill(self) -> None:
        """Kill the machine and wait until it is off."""
        cgroups.remove(self._group)
        self._off.wait(5)

    @property
    def _group(self) -> str:
        return f"{self.lab.bridge}/{self.instance_id}"

    @property
    def _control(self) -> Path:
        return disks.folder(self.lab, self.instance_id) / _CONTROL

    def _boot(self, home: Path) -> None:
        command = [
            *cgroups.run_in(self._group),
            *("qemu-system-x86_64", "-name", self.instance_id, *accelerator.options()),
            *("-machine", "pc", "-smp", str(_PROCESSORS), "-m", str(_MEMORY)),
            *("-nodefaults", "-no-user-config", "-display", "none"),
            *("-chardev", f"file,id=console,append=on,path={home / 'console.log'}"),
            *("-serial", "chardev:console"),
            # As on Nitro the root is the first NVMe device.
            *("-drive", f"if=none,id=root,format=raw,snapshot=on,file={self.disk}"),
            *("-device", f"nvme,drive=root,serial=vol{self.instance_id[2:]},bootindex=0"),
            *("-netdev", f"tap,id=net,script=no,downscript=no,ifname={self._port}"),
            # qemu has no ENA. Nothing boots from it, so it needs no firmware.
            *("-device", f"virtio-net-pci,netdev=net,mac={self.mac},romfile="),
            *("-device", "virtio-rng-pci"),
            *self._identity(),
            *("-qmp", f"unix:{_CONTROL},server=on,wait=off"),
            *(
                "-sandbox",
                "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny",
            ),
        ]
        log_file = home / "qemu.log"
        with log_file.open("wb") as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
                start_new_session=True,
                cwd=home,  # the path of a socket is short
            )
        deadline = time.monotonic() + _START_TIMEOUT
        while self._process.poll() is None and time.monotonic() < deadline:
            if self._control.exists():
                return
            time.sleep(0.02)
        lines = log_file.read_text(errors="replace").strip().splitlines()
        raise DidNotStartError(lines[-1] if lines else "qemu did not start")

    @property
    def _port(self) -> str:
        return bridge.port(self.lab, self.address)

    def _identity(self) -> list[str]:
        """Return the firmware's identity of an instance on Nitro.

        https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/identify_ec2_instances.html
        """
        own = hypervisor_id()
        return [
            *("-smbios", "type=0,vendor=Amazon EC2,version=1.0"),
            "-smbios",
            f"type=1,manufacturer=Amazon EC2,product={self.instance_type},uuid={own},serial={own}",
            *("-smbios", f"type=2,manufacturer=Amazon EC2,asset={self.instance_id}"),
            *("-smbios", f"type=3,manufacturer=Amazon EC2,asset={self.instance_id}"),
        ]

    def _order(self, command: str, **arguments: object) -> None:
        """Send a command to qemu's monitor; a machine that is off gets none."""
        lines = [{"execute": "qmp_capabilities"}, {"execute": command, "arguments": arguments}]
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as monitor:
            monitor.settimeout(5)
            folder = os.open(self._control.parent, os.O_PATH)
            try:
                monitor.connect(f"/proc/self/fd/{folder}/{_CONTROL}")
            finally:
                os.close(folder)
            monitor.recv(4096)
            for line in lines:
                monitor.sendall(json.dumps(line).encode() + b"\n")
                monitor.recv(4096)

    def _watch(self) -> None:
        if self._process:
            self._process.wait()
        self._clear()
        self.ended()

    def _clear(self) -> None:
        cgroups.remove(self._group)
        if self._process:
            self._process.wait()
        dhcp.forget(self.mac)
        bridge.detach_tap(self.lab, self.address, self.mac)
        self._control.unlink(missing_ok=True)
        self._off.set()
