"""A fresh instance of an AMI: launched, and reached over one shared SSH connection."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kiln import facts
from kiln.base import processes, vocabulary
from kiln.base.account import Account
from kiln.base.errors import KilnError, nearest, operation_failed
from kiln.base.paths import short_path
from kiln.base.processes import Stop
from kiln.base.progress import Stage
from kiln.cloud import aws, cleanup, session
from kiln.cloud.network import (
    SESSION_MANAGER,
    Access,
    Network,
    Try,
    launches,
    launches_left,
    no_capacity,
)
from kiln.cloud.target import Target
from kiln.facts.tables import message

_BOOT_TIMEOUT = 600.0
# EC2 takes minutes to stop a large instance, and gives up after some.
_STOP_TIMEOUT = 1800.0
# Of one command over SSH; ConnectTimeout covers only the connection.
_SSH_TIMEOUT = 20.0
# ssh's own exit status when the connection fails.
_SSH_FAILED = 255

_BEGIN, _END = "-----BEGIN SSH HOST KEY KEYS-----", "-----END SSH HOST KEY KEYS-----"
_KEY = re.compile(r"\b(ssh-ed25519|ssh-rsa|ecdsa-sha2-nistp(?:256|384|521)) ([A-Za-z0-9+/]+=*)")
# An instance on Nitro shows its console at once, an older one some minutes after its boot:
# https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instance-console.html
CONSOLE_PATIENCE = 120.0
_TRY_AGAIN = ("RequestLimitExceeded", "InternalError", "Unavailable", "InvalidInstanceID.NotFound")


@dataclass(frozen=True)
class Machine:
    """A machine that answers over SSH, and the run it belongs to."""

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
            done = processes.run(
                ["ssh", "-F", str(self.ssh_config), f"{self.user}@{self.address}", *arguments],
                env={**os.environ, **processes.run_environment(self.run_id)},
                timeout=timeout,
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


@dataclass(frozen=True)
class Boot:
    """Reason and settings of a launch: the AMI, the type, the user of its SSH, whose run it is.

    `efa`: its network interface is one of EFA too. `tags` are given to it besides the run's.
    `launched` gets its id, `tried` each launch.
    """

    ami_id: str
    instance_type: str
    user: str
    run_id: str
    folder: Path
    access: Access
    account: Account = field(default_factory=Account)
    efa: bool = False
    tags: Mapping[str, str] = field(default_factory=dict)
    launched: Callable[[str], None] = lambda instance_id: None
    tried: Callable[[Try], None] = lambda launch: None


def require_types(names: Iterable[str], target: Target, say: Callable[[str], None]) -> None:
    """Refuse instance types that nobody knows. AWS may have one that is newer than boto3's data:
    `say` then gets a warning."""
    for name in names:
        if name in facts.instances() or name in aws.instance_types():
            continue
        wrong = f"{vocabulary.shown(name)} is not an instance type that AMI Kiln knows"
        close = nearest(name, aws.instance_types() | facts.instances().keys())
        hint = (
            f"did you mean {close!r}?" if close else "an instance type is, for example, g4dn.xlarge"
        )
        if not (target.bills and vocabulary.INSTANCE_TYPE.fits(name)):
            raise KilnError(wrong, hint=hint)
        say(f"warning: {wrong}; EC2 decides; {hint}")


@contextmanager
def booted(
    boot: Boot, target: Target, stage: Stage, say: Callable[[str], None], stop: Stop
) -> Iterator[Machine]:
    """A fresh instance of an AMI that answers over SSH; the connection is closed at the end.

    `say` gets a warning when the instance's host key is not known. The run's clean-up removes the
    instance itself.
    """
    timeout = ssh_timeout()
    client: Any = aws.ec2(target)  # boto3's type stubs lack newer instance types
    network = boot.access.network
    with aws.explained(f"{boot.instance_type} could not be launched from {boot.ami_id}"):
        instance_id = str(_launch(client, boot, target)["InstanceId"])
    boot.launched(instance_id)
    stage.waits_for(f"{instance_id} to start", limit=_BOOT_TIMEOUT)
    address = ssh_address(_running(client, instance_id, target, stop), network.ssh_interface)

    def answers() -> bool:
        by_session = network.by_session
        return session.is_online(address, target) if by_session else _port_open(address)

    deadline = time.monotonic() + timeout
    stage.waits_for(f"SSH on {instance_id}", limit=timeout)
    keys = host_keys(client, instance_id, target, answers, stage, say, stop, timeout)
    with connected(
        instance_id, address, boot.user, boot.run_id, boot.folder, boot.access.key_file
    ) as machine:
        proxy = session.proxy_command(target, machine.folder.parent) if network.by_session else ""
        _trust(machine, keys, proxy)
        wait_for_ssh(machine, network, timeout, deadline, stop, answers)
        yield machine


def _launch(client: Any, boot: Boot, target: Target) -> Any:
    """The instance, in the first subnet in which EC2 has capacity. Raises its last answer."""
    from botocore.exceptions import ClientError

    kind, account, access = boot.instance_type, boot.account, boot.access
    tags = cleanup.tags(boot.run_id, **account.tags, Name=f"kiln-verify-{boot.run_id}", **boot.tags)
    request: dict[str, Any] = {
        "ImageId": boot.ami_id,
        "InstanceType": kind,
        "MinCount": 1,
        "MaxCount": 1,
        "KeyName": access.key_name,
        "MetadataOptions": {"HttpTokens": "required", "HttpEndpoint": "enabled"},
        "InstanceInitiatedShutdownBehavior": "terminate",
        "TagSpecifications": [
            {"ResourceType": resource, "Tags": tags} for resource in ("instance", "volume")
        ],
    }
    left = launches(account, target, [kind], access.network.subnets)
    while True:
        launch = left[0]
        wanted = launch_settings(
            access, account, launch.reservation, launch.subnet_id, efa=boot.efa
        )
        try:
            made = client.run_instances(**request, **wanted)["Instances"][0]
        except ClientError as error:
            answer = str(error)
            if not no_capacity(answer):
                raise
            boot.tried(launch.tried("verify", account, answer))
            left = launches_left(left, answer)
            if not left:
                raise
        else:
            boot.tried(launch.tried("verify", account, ""))
            return made


def launch_settings(
    access: Access,
    account: Account,
    reservation: str | None,
    subnet_id: str | None,
    *,
    efa: bool = False,
) -> dict[str, Any]:
    """The arguments of RunInstances that the settings decide, in a subnet (None: a default one)
    and in a capacity reservation if one serves the type."""
    network: dict[str, Any] = {"SecurityGroupIds": list(access.security_groups)}
    if subnet_id:
        network["SubnetId"] = subnet_id
    public = account.ssh_interface == "public_ip" and subnet_id
    if public or efa:
        interface = {"DeviceIndex": 0, "Groups": network.pop("SecurityGroupIds"), **network}
        interface |= {"AssociatePublicIpAddress": True} if public else {}
        # One interface alone, since EC2 gives an instance with several no public address.
        interface |= {"InterfaceType": "efa"} if efa else {}
        network = {"NetworkInterfaces": [interface | {"DeleteOnTermination": True}]}
    if account.iam_instance_profile:
        network["IamInstanceProfile"] = {"Name": account.iam_instance_profile}
    if account.spot:
        network["InstanceMarketOptions"] = {"MarketType": "spot"}
    if reservation:
        wanted = {"CapacityReservationTarget": {"CapacityReservationId": reservation}}
        network["CapacityReservationSpecification"] = wanted
    return network


def _running(client: Any, instance_id: str, target: Target, stop: Stop) -> dict[str, Any]:
    """The running instance as EC2 describes it."""
    from botocore.exceptions import WaiterError

    ids = [instance_id]
    with aws.explained(f"{instance_id} could not be watched"):
        with contextlib.suppress(WaiterError):
            aws.wait(
                client,
                "instance_running",
                limit=_BOOT_TIMEOUT,
                every=target.poll_seconds,
                sleep=stop.sleep,
                InstanceIds=ids,
            )
        answer = client.describe_instances(InstanceIds=ids)
    instance: dict[str, Any] = answer["Reservations"][0]["Instances"][0]
    state = instance["State"]["Name"]
    if state != "running":
        reason = instance.get("StateReason", {}).get("Message", "no reason given")
        raise operation_failed(f"{instance_id} is {state} instead of running: {reason}")
    return instance


def restart(instance_id: str, ssh_interface: str, target: Target) -> str:
    """Stop an instance and start it, as a rule on another host. Returns where ssh finds it then."""
    from botocore.exceptions import WaiterError

    client: Any = aws.ec2(target)
    ids, every = [instance_id], target.poll_seconds
    with aws.explained(f"{instance_id} could not be stopped and started"):
        client.stop_instances(InstanceIds=ids)
        try:
            aws.wait(client, "instance_stopped", limit=_STOP_TIMEOUT, every=every, InstanceIds=ids)
        except WaiterError as error:
            raise operation_failed(f"{instance_id} did not stop: {error}") from None
        client.start_instances(InstanceIds=ids)
    return ssh_address(_running(client, instance_id, target, Stop()), ssh_interface)


def ssh_address(instance: dict[str, Any], ssh_interface: str) -> str:
    """Return the host at which ssh finds a running instance: an address, or its id for Session
    Manager."""
    if ssh_interface == SESSION_MANAGER:
        return str(instance["InstanceId"])
    if ssh_interface == "private_ip":
        return str(instance["PrivateIpAddress"])
    return str(instance.get("PublicIpAddress") or instance["PrivateIpAddress"])


def ssh_timeout() -> float:
    """Return the seconds that an instance may take until it answers over SSH, that of a bake as
    well as that of the checks: `KILN_SSH_TIMEOUT`, or 600."""
    text = os.environ.get("KILN_SSH_TIMEOUT", str(_BOOT_TIMEOUT))
    if not re.fullmatch(r"[0-9]{1,5}(\.[0-9]{1,3})?", text, re.ASCII):
        raise KilnError(
            f"KILN_SSH_TIMEOUT={text} is not a number of seconds",
            hint="use a number such as 900, or unset it",
        )
    return float(text)


def keys_in_console(text: str) -> list[str]:
    """The SSH host keys on a console, each as `type base64`; of several boots those of the last."""
    before, _, _ = text.rpartition(_END)
    _, begin, block = before.rpartition(_BEGIN)
    return [f"{kind} {key}" for kind, key in _KEY.findall(block)] if begin else []


def host_keys(
    client: Any,
    instance_id: str,
    target: Target,
    is_up: Callable[[], bool],
    stage: Stage,
    say: Callable[[str], None],
    stop: Stop,
    timeout: float,
) -> list[str]:
    """The SSH host keys that the instance wrote to its console; [] when it does not show them.

    cloud-init prints them there at the first boot of the images of Amazon, Canonical and Debian.
    EC2 hands the console out over its authenticated API, so nobody on the network can change them.
    (Keys that this machine made could be given to the instance in its user data, but whoever may
    call DescribeInstanceAttribute in the account reads that.)
    https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_GetConsoleOutput.html
    https://cloudinit.readthedocs.io/en/latest/reference/modules.html#keys-to-console

    Waits until SSH answers (`is_up`), and then CONSOLE_PATIENCE seconds longer or half of
    `timeout`; `timeout` seconds at most.
    """
    from botocore.exceptions import BotoCoreError, ClientError

    more = {"Latest": True}
    deadline = time.monotonic() + timeout
    is_known_up = False
    reason = "its console does not show it"
    while time.monotonic() < deadline:
        try:
            answer = client.get_console_output(InstanceId=instance_id, **more)
            if keys := keys_in_console(answer.get("Output") or ""):
                return keys
        except ClientError as error:
            code = error.response["Error"].get("Code", "")
            if code == "UnsupportedOperation" and more:
                more = {}  # not on Nitro
            elif code not in _TRY_AGAIN:
                reason = f"GetConsoleOutput answered {code}"
                break
        except BotoCoreError as error:  # the network, for a moment
            reason = f"GetConsoleOutput: {error}"
        if not is_known_up and is_up():
            is_known_up = True
            stage.waits_for(f"the host key of {instance_id} on its console")
            deadline = min(deadline, time.monotonic() + min(CONSOLE_PATIENCE, timeout / 2))
        stop.sleep(target.poll_seconds)
    if is_known_up or is_up():  # otherwise the caller reports that SSH does not answer
        say(
            f"warning: the host key of {instance_id} is not known ({reason}): the first one that "
            "answers at its address is trusted"
        )
    return []


def wait_for_ssh(
    machine: Machine,
    network: Network,
    timeout: float,
    deadline: float,
    stop: Stop,
    answers: Callable[[], bool],
) -> None:
    """Try until `deadline` (of time.monotonic), once at least; `timeout` is what is reported."""
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
    """Return the hint for ssh's last answer."""
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


