"""A fresh instance of an AMI: launched, and reached over one shared SSH connection."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from kiln.base import processes
from kiln.base.account import Account
from kiln.base.errors import KilnError, operation_failed
from kiln.base.paths import short_path
from kiln.base.stopping import Stop
from kiln.cloud import aws, capacity, host_key, reservations, resources, session
from kiln.cloud.access import Access
from kiln.cloud.capacity import Try
from kiln.cloud.network import Network
from kiln.cloud.target import Target
from kiln.facts.tables import message

_BOOT_TIMEOUT = 600.0
# Of one command over SSH; ConnectTimeout covers only the connection.
_SSH_TIMEOUT = 20.0
# ssh's own exit status when the connection fails.
_SSH_FAILED = 255


@dataclass(frozen=True)
class Machine:
    """A booted instance that answers over SSH, and the run it belongs to."""

    instance_id: str
    address: str
    user: str
    ssh_config: Path
    run_id: str
    # The run's folder by a path that any program can read (`base/short_path.py`).
    folder: Path

    def ssh(self, *arguments: str, timeout: float = _SSH_TIMEOUT) -> tuple[int, str, str]:
        """Run ssh with these arguments after the address. Returns exit status, stdout, stderr."""
        try:
            done = subprocess.run(
                ["ssh", "-F", str(self.ssh_config), f"{self.user}@{self.address}", *arguments],
                env={**os.environ, **processes.run_environment(self.run_id)},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=timeout,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return _SSH_FAILED, "", f"no answer within {timeout:.0f} s"
        return done.returncode, done.stdout, done.stderr

    def read_json(self, path: str) -> Any:
        """A JSON file on the machine; None if it does not exist or is not JSON."""
        _, text, _ = self.ssh(f"sudo -n cat {path}", timeout=60)
        try:
            return json.loads(text)
        except ValueError:
            return None


class WaitsFor(Protocol):
    """Takes what is waited for, and the limit in seconds: `Stage.waits_for`."""

    def __call__(self, what: str, *, limit: float | None = None) -> None: ...


def _silent(what: str, *, limit: float | None = None) -> None:
    """Prints nothing."""


_PLAIN = Account()


@contextmanager
def booted(
    ami_id: str,
    instance_type: str,
    *,
    user: str,
    run_id: str,
    folder: Path,
    access: Access,
    target: Target,
    stop: Stop,
    say: Callable[[str], None] = lambda line: None,
    waits_for: WaitsFor = _silent,
    account: Account = _PLAIN,
    tags: Mapping[str, str] | None = None,
    launched: Callable[[str], None] = lambda instance_id: None,
    tried: Callable[[Try], None] = lambda launch: None,
) -> Iterator[Machine]:
    """A fresh instance of an AMI that answers over SSH; the connection is closed at the end.

    `tags` are given to it besides the run's. `waits_for` gets what is waited for, and its limit
    in seconds; `say` gets a warning when the instance's host key is not known. The run's clean-up
    removes the instance itself; `launched` gets its id, `tried` each launch.
    Raises KilnError (exit status 1) if the launch fails or SSH does not answer within ten minutes,
    StoppedError as soon as `stop` is set.
    """
    timeout = ssh_timeout()
    client: Any = aws.ec2(target)  # boto3's type stubs lack newer instance types
    request: dict[str, Any] = {
        "ImageId": ami_id,
        "InstanceType": instance_type,
        "MinCount": 1,
        "MaxCount": 1,
        "KeyName": access.key_name,
        "MetadataOptions": {"HttpTokens": "required", "HttpEndpoint": "enabled"},
        "InstanceInitiatedShutdownBehavior": "terminate",
        "TagSpecifications": [
            {
                "ResourceType": kind,
                "Tags": resources.tags(
                    run_id, **account.tags, Name=f"kiln-verify-{run_id}", **(tags or {})
                ),
            }
            for kind in ("instance", "volume")
        ],
    }
    with aws.explained(f"{instance_type} could not be launched from {ami_id}"):
        instance = _launched(client, request, access, account, target, tried)
    launched(instance["InstanceId"])
    waits_for(f"{instance['InstanceId']} to start", limit=_BOOT_TIMEOUT)
    ends = _wait_until_running(client, instance["InstanceId"], target, stop)
    address = _address(ends, access)
    deadline = time.monotonic() + timeout
    waits_for(f"SSH on {instance['InstanceId']}", limit=timeout)
    host_keys = host_key.wait(
        client,
        instance["InstanceId"],
        target,
        is_up=lambda: _answers(address, access, target),
        waits_for=waits_for,
        say=say,
        stop=stop,
        timeout=timeout,
    )
    with short_path(run_id, folder) as short:
        proxy = session.proxy_command(target, short) if access.network.by_session else ""
        ssh_config = write_ssh_config(access.key_file, short, address, host_keys, proxy)
        machine = Machine(instance["InstanceId"], address, user, ssh_config, run_id, short / "run")
        try:
            wait_for_ssh(
                machine,
                access.network,
                timeout,
                deadline,
                stop,
                lambda: _answers(address, access, target),
            )
            yield machine
        finally:
            if any(path.is_socket() for path in short.iterdir()):
                machine.ssh("-O", "exit")


def _launched(
    client: Any,
    request: dict[str, Any],
    access: Access,
    account: Account,
    target: Target,
    tried: Callable[[Try], None],
) -> Any:
    """The instance, in the first subnet in which EC2 has capacity. Raises its last answer."""
    from botocore.exceptions import ClientError

    kind = str(request["InstanceType"])
    left = reservations.launches_of(account, target, [kind], access.network.subnets)
    while True:
        subnet, reservation = left[0].subnet_id, left[0].reservation
        market = capacity.market_of(account.spot, reservation)
        wanted = launch_settings(access, account, reservation, subnet)
        try:
            made = client.run_instances(**request, **wanted)["Instances"][0]
        except ClientError as error:
            answer = str(error)
            if not capacity.no_capacity(answer):
                raise
            tried(Try("verify", kind, subnet, market, answer))
            left = capacity.after(left, answer)
            if not left:
                raise
        else:
            tried(Try("verify", kind, subnet, market, ""))
            return made


def launch_settings(
    access: Access, account: Account, reservation: str | None, subnet_id: str | None
) -> dict[str, Any]:
    """The arguments of RunInstances that the settings decide, in a subnet (None: a default one)
    and in a capacity reservation if one serves the type."""
    network: dict[str, Any] = {"SecurityGroupIds": list(access.security_groups)}
    if subnet_id:
        network["SubnetId"] = subnet_id
    if account.ssh_interface == "public_ip" and subnet_id:
        interface = {"DeviceIndex": 0, "AssociatePublicIpAddress": True}
        interface |= {"SubnetId": network["SubnetId"], "Groups": network["SecurityGroupIds"]}
        network = {"NetworkInterfaces": [interface]}
    if account.iam_instance_profile:
        network["IamInstanceProfile"] = {"Name": account.iam_instance_profile}
    if account.spot:
        network["InstanceMarketOptions"] = {"MarketType": "spot"}
    if reservation:
        wanted = {"CapacityReservationTarget": {"CapacityReservationId": reservation}}
        network["CapacityReservationSpecification"] = wanted
    return network


def _address(instance: dict[str, Any], access: Access) -> str:
    """Where ssh finds a running instance: an address, or its id for Session Manager."""
    if access.network.by_session:
        return str(instance["InstanceId"])
    if access.network.ssh_interface == "private_ip":
        return str(instance["PrivateIpAddress"])
    return str(instance.get("PublicIpAddress") or instance["PrivateIpAddress"])


def _answers(address: str, access: Access, target: Target) -> bool:
    """Can a connection be tried?"""
    return session.is_online(address, target) if access.network.by_session else _port_open(address)


def ssh_timeout() -> float:
    """How many seconds an instance may take until it answers over SSH, that of a bake as well as
    that of the checks: `KILN_SSH_TIMEOUT`, or 600.

    Raises KilnError (exit status 2) when that is not a number of seconds.
    """
    text = os.environ.get("KILN_SSH_TIMEOUT", str(_BOOT_TIMEOUT))
    if not re.fullmatch(r"[0-9]{1,5}(\.[0-9]{1,3})?", text, re.ASCII):
        raise KilnError(
            f"KILN_SSH_TIMEOUT={text} is not a number of seconds",
            hint="use a number such as 900, or unset it",
        )
    return float(text)


def _wait_until_running(
    client: Any, instance_id: str, target: Target, stop: Stop
) -> dict[str, Any]:
    """The running instance as EC2 describes it."""
    from botocore.exceptions import ClientError

    deadline = time.monotonic() + _BOOT_TIMEOUT
    with aws.explained(f"{instance_id} could not be watched"):
        while time.monotonic() < deadline:
            try:
                answer = client.describe_instances(InstanceIds=[instance_id])
            except ClientError as error:
                # EC2 is eventually consistent: a new instance is not visible everywhere at once.
                if error.response["Error"].get("Code") != "InvalidInstanceID.NotFound":
                    raise
                stop.sleep(1)
                continue
            instance = answer["Reservations"][0]["Instances"][0]
            state = instance["State"]["Name"]
            if state == "running":
                return dict(instance)
            if state != "pending":
                reason = instance.get("StateReason", {}).get("Message", "no reason given")
                raise operation_failed(f"{instance_id} went to {state} while booting: {reason}")
            stop.sleep(target.poll_seconds)
    raise operation_failed(f"{instance_id} is still not running after {_BOOT_TIMEOUT:.0f} s")


def wait_for_ssh(
    machine: Machine,
    network: Network,
    timeout: float,
    deadline: float,
    stop: Stop,
    answers: Callable[[], bool],
) -> None:
    """Try until `deadline` (of time.monotonic), once at least; `timeout` is what is reported.

    Raises KilnError (exit status 1) when nothing answers, StoppedError as soon as `stop` is set.
    """
    silent = "its SSM agent has not registered" if network.by_session else "port 22 is closed"
    reason = silent
    while True:
        if answers():
            code, _, error = machine.ssh("true")
            if code == 0:
                return
            reason = session.reason_in(error)
        if time.monotonic() >= deadline:
            break
        stop.sleep(0.1)
    raise operation_failed(
        f"{machine.instance_id} at {machine.address} does not answer over SSH after "
        f"{timeout:.0f} s: {reason}",
        hint=network.hint if reason == silent else ssh_hint(reason),
    )


def ssh_hint(answer: str) -> str:
    """What to look at when ssh's last answer was this."""
    if message("openssh", "other_host_key").search(answer):
        return (
            "the machine that answers there does not have the host key that the instance wrote to "
            "its console"
        )
    if answer.startswith(session.REFUSED):
        return (
            "may you open sessions (docs/iam-policy-settings.json, the statements for sessions), "
            "and does the instance's SSM agent run?"
        )
    return "is the security group reachable from here, and did cloud-init take the key?"


