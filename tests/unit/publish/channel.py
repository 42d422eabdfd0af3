"""How tests publish, promote and roll back, and what a consumer then gets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from kiln.cloud.runs import Run
from kiln.cloud.target import Target
from kiln.matrix import load
from kiln.matrix.model import Publish
from kiln.pipeline.record import write_record
from kiln.pipeline.records import all_of
from kiln.publish.lines import Line
from kiln.publish.promote import Moves, Promotion, promote_line, roll_back
from kiln.publish.publish import publish_row

HOME, OTHER = "us-east-1", "eu-west-1"
AWS = Target("a test", HOME, account="123456789012")
RECIPE = load.load_recipes()[0]
LINE = "al2/classic/base/x86_64"
AL2 = "/aws/service/ami-amazon-linux-latest/amzn2-ami-kernel-5.10-hvm-x86_64-gp2"

# Returns a boto3 client of the lab: a service, a region.
Client = Callable[..., Any]
# Makes a verified AMI of the row with its record; its id.
Bake = Callable[..., str]


def versions_of(driver: str, kernel: str = "5.10.227") -> dict[str, Any]:
    return {
        "packages": [],
        "kernel": {"boots": kernel},
        "components": {"nvidia-driver": {"version": driver}, "cuda": {"version": "11.6.2"}},
    }


def verified_again(ami_id: str, folder: Path) -> None:
    """`./invoke verify --ami` of an AMI that `bake` has made, some days later."""
    (build,) = [kept for kept in all_of(RECIPE.name) if kept.ami_id == ami_id]
    run_id = "20261120T000000Z-bbbb"
    run = Run(run_id, RECIPE.name, folder / "build" / RECIPE.name / run_id)
    run.folder.mkdir()
    write_record(run, replace(build, run_id=run_id, kind="verify"))


def a_line(settings: Publish | None = None) -> Line:
    return Line(RECIPE, settings or Publish())


def published(*regions: str, settings: Publish | None = None, **more: Any) -> Moves:
    chosen = (settings or Publish()).model_copy(update={"regions": regions})
    return publish_row(a_line(chosen), AWS, **{"say": lambda text: None, **more})


def promoted(to: str, settings: Publish | None = None, **more: Any) -> Promotion:
    return promote_line(a_line(settings), to, AWS, **{"say": lambda text: None, **more})


def back(channel: str, settings: Publish | None = None, **more: Any) -> str:
    options: dict[str, Any] = {"say": lambda text: None, **more}
    return roll_back(a_line(settings), channel, AWS, **options).release.images[HOME]


def resolved(client: Client, channel: str, region: str = HOME) -> str:
    """What a consumer gets."""
    name = f"/ami-kiln/{LINE}/{channel}/image_id"
    return str(client("ssm", region).get_parameter(Name=name)["Parameter"]["Value"])


def described(client: Client, ami_id: str, region: str = HOME) -> Any:
    return client("ec2", region).describe_images(ImageIds=[ami_id])["Images"][0]
