"""`./invoke test --kills`: ends a build all along its time and at every call to EC2 that matters.

Nothing may be left. SIGINT and SIGTERM clean up themselves, by one handler. What SIGKILL leaves,
the next build of the checkout removes.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from devel.testbed import (
    PRIVATE_KEY,
    Inventory,
    bare_checkout,
    inventory,
    processes_of,
    users_environment,
)
from kiln.base import needs
from kiln.base.errors import operation_failed
from kiln.base.tags import VERIFIED, read_verdict
from lab.base import settings
from lab.base.settings import LABS, Lab
from lab.daemon import cell, control

BUILD = ("build", "--distro", "al2", "--driver", "510.47.03", "--target", "lab")
# Seconds after which a build that was ended counts as hanging.
PATIENCE = 180.0
# Between calls: the local work of a build. They divide its time evenly.
_MOMENTS = 12
# Builds for a point: one may be faster than the one that was measured, or than a look at its calls.
_TRIES = 4
_SOFT = (signal.SIGINT, signal.SIGTERM)
Say = Callable[[str], None]


@dataclass(frozen=True)
class Point:
    """A moment of a build: a part of its time, or a step of what it asks EC2 for."""

    number: signal.Signals
    part: int = 0
    step: str = ""

    def __str__(self) -> str:
        return f"{self.number.name} at {self.step or f'{self.part}/{_MOMENTS} of the build'}"


def steps(calls: Sequence[str]) -> list[str]:
    """The calls that change something, and the first of each kind of question after each of them.

    A build asks some questions again and again until the answer is another one: how often depends
    on the machine's speed.
    """
    numbers: dict[str, int] = {}
    actions: set[str] = set()
    names = []
    last = "the beginning"
    for action in calls:
        if action.startswith(("Describe", "Get")):
            if action not in actions:
                names.append(f"{action} after {last}")
            actions.add(action)
            continue
        numbers[action] = numbers.get(action, 0) + 1
        last = f"{action} {numbers[action]}"
        actions = set()
        names.append(last)
    return names


def points(calls: Sequence[str]) -> list[Point]:
    """Each moment of a build that makes these calls, with SIGKILL and with SIGINT or SIGTERM."""
    moments = []
    for index, step in enumerate(dict.fromkeys(steps(calls))):
        moments += [Point(_SOFT[index % 2], step=step), Point(signal.SIGKILL, step=step)]
    for part in range(_MOMENTS):
        moments += [Point(_SOFT[part % 2], part=part), Point(signal.SIGKILL, part=part)]
    return moments


@dataclass(frozen=True)
class Build:
    """A build that runs, and the file that it writes to: a pipe that nobody reads would stop it."""

    process: subprocess.Popen[bytes]
    output: Path

    def text(self) -> str:
        """Return its output up to now."""
        return self.output.read_text(errors="replace")

    def goes_on(self) -> bool:
        """Return True while it runs."""
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
    # False: it was over before the moment to end it, after so many seconds.
    reached: bool = True
    seconds: float = 0.0


@dataclass(frozen=True)
class Testbed:
    """A lab of its own, and a checkout whose build is short."""

    lab: Lab
    ec2: Any
    checkout: Path
    folder: Path

    def start(self, home: Path) -> Build:
        """A build in a process group of its own, as in a user's terminal."""
        number, name = tempfile.mkstemp(prefix="output-", dir=home.parent)
        os.close(number)
        with Path(name).open("wb") as output:
            process = subprocess.Popen(
                [str(self.checkout / "invoke"), *BUILD],
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
        """List leftovers of a build: EC2, disk, processes. A judged AMI may stay."""
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
        """Return True if an AMI has a verdict and a local record agrees."""
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


@contextlib.contextmanager
def testbed(lab: Lab) -> Iterator[Testbed]:
    """A lab that is up, and a checkout with a short build; all of it is removed."""
    import boto3

    with tempfile.TemporaryDirectory(prefix="kiln-kills-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        control.up(lab)
        environment = control.environment(lab)
        ec2: Any = boto3.client(
            "ec2",
            region_name="us-east-1",
            endpoint_url=environment["AWS_ENDPOINT_URL"],
            aws_access_key_id=environment["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=environment["AWS_SECRET_ACCESS_KEY"],
            aws_session_token=environment["AWS_SESSION_TOKEN"],
        )
        # A lab in use is not started anew by a build from another checkout.
        ec2.create_key_pair(KeyName="in-use")
        try:
            yield Testbed(lab, ec2, bare_checkout(folder), folder)
        finally:
            control.clean(lab, force=True)


def kills(minutes: float, say: Say) -> dict[str, Any]:
    """End builds at as many points as the minutes allow: the points tried, those not, the leaks.

    The exit status is 1 if a build left anything. Raises KilnError where the lab cannot run.
    """
    needs.ensure("tests", install=True, say=say)
    cell.enter(start=True)
    until = time.monotonic() + 60 * minutes
    with contextlib.ExitStack() as stack:
        beds = [stack.enter_context(testbed(lab)) for lab in free_labs(os.cpu_count() or 1)]
        answer = _kill_in(beds, until, say)
    say(
        f"points {answer['tried']} / leaks {len(answer['leaks'])}"
        f" (NOT TRIED: {answer['not_tried']})"
    )
    return answer


def free_labs(count: int) -> list[Lab]:
    """Labs that are down and hold nothing, from the highest number on: these are removed again.

    Raises operation_failed if there are fewer.
    """
    root = settings.current().root
    labs = (Lab(index, root) for index in reversed(range(LABS)))
    down = (lab for lab in labs if not lab.state.exists() and control.status(lab) is None)
    if len(free := list(islice(down, count))) < count:
        raise operation_failed(f"{count} unused labs are needed", hint="./invoke lab.clean")
    return free


def _kill_in(beds: Sequence[Testbed], until: float, say: Say) -> dict[str, Any]:
    # All at once, as the builds that are ended run.
    with ThreadPoolExecutor(len(beds)) as pool:
        timings = list(pool.map(measured, beds))
    seconds, calls = max(seconds for seconds, _ in timings), timings[0][1]
    left = points(calls)
    random.shuffle(left)
    count, tried = len(left), 0
    leaks: list[dict[str, str]] = []
    lock = threading.Lock()

    def work(bed: Testbed) -> None:
        nonlocal tried
        while time.monotonic() <= until:
            with lock:
                if not left:
                    return
                point = left.pop()
            ended = _try(bed, point, seconds)
            if not ended.reached:
                say(f"NOT TRIED {point}: the build ended before it")
                continue
            if ended.left:
                say(f"LEAK {point}: {'; '.join(ended.left)}\n{ended.text}")
            with lock:
                tried += 1
                leaks.extend({"point": str(point), "left": name} for name in ended.left)

    with ThreadPoolExecutor(len(beds)) as pool:
        list(pool.map(work, beds))
    status = int(bool(leaks))
    return {"exit_status": status, "tried": tried, "not_tried": count - tried, "leaks": leaks}


def _try(bed: Testbed, point: Point, lasts: float) -> Ended:
    for _ in range(_TRIES):
        ended = kill(bed, point, lasts)
        if ended.reached:
            break
        lasts = min(lasts, ended.seconds)
    return ended


def kill(testbed: Testbed, point: Point, seconds: float) -> Ended:
    """End a build of so many seconds at a point; what is then left.

    What SIGKILL left is looked for after the next build.
    """
    home = testbed.home()
    before = inventory(testbed.ec2)
    control.call(testbed.lab, "faults/clear")
    build = testbed.start(home)
    began = time.monotonic()
    while build.goes_on():
        if point.step and point.step in steps(testbed.calls()):
            break
        if not point.step and time.monotonic() - began >= seconds * point.part / _MOMENTS:
            break
        # Each look is a signed request: more of them cost more than the build.
        time.sleep(0.02)
    reached = build.goes_on()
    if reached:
        build.signal(point.number)
    lasted = time.monotonic() - began
    ended = testbed.end(build)
    ended.reached, ended.seconds = reached, lasted
    if ended.status is None:
        ended.left.append("it did not end")
    if point.number is signal.SIGKILL or ended.status is None:
        if testbed.traces(home, before):
            ended.text += testbed.next_build(home)
    elif ended.status not in (0, 1, -signal.SIGINT, -signal.SIGTERM, 130, 143):
        ended.left.append(f"exit status {ended.status}")
    if "Traceback" in ended.text:
        ended.left.append("a traceback")
    ended.left += testbed.traces(home, before)
    testbed.forget_images(before)
    return ended


def measured(testbed: Testbed) -> tuple[float, list[str]]:
    """The seconds and the calls to EC2 of a build that nobody ends.

    Raises RuntimeError if it does not end well: then no kill would show anything.
    """
    home = testbed.home()
    before = inventory(testbed.ec2)
    control.call(testbed.lab, "faults/clear")
    began = time.monotonic()
    ended = testbed.end(testbed.start(home), patience=600)
    seconds, calls = time.monotonic() - began, testbed.calls()
    if ended.status != 0:
        raise RuntimeError(f"the build fails without a signal:\n{ended.text}")
    testbed.forget_images(before)
    return seconds, calls
