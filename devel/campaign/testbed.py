"""A lab for the campaign, builds in it, and what a build left anywhere."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import yaml

from kiln import components
from kiln.base import plain_yaml
from kiln.base.paths import ROOT
from kiln.base.tags import VERIFIED
from kiln.base.verdict_tag import read_verdict
from lab import control
from lab.settings import LABS, Lab

BUILD = ("build", "--distro", "al2", "--driver", "510.47.03", "--target", "lab")
# The head and the first line of a key; hygiene.sh, which looks for keys, has only the head.
PRIVATE_KEY = re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----\n[A-Za-z0-9+/=]{40}")
# Seconds after which a build that a fault has hit counts as hanging.
PATIENCE = 180.0

Inventory = dict[str, set[str]]
Place = TypeVar("Place")


def users_environment(home: Path) -> dict[str, str]:
    """A user's environment with a home and a build folder of its own, and no AWS credentials."""
    clean = {name: text for name, text in os.environ.items() if not name.startswith("AWS_")}
    return {**clean, "KILN_BUILD_DIR": str(home / "build"), "HOME": str(home)}


def slim_matrix(folder: Path, *keep: str) -> Path:
    """A file for KILN_MATRIX: the same rows, but of the components only those that must be.

    A build of it takes half the time: for tests of what is around a bake, not of what is in it.
    `keep` are the components that stay all the same.
    """
    optional = {component.name for component in components.everything() if component.optional}
    rows = plain_yaml.read_plain(ROOT / "amis.yaml")
    rows["defaults"]["without"] = sorted(optional - set(keep))
    path = folder / "amis.yaml"
    path.write_text(yaml.safe_dump(rows, sort_keys=False))
    return path


# Every character that Packer, ssh, bash or pytest reads as syntax of its own.
ODD_NAME = """é "q" 's $HOME {{x}} [1] ${x} *%s"""


def slim_checkout(folder: Path, *keep: str, name: str = ODD_NAME) -> Path:
    """A copy of this checkout with `slim_matrix`, for tests that change its files."""
    copy = folder / name
    # What git ignores is not part of it, and changes while it is copied: other tests run beside.
    # Compiled files are not made again; those that are being written have a number behind.
    ignored = {line.strip("/\n") for line in (ROOT / ".gitignore").open()}
    out = (".git", "*.pyc.*", *(ignored - {"__pycache__", "*.pyc"}))
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(*out), symlinks=True)
    (copy / ".venv").symlink_to(ROOT / ".venv")
    slim_matrix(copy, *keep)
    return copy


def bare_checkout(
    folder: Path,
    *keep: str,
    baked: Collection[str] = (),
    checked: Collection[str] = (),
    name: str = ODD_NAME,
) -> Path:
    """A slim checkout whose provisioners and checks do nothing: half of a slim build's CPU time.

    For what is around a bake and a verification: launches, waits, the clean-up. The provisioners of
    the components `baked`, and the checks of the components `checked`, are as they are.
    """
    copy = slim_checkout(folder, *keep, name=name)
    for script in (copy / "provisioners").glob("*.sh"):
        if script.stem not in baked:
            header = [line for line in script.read_text().splitlines(True) if line.startswith("#")]
            script.write_text("".join([*header, "sleep 0.2\n"]))
    for checks in (copy / "tests" / "ami").glob("test_*.py"):
        if checks.stem.removeprefix("test_").replace("_", "-") not in checked:
            checks.write_text("def test_nothing() -> None:\n    pass\n")
    return copy


