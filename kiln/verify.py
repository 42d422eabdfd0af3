"""Is an AMI what its recipe says? A fresh instance is booted from it and `tests/ami` asks it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from kiln import aws, resources
from kiln.errors import KilnError, world_failed
from kiln.facts import instances
from kiln.paths import AMI_TESTS, ROOT
from kiln.resources import Access
from kiln.target import Target

Outcome = Literal["passed", "failed", "skipped"]

_BOOT_TIMEOUT = 600.0
# pytest's exit codes 0 and 1 mean that the checks ran to their end.
_RAN = (0, 1)


@dataclass(frozen=True)
class Check:
    """One check and how it ended; `message` says why it failed or was skipped."""

    name: str
    file: str
    outcome: Outcome
    seconds: float
    message: str = ""


@dataclass(frozen=True)
class Verdict:
    """All checks of one instance."""

    checks: tuple[Check, ...]

    def count(self, outcome: Outcome) -> int:
        """How many ended that way."""
        return sum(check.outcome == outcome for check in self.checks)

    @property
    def passed(self) -> bool:
        """Nothing failed, and something passed: a run whose checks were all skipped has not."""
        return self.count("failed") == 0 and self.count("passed") > 0

    def as_json(self) -> dict[str, Any]:
        """Counts and checks as plain data."""
        return {
            "passed": self.count("passed"),
            "failed": self.count("failed"),
            "skipped": self.count("skipped"),
            "checks": [asdict(check) for check in self.checks],
        }


@dataclass(frozen=True)
class Machine:
    """A booted instance that answers over SSH."""

    instance_id: str
    address: str
    user: str
    ssh_config: Path


def boot(
    ami_id: str,
    instance_type: str,
    *,
    user: str,
    run_id: str,
    folder: Path,
    access: Access,
    target: Target,
    subnet_id: str | None = None,
    iam_instance_profile: str | None = None,
) -> Machine:
    """Launch a fresh instance from an AMI and wait until it answers over SSH.

    Raises KilnError (exit code 1): no capacity, launch failed, or no SSH within ten minutes.
    """
    client: Any = aws.ec2(target)  # its stubs know the instance types of the day they were made
    network: dict[str, Any] = {"SecurityGroupIds": [access.security_group]}
    if subnet_id:
        network["SubnetId"] = subnet_id
    if iam_instance_profile:
        network["IamInstanceProfile"] = {"Name": iam_instance_profile}
    with aws.explained(f"{instance_type} could not be launched from {ami_id}"):
        launched = client.run_instances(
            ImageId=ami_id,
            InstanceType=instance_type,
            MinCount=1,
            MaxCount=1,
            KeyName=access.key_name,
            MetadataOptions={"HttpTokens": "required", "HttpEndpoint": "enabled"},
            InstanceInitiatedShutdownBehavior="terminate",
            TagSpecifications=[
                {
                    "ResourceType": kind,
                    "Tags": resources.tags(run_id, Name=f"kiln-verify-{run_id}"),
                }
                for kind in ("instance", "volume")
            ],
            **network,
        )["Instances"][0]
    address = _wait_until_running(client, launched["InstanceId"], target)
    ssh_config = _ssh_config(folder, access.key_file)
    machine = Machine(launched["InstanceId"], address, user, ssh_config)
    _wait_for_ssh(machine)
    return machine


def expectations(
    recipe: dict[str, Any], instance_type: str, target: Target, image: dict[str, Any]
) -> dict[str, Any]:
    """What the checks hold the machine against: the recipe and what the type has, no literals."""
    kind = instances().get(instance_type)
    gpu = None
    if kind:
        gpu = {
            "count": kind.gpu_count,
            "name": kind.product,
            "nvswitch": kind.nvswitch,
            "nvlsm": kind.nvlsm,
            "prefers": kind.prefers,
            "efa": kind.efa_interfaces,
            "mig": kind.mig,
            "clocks": kind.application_clocks,
        }
    return {
        "recipe": recipe,
        "instance_type": instance_type,
        "gpu": gpu,
        "target": target.kind,
        "ami": image,
    }


def run_checks(
    machine: Machine,
    expected: dict[str, Any],
    folder: Path,
    *,
    on_line: Callable[[str], None] = lambda line: None,
    tests: Sequence[Path] = (AMI_TESTS,),
) -> Verdict:
    """Run the checks against a machine. JUnit and the checks' output are kept in `folder`.

    Raises KilnError (exit code 1) when they did not run to their end, so nothing is known.
    """
    expect_file = folder / "expect.json"
    expect_file.write_text(json.dumps(expected, indent=2) + "\n")
    junit = folder / "checks.junit.xml"
    junit.unlink(missing_ok=True)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-rs",
        "-p",
        "no:xdist",
        f"--hosts=ssh://{machine.user}@{machine.address}",
        f"--ssh-config={machine.ssh_config}",
        f"--junitxml={junit}",
        *map(str, tests),
    ]
    output = []
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, "KILN_EXPECT": str(expect_file), "PYTHONDONTWRITEBYTECODE": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        for line in process.stdout or ():
            output.append(line)
            on_line(line.rstrip("\n"))
    (folder / "checks.log").write_text("".join(output))
    if process.returncode not in _RAN or not junit.exists():
        said = [line.strip() for line in output if line.strip()]
        raise world_failed(
            f"the checks did not run to their end: {said[-1] if said else 'no output'}",
            hint=f"see {folder / 'checks.log'}",
        )
    return Verdict(tuple(read_junit(junit)))


def read_json(machine: Machine, path: str) -> Any:
    """A JSON file on the machine; None when it is not there or not JSON."""
    done = subprocess.run(
        [
            "ssh",
            "-F",
            str(machine.ssh_config),
            f"{machine.user}@{machine.address}",
            f"sudo -n cat {path}",
        ],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        return json.loads(done.stdout)
    except ValueError:
        return None


def read_junit(path: Path) -> list[Check]:
    """The checks in a JUnit file, in the order in which they ran."""
    return [_check(case) for case in ET.parse(path).getroot().iter("testcase")]  # noqa: S314


def _check(case: ET.Element) -> Check:
    outcome: Outcome = "passed"
    message = ""
    for tag, meaning in (("skipped", "skipped"), ("failure", "failed"), ("error", "failed")):
        found = case.find(tag)
        if found is not None:
            outcome = meaning  # type: ignore[assignment]
            message = (found.get("message") or found.text or "").strip()
    file = (case.get("classname") or "").split(".")[-1]
    name = (case.get("name") or "").removesuffix("]").split("[ssh://")[0]
    return Check(name, file, outcome, float(case.get("time") or 0), message)


def _wait_until_running(client: Any, instance_id: str, target: Target) -> str:
    from botocore.exceptions import ClientError

    deadline = time.monotonic() + _BOOT_TIMEOUT
    with aws.explained(f"{instance_id} could not be watched"):
        while time.monotonic() < deadline:
            try:
                found = client.describe_instances(InstanceIds=[instance_id])
            except ClientError as error:
                # A new instance is not known everywhere at once.
                if error.response["Error"].get("Code") != "InvalidInstanceID.NotFound":
                    raise
                time.sleep(1)
                continue
            instance = found["Reservations"][0]["Instances"][0]
            state = instance["State"]["Name"]
            if state == "running":
                return str(instance.get("PublicIpAddress") or instance["PrivateIpAddress"])
            if state != "pending":
                reason = instance.get("StateReason", {}).get("Message", "no reason given")
                raise world_failed(f"{instance_id} went to {state} while booting: {reason}")
            time.sleep(resources.pause(target))
    raise world_failed(f"{instance_id} is still not running after {_BOOT_TIMEOUT:.0f} s")


def _wait_for_ssh(machine: Machine) -> None:
    timeout = float(os.environ.get("KILN_SSH_TIMEOUT", _BOOT_TIMEOUT))
    deadline = time.monotonic() + timeout
    said = "port 22 is closed"
    while time.monotonic() < deadline:
        if _port_open(machine.address):
            done = subprocess.run(
                ["ssh", "-F", str(machine.ssh_config), f"{machine.user}@{machine.address}", "true"],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode == 0:
                return
            said = (done.stderr.strip().splitlines() or ["ssh failed"])[-1]
        time.sleep(0.1)
    raise world_failed(
        f"{machine.instance_id} at {machine.address} does not answer over SSH after "
        f"{timeout:.0f} s: {said}",
        hint="is the security group reachable from here, and did cloud-init take the key?",
    )


def _port_open(address: str) -> bool:
    try:
        socket.create_connection((address, 22), timeout=2).close()
    except OSError:
        return False
    return True


def _ssh_config(folder: Path, key: Path) -> Path:
    """One multiplexed connection for all checks. The socket's path has to be short."""
    path = folder / "ssh" / "config"
    path.write_text(
        "Host *\n"
        f"  IdentityFile {key.resolve()}\n"
        "  IdentitiesOnly yes\n"
        "  BatchMode yes\n"
        "  ConnectTimeout 5\n"
        # The host is new and its key unknown; it is our own instance behind our own key pair.
        "  StrictHostKeyChecking no\n"
        "  UserKnownHostsFile /dev/null\n"
        "  LogLevel ERROR\n"
        "  ControlMaster auto\n"
        f"  ControlPath /tmp/kiln-{os.getpid()}-%C\n"
        "  ControlPersist 20\n"
    )
    path.chmod(0o600)
    return path


def recipe_on(image_tags: dict[str, str], recipes: Sequence[Any]) -> Any:
    """The recipe an AMI was made from, by its tag. Raises KilnError when it has none."""
    name = image_tags.get("kiln:recipe")
    for recipe in recipes:
        if recipe.name == name:
            return recipe
    raise KilnError(
        f"this AMI's tag kiln:recipe is {name!r}: no row of the matrix has that name",
        hint="only AMIs that AMI Kiln built can be verified; see ./invoke list",
    )