@contextmanager
def connected(
    name: str, address: str, user: str, run_id: str, folder: Path, key: Path | None
) -> Iterator[Machine]:
    """A machine over one multiplexed connection, which is closed at the end."""
    with short_path(run_id, folder) as short:
        identity = []
        if key:
            (short / "key").symlink_to(key.absolute())
            identity = [f"  IdentityFile {short}/key", "  IdentitiesOnly yes"]
        lines = [
            "Host *",
            "  BatchMode yes",
            "  ConnectTimeout 10",
            "  ControlMaster auto",
            f"  ControlPath {short}/%C",
            # A run closes the connection at its end; this closes that of a killed run.
            "  ControlPersist 60",
            *identity,
        ]
        config = short / "config"
        config.touch(mode=0o600)
        config.write_text("\n".join(lines) + "\n")
        machine = Machine(name, address, user, config, run_id, short / "run")
        try:
            yield machine
        finally:
            machine.ssh("-O", "exit")


def _trust(machine: Machine, keys: Sequence[str], proxy: str) -> None:
    """Have ssh trust these host keys of a machine alone, or without any the first that answers.
    `proxy` is a command that carries the connection."""
    known = machine.ssh_config.with_name("known_hosts")
    # A started instance may have another address.
    names = f"{machine.instance_id},{machine.address}"
    known.write_text("".join(f"{names} {line}\n" for line in keys))
    lines = [
        f"  StrictHostKeyChecking {'yes' if keys else 'accept-new'}",
        f"  UserKnownHostsFile {known}",
        f"  HostKeyAlias {machine.instance_id}",
        "  GlobalKnownHostsFile /dev/null",
        # The file names an address, which other instances had before.
        "  CheckHostIP no",
        "  LogLevel ERROR",
        # A dead machine must not keep the checks waiting.
        "  ServerAliveInterval 15",
        "  ServerAliveCountMax 4",
        *([f"  ProxyCommand {proxy}"] if proxy else []),
    ]
    with machine.ssh_config.open("a") as config:
        config.write("\n".join(lines) + "\n")
