"""One lab of its own for the lab's tests: what they start is gone when they are done."""

from __future__ import annotations

import contextlib
import gc
import hashlib
import io
import itertools
import json
import os
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config
from xdist.scheduler import LoadFileScheduling

from devel import packers, testing
from devel.testbed import PRIVATE_KEY, inventory, users_environment
from kiln.base.errors import KilnError
from kiln.packer.program import Packer
from lab.api import botocore_data, session_token
from lab.base import settings
from lab.base.settings import Lab
from lab.daemon import cell, control
from lab.rootfs import bases
from tests import surroundings
from tests.unit import commands
from tests.unit.rows import row

__all__ = ["PRIVATE_KEY", "inventory", "users_environment"]

os.environ["KILN_LAB_STATE"] = str(settings.current().root)
surroundings.replace()
# As in tests/unit/conftest.py.
gc.set_threshold(100_000, 50, 50)
botocore_data.read_once()
signal.signal(signal.SIGINT, signal.default_int_handler)
ROOT = Path(__file__).resolve().parents[2]
AL2 = row("al2/classic/base/x86_64").name
# It is not the user's lab, and each process that tests has one of its own.
FIRST_INDEX = int(os.environ.get("KILN_LAB_INDEX", "9"))
os.environ["KILN_LAB_INDEX"] = str(
    FIRST_INDEX + int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
)
# Of SSH connections. A socket's path must be short.
SOCKETS = tempfile.TemporaryDirectory(prefix="kiln-ssh-", ignore_cleanup_errors=True)
# Seconds in which a machine that is running for EC2 has opened port 22, however busy this one is.
_BOOT = 60
# These look at the same built AMI.
OF_THE_BUILD = (
    *("test_build.py", "test_mig_first_boot.py", "test_release.py", "test_mutations.py"),
)


# The files that need another lab beside that one.
OF_ANOTHER_LAB = (
    "test_lab_down.py",
    "test_overlay.py",
    "test_real_ubuntu.py",
    "test_safety.py",
    "test_vendors.py",
)


def another_lab(file: str) -> Lab:
    """The other lab of a file of tests, which no process that tests has as its own; not up."""
    number = testing.MOST_AT_ONCE + OF_ANOTHER_LAB.index(Path(file).name)
    return Lab((FIRST_INDEX + 1 + number) % settings.LABS, settings.current().root)


def pytest_configure(config: pytest.Config) -> None:
    """Go on in the labs' cell, unless this process is one of xdist's there."""
    if cell.is_inside() or config.option.collectonly:
        return
    capture: Any = config.pluginmanager.getplugin("capturemanager")
    capture.suspend_global_capture(in_=True)
    pytest_again = [sys.executable, "-m", "pytest", *config.invocation_params.args]
    try:
        os._exit(cell.call(settings.current().root, pytest_again))
    except KilnError as error:
        WHY_NO_CELL.append(str(error))
    capture.resume_global_capture()


# Why there is none.
WHY_NO_CELL: list[str] = []


class ByAmi(LoadFileScheduling):
    """Over several processes by file, for a file's tests share an AMI or a guest."""

    def _split_scope(self, nodeid: str) -> str:
        path = super()._split_scope(nodeid)
        return OF_THE_BUILD[0] if path.endswith(OF_THE_BUILD) else path


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByAmi:
    """Used by `pytest -n`."""
    return ByAmi(config, log)


