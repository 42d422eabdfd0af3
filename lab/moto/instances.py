"""Machines behind moto's instances: a guest starts when an instance starts.

moto keeps ids, tags, filters, security groups and key pairs. States change as on EC2; a thread of
each instance follows its guest.
"""

from __future__ import annotations

import copy
import logging
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import moto.ec2.models.instances as moto_instances
from moto.core.utils import utcnow
from moto.ec2.exceptions import EC2ClientError

from lab.api.faults import LAUNCH
from lab.base.shell import CommandError
from lab.machine import disks, images
from lab.machine.common import DidNotStartError
from lab.machine.guest import Guest
from lab.machine.own_kernel import TAG
from lab.machine.own_kernel.disk import path as disk_of
from lab.machine.own_kernel.qemu import QemuMachine
from lab.moto import volume_keys
from lab.moto.machines import Machines
from lab.rootfs import emulation

log = logging.getLogger("lab.instances")

BOOT_TIMEOUT = 90.0
# Of a machine with its own kernel, whose processor may be emulated.
OWN_KERNEL_BOOT_TIMEOUT = 540.0
STOP_TIMEOUT = 15.0

PENDING, RUNNING, SHUTTING_DOWN, STOPPING = (
    ("pending", 0),
    ("running", 16),
    ("shutting-down", 32),
    ("stopping", 64),
)