def _port_open(address: str) -> bool:
    try:
        socket.create_connection((address, 22), timeout=2).close()
    except OSError:
        return False
    return True


def write_ssh_config(
    key: Path, folder: Path, address: str, host_keys: Sequence[str], proxy: str = ""
) -> Path:
    """Write an ssh configuration with one multiplexed connection for all checks; its path.

    `proxy` is a command that carries the connection.

    Without `host_keys` the first key that answers is trusted, and no other after it. ssh has a
    syntax of its own for `"` and `%` in a path: that of `folder` must be plain.
    """
    path = folder / "config"
    (folder / "key").symlink_to(key.absolute())
    (folder / "known_hosts").write_text("".join(f"{address} {line}\n" for line in host_keys))
    path.write_text(
        "Host *\n"
        f"  IdentityFile {folder}/key\n"
        "  IdentitiesOnly yes\n"
        "  BatchMode yes\n"
        "  ConnectTimeout 5\n"
        f"  StrictHostKeyChecking {'yes' if host_keys else 'accept-new'}\n"
        f"  UserKnownHostsFile {folder}/known_hosts\n"
        "  GlobalKnownHostsFile /dev/null\n"
        # The file names an address, which other instances had before.
        "  CheckHostIP no\n"
        "  LogLevel ERROR\n"
        # A dead machine must not keep the checks waiting.
        "  ServerAliveInterval 15\n"
        "  ServerAliveCountMax 4\n"
        "  ControlMaster auto\n"
        f"  ControlPath {folder}/%C\n"
        # A run closes the connection at its end; this closes that of a killed run.
        "  ControlPersist 60\n" + (f"  ProxyCommand {proxy}\n" if proxy else "")
    )
    path.chmod(0o600)
    return path