# The files that take longest, in that order: one that started last would keep one core waiting.
LONGEST_FIRST = (
    *("test_xid_guest.py", "test_xid_kmsg.py"),
    *("test_mig_guest.py", "test_fleet.py", *OF_THE_BUILD, "test_cleanup.py", "test_aws_target.py"),
    *("test_package_snapshot.py", "test_lab_down.py", "test_overlay.py", "test_mig_launch.py"),
    *("test_telemetry_bundle.py", "test_signing_keys.py", "test_ec2.py", "test_foreign_packer.py"),
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order the tests by file: `--no-loadscope-reorder` hands them out as they are."""
    place = {name: number for number, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: place.get(item.path.name, len(place)))


def pytest_collection_finish() -> None:
    """As in tests/unit/conftest.py."""
    gc.freeze()


FIRST_PACKER, *OTHER_PACKERS = packers.usable() or (None,)


@pytest.fixture(
    params=[
        FIRST_PACKER,
        *(pytest.param(each, marks=pytest.mark.all) for each in OTHER_PACKERS or [None]),
    ],
    ids=str,
)
def packer(request: pytest.FixtureRequest) -> Packer:
    """The Packer that AMI Kiln uses; with --all each other one too."""
    if request.param is None:
        pytest.skip("KILN_SECOND_PACKER names no other Packer that has the amazon plugin")
    found: Packer = request.param
    return found


@dataclass(frozen=True)
class Guest:
    """A running instance and the key that opens it."""

    id: str
    address: str
    user: str
    key: Path

    @property
    def _link(self) -> Path:
        """The socket of the shared connection: another instance may get the same address."""
        name = f"{self.id} {self.user} {self.key}"
        return Path(SOCKETS.name, hashlib.sha256(name.encode()).hexdigest()[:16])

    def run(self, command: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
        """Run a shell command as the image's user.

        All commands share a connection: a login costs a guest more than most commands. It ends with
        the machine's sessions.
        """
        done = self._ssh(command, b"", timeout)
        return subprocess.CompletedProcess(
            done.args, done.returncode, done.stdout.decode(), done.stderr.decode()
        )

    def unpack(self, files: Mapping[str, tuple[bytes, int]]) -> None:
        """Write files as root: absolute path → content and mode."""
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as archive:
            for name, (content, mode) in files.items():
                entry = tarfile.TarInfo(name.lstrip("/"))
                entry.size, entry.mode = len(content), mode
                archive.addfile(entry, io.BytesIO(content))
        done = self._ssh("sudo tar -x -C / --no-same-owner", packed.getvalue(), 120)
        assert done.returncode == 0, done.stderr

    def _ssh(
        self, command: str, standard_input: bytes, timeout: float
    ) -> subprocess.CompletedProcess[bytes]:
        """Run it, again where there is no connection: an instance of an AMI with host keys in it
        gets new ones from cloud-init, and sshd starts anew, at a moment when it runs already. One
        that is running for EC2 may still be booting, and refuses."""
        ssh = [
            *("ssh", "-i", str(self.key), "-o", "BatchMode=yes", "-o", "LogLevel=ERROR"),
            *("-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null"),
            *("-o", "ControlMaster=auto", "-o", "ControlPersist=20"),
            *("-o", f"ControlPath={self._link}"),
            # Nobody says goodbye when a machine's network goes down under a connection.
            *("-o", "ConnectTimeout=10", "-o", "ServerAliveInterval=5"),
            *(f"{self.user}@{self.address}", command),
        ]
        deadline = time.monotonic() + _BOOT
        for attempt in itertools.count(1):
            done = subprocess.run(
                ssh, input=standard_input, capture_output=True, timeout=timeout, check=False
            )
            refused = b"refused" in done.stderr
            again = time.monotonic() < deadline if refused else attempt < 3
            if done.returncode != 255 or not again:
                break
            time.sleep(1 if attempt == 1 else 3)
        return done


def lab_of_the_tests() -> settings.Lab:
    """The lab of these tests, up or not; skips where there can be none."""
    if not cell.is_inside():
        pytest.skip(WHY_NO_CELL[0])
    return settings.current()


def plain_client(lab: settings.Lab, service: str, region: str = "us-east-1") -> Any:
    """A boto3 client: it calls the lab directly, and is not told of what it makes before all of
    EC2 knows it (lab/moto/ec2/consistency.py)."""
    client = boto3.client(
        service,
        endpoint_url=lab.endpoint,
        region_name=region,
        aws_access_key_id=session_token.KEY_ID,
        aws_secret_access_key=session_token.SECRET_KEY,
        aws_session_token=session_token.require(lab),
        # A busy machine answers late, and what is asked for again after a minute is done twice.
        config=Config(read_timeout=300),
    )
    for call in ("RunInstances", "CreateImage", "CopyImage"):
        client.meta.events.register(f"after-call.ec2.{call}", partial(_until_known, client))
    return client


def _until_known(client: Any, parsed: dict[str, Any], **_: Any) -> None:
    for instance in parsed.get("Instances", []):
        waiter = client.get_waiter("instance_exists")
        waiter.wait(InstanceIds=[instance["InstanceId"]], WaiterConfig={"Delay": 0.2})
    if image := parsed.get("ImageId"):
        waiter = client.get_waiter("image_exists")
        waiter.wait(ImageIds=[image], WaiterConfig={"Delay": 0.2})


@pytest.fixture(scope="session")
def lab() -> Iterator[settings.Lab]:
    """The lab, up and empty. Its log must hold no traceback when the tests are done."""
    found = lab_of_the_tests()
    # A run that was killed leaves its AMIs, and their names are taken.
    control.clean(found)
    control.up(found)
    # A lab that a client uses is not started anew by a build from another checkout (slim_checkout).
    plain_client(found, "ec2").create_key_pair(KeyName="the-tests")
    yield found
    control.down(found)
    log = found.log.read_text(errors="replace") if found.log.exists() else ""
    control.clean(found)
    if "Traceback" in log:  # said by `fail`, which shortens nothing
        pytest.fail(f"lab.log: {log[max(log.index('Traceback') - 500, 0) :][:5000]}", pytrace=False)


@pytest.fixture(autouse=True)
def _no_ordered_failure_left(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "lab" in request.fixturenames:
        control.call(settings.current(), "faults/clear")


@pytest.fixture(scope="session")
def client(lab: settings.Lab) -> Callable[[str], Any]:
    """A plain boto3 client by service name."""
    return partial(plain_client, lab)


@pytest.fixture(scope="session")
def ec2(client: Callable[[str], Any]) -> Any:
    """A plain boto3 EC2 client."""
    return client("ec2")


@pytest.fixture(scope="session")
def source_ami(client: Callable[[str], Any]) -> str:
    """The stand-in for today's Amazon Linux 2, looked up as anybody would."""
    name = "/aws/service/ami-amazon-linux-latest/amzn2-ami-kernel-5.10-hvm-x86_64-gp2"
    return str(client("ssm").get_parameter(Name=name)["Parameter"]["Value"])


def copied(ec2: Any, image: str, name: str) -> str:
    """An AMI of our own like this one, without an instance to make it from."""
    made = str(ec2.copy_image(SourceImageId=image, SourceRegion="us-east-1", Name=name)["ImageId"])
    ec2.get_waiter("image_available").wait(ImageIds=[made], WaiterConfig={"Delay": 1})
    return made


@pytest.fixture(scope="session")
def key(ec2: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A key pair: its name in EC2, its file here."""
    made = ec2.create_key_pair(KeyName=f"test-{time.time()}", KeyType="ed25519")
    path = tmp_path_factory.mktemp("key") / "key.pem"
    path.touch(mode=0o600)
    path.write_text(made["KeyMaterial"])
    return made["KeyName"], path


def import_key(client: Any, key: tuple[str, Path]) -> None:
    """Make the key pair known in a client's region."""
    public = ["ssh-keygen", "-y", "-f", str(key[1])]
    material = subprocess.run(public, capture_output=True, text=True, check=True).stdout
    client.import_key_pair(KeyName=key[0], PublicKeyMaterial=material)


Launch = Callable[..., Guest]


@contextlib.contextmanager
def launching(ec2: Any, key: tuple[str, Path], source_ami: str) -> Iterator[Launch]:
    """Launch instances and wait until they run; they are terminated when the block ends."""
    ids: list[str] = []

    def make(ami: str | None = None, *, user: str = "ec2-user", **more: Any) -> Guest:
        more.setdefault("InstanceType", "g4dn.xlarge")
        made = ec2.run_instances(
            ImageId=ami or source_ami, MinCount=1, MaxCount=1, KeyName=key[0], **more
        )
        instance_id = made["Instances"][0]["InstanceId"]
        ids.append(instance_id)
        return Guest(instance_id, wait_for(ec2, instance_id, "running"), user, key[1])

    yield make
    if ids:
        ec2.terminate_instances(InstanceIds=ids)
        for instance_id in ids:
            wait_for(ec2, instance_id, "terminated")


@pytest.fixture
def launch(ec2: Any, key: tuple[str, Path], source_ami: str) -> Iterator[Launch]:
    """Launch instances of the test's own; they are terminated after it."""
    with launching(ec2, key, source_ami) as make:
        yield make


def wait_for(ec2: Any, instance_id: str, state: str, timeout: float = 300) -> str:
    """Wait until an instance is in a state; its private address."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        found = ec2.describe_instances(InstanceIds=[instance_id])["Reservations"][0]["Instances"][0]
        if found["State"]["Name"] == state:
            return str(found.get("PrivateIpAddress", ""))
        # Each question costs the lab and the test 10 ms of CPU time.
        time.sleep(0.2)
    raise AssertionError(f"{instance_id} is {found['State']['Name']}, not {state}")


@pytest.fixture
def kiln(lab: settings.Lab, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run ./invoke as a user would, with a build folder of its own and no AWS credentials."""

    def run(*arguments: str, timeout: float = 600, **environment: str) -> Any:
        env = users_environment(tmp_path) | environment
        return commands.invoke(*arguments, timeout=timeout, env=env)

    return run


@dataclass(frozen=True)
class Finished:
    """A build that is over: what it printed, what was there before and after, its files."""

    done: subprocess.CompletedProcess[str]
    home: Path
    before: dict[str, set[str]]
    after: dict[str, set[str]]

    @property
    def folder(self) -> Path:
        (record,) = (self.home / "build" / AL2).glob("*/record.json")
        return record.parent

    @property
    def record(self) -> dict[str, Any]:
        return json.loads((self.folder / "record.json").read_text())


@pytest.fixture(scope="session")
def built(lab: Any, ec2: Any, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """One build of al2 by an odd caller: test_build.py looks at it, test_mutations.py breaks it."""
    bases.ensure("al2", "x86_64")  # whose packages come by the caller's proxy
    home = tmp_path_factory.mktemp("built")
    before = inventory(ec2)
    done = subprocess.run(
        [str(ROOT / "invoke"), "build", "--distro", "al2", "--driver", "510.47.03"],
        cwd=ROOT,
        env=users_environment(home) | surroundings.ODD,
        umask=0o077,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return Finished(done, home, before, inventory(ec2))
