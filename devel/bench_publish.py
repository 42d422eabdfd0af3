"""`./invoke bench --what publish`: seconds and API calls of the publishing tasks, on the lab's API
without guests, in a process of its own."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from devel import bench_publish_wide
from devel.figures import Figure
from kiln.base.errors import operation_failed
from kiln.base.paths import ROOT
from kiln.base.recipe import Recipe
from kiln.base.tags import INPUT_DIGEST, RECIPE, RECIPE_DIGEST, RUN_ID, VERIFIED
from kiln.cloud import aws
from kiln.cloud.aws_target import AwsTarget
from kiln.cloud.runs import Run
from kiln.matrix import load
from kiln.matrix.publishing import Publish
from kiln.pipeline import plan as planning
from kiln.pipeline.record import Record, write_record
from kiln.publish.night_plan import plan_night
from kiln.publish.overview import channel_rows
from kiln.publish.promote import roll_back
from kiln.publish.publish import publish_row

HOME = "us-east-1"
# As many as AWS enables in an account by default, the first one bakes.
REGIONS = [
    "us-east-1",
    "us-east-2",
    "us-west-1",
    "us-west-2",
    "ca-central-1",
    "sa-east-1",
    "eu-west-1",
    "eu-west-2",
    "eu-west-3",
    "eu-central-1",
    "eu-north-1",
    "ap-south-1",
    "ap-southeast-1",
    "ap-southeast-2",
    "ap-northeast-1",
    "ap-northeast-2",
    "ap-northeast-3",
]
_AL2 = "/aws/service/ami-amazon-linux-latest/amzn2-ami-kernel-5.10-hvm-x86_64-gp2"


def publish_figures() -> list[Figure]:
    """What was measured; the notes have the API calls."""
    return [Figure(*measured) for measured in _measured()]


def _measured() -> Iterator[tuple[str, float, str, float | None, str]]:
    with tempfile.TemporaryDirectory() as folder, _api(Path(folder)) as target:
        rows = load.load_recipes()
        amis = _Amis(target, Path(folder) / "build")
        digests = {
            row.name: planning.plan_build(row, target, planning.Options()).input_digest
            for row in rows
        }
        for row in rows:
            amis.make(row, digests[row.name])
            _published(row, (), target)
        settings = {row.name: Publish() for row in rows}
        seconds, calls = _timed(lambda: plan_night(rows, settings, target))
        yield f"a night with nothing to do, {len(rows)} rows", seconds, "s", 5.0, _calls(calls)
        _, fewer = _timed(lambda: plan_night(rows[:7], settings, target))
        per_row = (sum(calls.values()) - sum(fewer.values())) / (len(rows) - 7)
        yield "API calls per row of a night's plan", per_row, "calls", None, ""

        row = rows[0]
        seconds, calls = _timed(lambda: _published(row, REGIONS[:4], target))
        yield (
            "publish of one image to 3 more regions, its copies included",
            seconds,
            "s",
            None,
            (_calls(calls)),
        )
        seconds, calls = _timed(lambda: _published(row, REGIONS[:4], target))
        yield "the same with the copies there", seconds, "s", 3.0, _calls(calls)
        _published(row, REGIONS, target)
        amis.make(row, digests[row.name])
        _published(row, REGIONS, target)
        seconds, calls = _timed(lambda: _rolled_back(row, target))
        yield "rollback of one line in 17 regions", seconds, "s", 3.0, _calls(calls)
        yield "API calls per region of a rollback", sum(calls.values()) / 17, "calls", None, ""
        seconds, calls = _timed(lambda: channel_rows(target, REGIONS, {}))
        yield f"channels of {len(rows)} lines, 17 regions", seconds, "s", 5.0, _calls(calls)
        yield from bench_publish_wide.wide_figures(rows, REGIONS, target, amis.make, _timed)


@contextmanager
def _api(folder: Path) -> Iterator[AwsTarget]:
    """The lab's API without guests, and a target that leads there."""
    before = dict(os.environ)
    process = subprocess.Popen(
        [sys.executable, "-m", "devel.lab_api", str(folder)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=(folder / "log").open("w"),
        text=True,
    )
    try:
        stdout: Any = process.stdout
        ready, _, _ = select.select([stdout], [], [], 120)
        port = stdout.readline().strip() if ready else ""
        if not port:
            raise operation_failed(f"the lab's API did not start: {folder / 'log'}")
        os.environ |= {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
            "AWS_ACCESS_KEY_ID": "KILN",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "KILN_BUILD_DIR": str(folder / "build"),
        }
        yield AwsTarget("a bench", HOME, account="123456789012")
    finally:
        os.environ.clear()
        os.environ.update(before)
        process.kill()
        process.wait()


class _Amis:
    """Makes AMIs of an instance, with the tags and the record of a verified build."""

    def __init__(self, target: AwsTarget, build: Path) -> None:
        self._target, self._build, self._made = target, build, 0
        parent = aws.ssm(target).get_parameter(Name=_AL2)["Parameter"]["Value"]
        launched: Any = aws.ec2(target).run_instances(
            ImageId=parent, InstanceType="t3.micro", MinCount=1, MaxCount=1
        )
        self._instance = launched["Instances"][0]["InstanceId"]
        aws.ec2(target).get_waiter("instance_running").wait(
            InstanceIds=[self._instance], WaiterConfig={"Delay": 1}
        )

    def make(self, row: Recipe, input_digest: str) -> str:
        """An AMI of a row, with its record; its id."""
        self._made += 1
        run_id = f"20261101T{self._made:06}Z-aaaa"
        ec2 = aws.ec2(self._target)
        ami_id = ec2.create_image(InstanceId=self._instance, Name=f"{row.name}-{run_id}")["ImageId"]
        ec2.get_waiter("image_available").wait(ImageIds=[ami_id], WaiterConfig={"Delay": 1})
        tags = {
            RECIPE: row.name,
            RECIPE_DIGEST: "d" * 64,
            INPUT_DIGEST: input_digest,
            RUN_ID: run_id,
            VERIFIED: bench_publish_wide.VERDICT,
        }
        ec2.create_tags(
            Resources=[ami_id], Tags=[{"Key": key, "Value": value} for key, value in tags.items()]
        )
        folder = self._build / row.name / run_id
        folder.mkdir(parents=True)
        record = Record(
            run_id=run_id,
            kind="build",
            status="verified",
            recipe=row.as_json(),
            target="aws",
            region=HOME,
            started="2026-11-01T00:00:00Z",
            folder=str(folder),
            recipe_digest="d" * 64,
            versions={"packages": []},
            ami_id=ami_id,
        )
        write_record(Run(run_id, row.name, folder), record)
        return str(ami_id)


def _published(row: Recipe, regions: Sequence[str], target: AwsTarget) -> None:
    settings = Publish(regions=tuple(regions))
    publish_row(
        row, settings, target, ami_id=None, channel="nightly", why="", say=lambda text: None
    )


def _rolled_back(row: Recipe, target: AwsTarget) -> None:
    roll_back(
        row.channel_line, "nightly", Publish(), target, to=None, why="", say=lambda text: None
    )


def _timed(body: Callable[[], Any]) -> tuple[float, Counter[str]]:
    """Seconds that `body` takes, and the API calls that it makes, by name."""
    from botocore.client import BaseClient

    calls: Counter[str] = Counter()
    real = BaseClient._make_api_call  # type: ignore[attr-defined]

    def counted(self: Any, operation: str, parameters: Any) -> Any:
        calls[operation] += 1
        return real(self, operation, parameters)

    BaseClient._make_api_call = counted  # type: ignore[attr-defined]
    try:
        started = time.monotonic()
        body()
        return time.monotonic() - started, calls
    finally:
        BaseClient._make_api_call = real  # type: ignore[attr-defined]


def _calls(calls: Counter[str]) -> str:
    most = ", ".join(f"{number} {name}" for name, number in calls.most_common(3))
    return f"{sum(calls.values())} API calls: {most}"