class LabInstance(moto_instances.Instance):  # type: ignore[misc]
    """An EC2 instance with a guest. States change as on EC2; a thread follows the guest."""

    # Set by lab.moto.backends: moto makes the instances and does not pass our arguments.
    machines: ClassVar[Machines]

    def __init__(self, ec2_backend: Any, image_id: str, *args: Any, **kwargs: Any) -> None:
        self.distro, self.base, self.layers = self.machines.layers(image_id)
        self._failure: moto_instances.StateReason | None = None
        self._lacks_key = False
        super().__init__(ec2_backend, image_id, *args, **kwargs)
        self.guest: Guest | QemuMachine | None = None
        self.reachable = "initializing"
        self.hosts = 0  # so many it has been on: a stop and start goes to another one
        self.address = self.machines.address(self)
        nic = self.nics[0]
        nic.private_ip_address = self.address
        nic.private_ip_addresses = [{"Primary": True, "PrivateIpAddress": self.address}]
        # An address at once private and public; a launch may ask for no public one.
        self.has_public_address = kwargs.get("public_address", True)
        nic.public_ip = self.address if self.has_public_address else None
        self._busy = threading.Lock()
        self._set(PENDING)

    def launch(self) -> None:
        """Power a new instance on, after moto has completed it with volumes and tags."""
        self._spawn(self._power_on)

    def setup_defaults(self) -> None:
        """The root volume of a launch that names no volumes: moto's is 8 GiB of none of the AMI's
        kind."""
        self.add_block_device(None, self.root_device_name, None, False, True, None, None)

    def add_block_device(
        self,
        size: int | None,
        device_path: str,
        snapshot_id: str | None,
        encrypted: bool,
        delete_on_termination: bool,
        kms_key_id: str | None,
        volume_type: str | None,
    ) -> None:
        """Attach a new volume. That of the root is made of the AMI's snapshot."""
        if kms_key_id:
            # Only a key that the call names: that of an AMI may be of a lab before this one.
            arn = volume_keys.arn_of(self.ec2_backend, kms_key_id)
            self._lacks_key = self._lacks_key or arn is None
            kms_key_id = arn or kms_key_id
        if device_path == self.root_device_name:
            ami = self.ec2_backend.amis[self.image_id]
            disk = ami.block_device_mappings[0]["Ebs"]
            size = size or disk["VolumeSize"]
            volume_type = volume_type or disk["VolumeType"]
            snapshot_id = disk["SnapshotId"]
            if disk["Encrypted"] and not encrypted:
                encrypted, kms_key_id = True, ami.ebs_snapshot.kms_key_id
        super().add_block_device(
            size,
            device_path,
            snapshot_id,
            encrypted,
            delete_on_termination,
            kms_key_id,
            volume_type,
        )

    @property
    def state_reason(self) -> moto_instances.StateReason:
        """Reason why the instance is in its state: a failure in the lab, else moto's reason."""
        return self._failure or self._state_reason

    @state_reason.setter
    def state_reason(self, reason: moto_instances.StateReason) -> None:
        self._state_reason = reason

    @property
    def public_dns_name(self) -> str:
        return str(super().public_dns_name or "")

    @property
    def iam_instance_profile(self) -> dict[str, str] | None:
        """The instance profile as DescribeInstances shows it; moto shows the association's id."""
        association = self.ec2_backend.iam_instance_profile_associations.get(self.id)
        if association is None:
            return None
        profile = association.iam_instance_profile
        return {"Arn": profile.arn, "Id": profile.id}

    @iam_instance_profile.setter
    def iam_instance_profile(self, _: object) -> None:
        """moto keeps it twice, and forgets this one when the profile is replaced."""

    def start(self) -> Any:
        before = copy.copy(self._state)
        if self.state == "stopped":
            if self.has_public_address:
                self.nics[0].public_ip = self.machines.other_public_address(self.address)
            self._reason, self.state_reason = "", moto_instances.StateReason()
            self.launch_time = utcnow()
            self._set(PENDING)
            self._spawn(self._power_on)
        elif self.state not in ("pending", "running"):
            raise incorrect_state(self, "started")
        return before

    def stop(self) -> Any:
        before = copy.copy(self._state)
        if self.state in ("pending", "running"):
            self._set(STOPPING)
            self._spawn(self._power_off)
        elif self.state not in ("stopping", "stopped"):
            raise incorrect_state(self, "stopped")
        return before

    def terminate(self) -> Any:
        before = copy.copy(self._state)
        if self.state not in ("shutting-down", "terminated"):
            self._set(SHUTTING_DOWN)
            self._spawn(self._terminate)
        return before

    def reboot(self) -> None:
        if self.guest:
            self.guest.reboot()

    def power_off_now(self) -> None:
        """Kill the guest, at the end of the lab."""
        if self.guest:
            self.guest.kill()

    def _set(self, state: tuple[str, int]) -> None:
        self._state.name, self._state.code = state

    def _spawn(self, work: Callable[[], None]) -> None:
        def run() -> None:
            try:
                with self._busy:
                    work()
            except Exception as error:
                is_expected = isinstance(error, (DidNotStartError, CommandError))
                log.error(
                    "%s: %s failed: %s", self.id, work.__name__, error, exc_info=not is_expected
                )
                code = "Server.InternalError"
                self._fail(code, f"{LAUNCH[code]} (see lab.logs)")

        threading.Thread(target=run, daemon=True, name=f"{self.id}-{work.__name__}").start()

    def _power_on(self) -> None:
        if self.state != "pending":
            return
        fault = self.machines.faults.take("boot", {"InstanceType": self.instance_type})
        if fault and fault.code in LAUNCH:
            self._fail(fault.code, fault.message or LAUNCH[fault.code])
            return
        if self._lacks_key:
            # https://repost.aws/knowledge-center/kms-iam-ec2-permission
            self._fail("Client.InternalError", LAUNCH["Client.InternalError"])
            return
        emulation.ensure(self.architecture)
        self.base = self.base or self.machines.base(self.distro, self.architecture)
        self.reachable = "initializing"
        self.hosts += 1
        own = self.has_own_kernel
        self.guest = self._machine() if own else self._guest(never_boots=fault is not None)
        self.guest.start()
        # For EC2 an instance runs when its machine does, long before its system answers.
        if self.state == "pending":
            self._set(RUNNING)
        timeout = OWN_KERNEL_BOOT_TIMEOUT if own else BOOT_TIMEOUT
        arguments = (self.guest, 2.0 if fault else timeout)
        threading.Thread(target=self._reach, args=arguments, daemon=True).start()

    def _reach(self, guest: Guest | QemuMachine, timeout: float) -> None:
        """Wait for the boot, during which the instance can be stopped and terminated."""
        booted = guest.wait_until_booted(timeout)
        if self.guest is guest:
            self.reachable = "passed" if booted else "failed"

    @property
    def has_own_kernel(self) -> bool:
        """True if it boots the kernel of its AMI, as its tag asks for, and not in a container."""
        return any(tag["key"] == TAG for tag in self.get_tags())

    def _machine(self) -> QemuMachine:
        disk = disk_of(self.machines.lab, self.image_id)
        if not disk.exists():
            raise DidNotStartError(f"{self.image_id} has no disk: see verify --own-kernel")
        return QemuMachine(
            lab=self.machines.lab,
            instance_id=self.id,
            instance_type=self.instance_type,
            address=self.address,
            mac=self.nics[0].mac_address,
            disk=disk,
            name=self.private_dns_name,
            ended=partial(self._ended, self.hosts),
        )

    def _guest(self, *, never_boots: bool) -> Guest:
        lab = self.machines.lab
        base = self.base or self.machines.base(self.distro, self.architecture)
        return Guest(
            lab=lab,
            instance_id=self.id,
            address=self.address,
            mac=self.nics[0].mac_address,
            layers=images.layer_paths(lab, base, self.layers),
            facts={
                "lab": "AMI Kiln lab",
                "instance_id": self.id,
                "instance_type": self.instance_type,
                "host": str(self.hosts),
                "ami_id": self.image_id,
                "arch": self.architecture,
            },
            name=self.private_dns_name,
            ended=partial(self._ended, self.hosts),
            never_boots=never_boots,
        )

    def _power_off(self) -> None:
        if self.guest:
            self.guest.power_off(STOP_TIMEOUT)
        self._settle_stopped()

    def _terminate(self) -> None:
        if self.guest:
            self.guest.kill()
        self.machines.release_public_addresses(self.address)
        disks.delete(self.machines.lab, self.id)
        self.machines.by_address.pop(self.address, None)
        super().terminate()

    def _settle_stopped(self) -> None:
        if self.state != "stopped":
            self.machines.release_public_addresses(self.address)
            # It takes the public address away.
            super().stop()
        self.guest = None

    def _ended(self, host: int) -> None:
        """Handle the end of a guest, whether the guest or the API initiated it.

        It may come while the instance is still being started, or when it is on another host.
        """
        with self._busy:
            if self.state != "running" or host != self.hosts:
                return
            if self.instance_initiated_shutdown_behavior == "terminate":
                self.terminate()
            else:
                self._settle_stopped()

    def _fail(self, code: str, text: str) -> None:
        """Do as EC2 does when an instance cannot be started: terminate it, with a reason."""
        self._failure = moto_instances.StateReason(f"{code}: {text}", code)
        self.terminate()

    def _status(self) -> dict[str, Any]:
        if self.state_code != RUNNING[1]:
            return {"Status": "not-applicable"}
        summary = {"passed": "ok", "failed": "impaired", "initializing": "initializing"}
        return {
            "Details": [{"Name": "reachability", "Status": self.reachable}],
            "Status": summary[self.reachable],
        }

    instance_status = system_status = property(_status)


def incorrect_state(instance: LabInstance, verb: str) -> EC2ClientError:
    """EC2's answer to a call that an instance's state does not allow."""
    return EC2ClientError(
        "IncorrectInstanceState",
        f"The instance '{instance.id}' is not in a state from which it can be {verb}.",
    )