def inventory(ec2: Any) -> Inventory:
    """What there is in EC2, by kind: what a run leaves is what is new in it."""
    pages = ec2.describe_instances()["Reservations"]
    instances = [instance for page in pages for instance in page["Instances"]]
    return {
        "instances": {
            instance["InstanceId"]
            for instance in instances
            if instance["State"]["Name"] != "terminated"
        },
        "key pairs": {pair["KeyName"] for pair in ec2.describe_key_pairs()["KeyPairs"]},
        "security groups": {
            group["GroupId"] for group in ec2.describe_security_groups()["SecurityGroups"]
        },
        "volumes": {volume["VolumeId"] for volume in ec2.describe_volumes()["Volumes"]},
        "amis": {image["ImageId"] for image in ec2.describe_images(Owners=["self"])["Images"]},
        "snapshots": {
            snapshot["SnapshotId"]
            for snapshot in ec2.describe_snapshots(OwnerIds=["self"])["Snapshots"]
        },
    }


@dataclass(frozen=True)
class Build:
    """A build that runs, and the file that it writes to: a pipe that nobody reads would stop it."""

    process: subprocess.Popen[bytes]
    output: Path

    def text(self) -> str:
        """What it has said so far."""
        return self.output.read_text(errors="replace")

    def goes_on(self) -> bool:
        """Whether it has not ended."""
        return self.process.poll() is None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to it and its children, as a terminal does."""
        os.killpg(self.process.pid, number)


@dataclass
class Ended:
    """A build that is over: exit status (None: it hung and was killed), output, what it left."""

    status: int | None
    text: str
    left: list[str] = field(default_factory=list)
    # False: it was over before the moment of the attack, after so many seconds.
    reached: bool = True
    seconds: float = 0.0


@dataclass(frozen=True)
class Testbed:
    """A lab that only the campaign uses, and a checkout whose build is short."""

    lab: Lab
    ec2: Any
    checkout: Path
    folder: Path

    def start(self, home: Path, *more: str) -> Build:
        """A build in a process group of its own, as in a user's terminal."""
        number, name = tempfile.mkstemp(prefix="output-", dir=home.parent)
        os.close(number)
        with Path(name).open("wb") as output:
            process = subprocess.Popen(
                [str(self.checkout / "invoke"), *BUILD, *more],
                cwd=self.checkout,
                env=users_environment(home) | {"KILN_LAB_INDEX": str(self.lab.index)},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return Build(process, Path(name))

    def end(self, build: Build, patience: float = PATIENCE) -> Ended:
        """Wait for a build; one that hangs is killed."""
        try:
            build.process.wait(patience)
        except subprocess.TimeoutExpired:
            build.signal(signal.SIGKILL)
            build.process.wait()
            return Ended(None, build.text())
        return Ended(build.process.returncode, build.text())

    def home(self) -> Path:
        """A fresh home for a build."""
        return Path(tempfile.mkdtemp(dir=self.folder))

    def next_build(self, home: Path) -> str:
        """A further build of the same checkout, which ends at its launch; its output."""
        control.call(self.lab, "faults/clear")
        control.order_fault(self.lab, action="RunInstances", code="VcpuLimitExceeded")
        ended = self.end(self.start(home))
        control.call(self.lab, "faults/clear")
        return ended.text

    def calls(self) -> list[str]:
        """The EC2 actions that were asked for since the last `faults/clear`, in order."""
        return list(control.call(self.lab, "status")["calls"])

    def traces(self, home: Path, before: Inventory) -> list[str]:
        """What a build left: in EC2, on the disk and among the processes. A judged AMI may stay."""
        now = inventory(self.ec2)
        left = [
            f"{kind}: {name}"
            for kind, names in now.items()
            if kind not in ("amis", "snapshots")
            for name in sorted(names - before[kind])
        ]
        left += [
            f"AMI {ami}"
            for ami in sorted(now["amis"] - before["amis"])
            if not self._good(ami, home)
        ]
        for path in home.rglob("*"):
            with contextlib.suppress(OSError):
                if path.is_file() and PRIVATE_KEY.search(path.read_bytes()):
                    left.append(f"private key {path}")
        for run in {path.name for path in home.glob("build/*/*") if path.is_dir()}:
            if Path(f"/tmp/kiln-{run}").exists():  # noqa: S108
                left.append(f"folder /tmp/kiln-{run}")
            left += [f"process {line}" for line in processes_of(run)]
        return left

    def forget_images(self, before: Inventory) -> None:
        """Deregister the AMIs that are new, with their snapshots."""
        now = inventory(self.ec2)
        for ami in now["amis"] - before["amis"]:
            self.ec2.deregister_image(ImageId=ami)
        for snapshot in now["snapshots"] - before["snapshots"]:
            with contextlib.suppress(self.ec2.exceptions.ClientError):
                self.ec2.delete_snapshot(SnapshotId=snapshot)

    def _good(self, ami: str, home: Path) -> bool:
        """Whether an AMI has a verdict, and a record of this checkout that says the same."""
        tags = {
            tag["Key"]: tag["Value"]
            for tag in self.ec2.describe_images(ImageIds=[ami])["Images"][0].get("Tags", [])
        }
        verdict = read_verdict(tags.get(VERIFIED))
        for path in home.glob("build/*/*/record.json"):
            record = json.loads(path.read_text())
            if record["ami_id"] == ami:
                return verdict is not None and record["status"] == verdict.status
        return False


def processes_of(run_id: str) -> list[str]:
    """The command lines of what a run has started and not ended: Packer, checks, SSH."""
    processes = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"KILN_RUN_ID={run_id}".encode() in (process / "environ").read_bytes():
                processes.append((process / "cmdline").read_bytes().decode(errors="replace"))
    return processes


@contextlib.contextmanager
def testbed(lab: Lab) -> Iterator[Testbed]:
    """A lab of the campaign's, up, and a checkout with a short build; all of it is removed."""
    import boto3

    with tempfile.TemporaryDirectory(prefix="kiln-campaign-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        control.clean(lab, force=True)
        control.up(lab)
        environment = control.environment(lab)
        ec2: Any = boto3.client(
            "ec2",
            region_name="us-east-1",
            endpoint_url=environment["AWS_ENDPOINT_URL"],
            aws_access_key_id=environment["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=environment["AWS_SECRET_ACCESS_KEY"],
        )
        # A lab in use is not started anew by a build from another checkout.
        ec2.create_key_pair(KeyName="the-campaign")
        try:
            yield Testbed(lab, ec2, bare_checkout(folder), folder)
        finally:
            control.clean(lab, force=True)


@contextlib.contextmanager
def testbeds(lab: Lab, count: int) -> Iterator[list[Testbed]]:
    """Several testbeds; the first one's lab is `lab`, the others have the numbers after it."""
    with contextlib.ExitStack() as stack:
        labs = [replace(lab, index=(lab.index + number) % LABS) for number in range(count)]
        yield [stack.enter_context(testbed(lab)) for lab in labs]


def each(
    places: Sequence[Place],
    cases: Iterable[str],
    until: float,
    attempt: Callable[[Place, str], None],
) -> None:
    """Try the cases, on each testbed one at a time, until they are done or it is too late.

    Raises the first exception of an attempt, when the other places are done with theirs.
    """
    left = iter(list(cases))
    lock = threading.Lock()

    def work(place: Place) -> None:
        while time.monotonic() <= until:
            with lock:
                case = next(left, None)
            if case is None:
                return
            attempt(place, case)

    with ThreadPoolExecutor(len(places)) as pool:
        for done in [pool.submit(work, place) for place in places]:
            done.result()


def spread(count: int, seed: float) -> list[int]:
    """All numbers below `count`, so that any beginning of the list is spread evenly over them."""
    step = (5**0.5 - 1) / 2
    order: dict[int, None] = {}
    for turn in range(20 * count):
        order.setdefault(int((seed + turn * step) % 1 * count), None)
    return [*order, *(number for number in range(count) if number not in order)]


def deadline(minutes: float) -> float:
    """The monotonic time at which a part of the campaign takes no further case."""
    return time.monotonic() + 60 * minutes
