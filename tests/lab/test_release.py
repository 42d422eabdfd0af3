"""A built AMI is published, launched in another region as its channel holds it, and kept."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from conftest import AL2, Finished, import_key, launching, plain_client

from lab.base.settings import Lab

LINE = "al2/classic/base/x86_64"
THERE = "eu-west-1"
ASKS = "--query-gpu=driver_version --format=csv"


def test_release_reaches_its_consumers_and_is_not_retired(
    built: Finished, kiln: Callable[..., Any], lab: Lab, key: tuple[str, Path]
) -> None:
    def invoke(*arguments: str) -> Any:
        home = str(built.home / "build")
        done = kiln(*arguments, "--target", "lab", "--json", KILN_BUILD_DIR=home)
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout)

    invoke("publish", AL2, "--regions", THERE)
    invoke("promote", LINE, "candidate")
    regions = ("--regions", f"us-east-1,{THERE}")
    shown = invoke("channels", *regions)
    held = {(each["channel"], each["region"]): each["ami_id"] for each in shown}
    assert held["nightly", "us-east-1"] == built.record["ami_id"]
    copy = held["nightly", THERE]
    assert held["candidate", THERE] == copy != built.record["ami_id"]
    name = f"/ami-kiln/{LINE}/candidate/image_id"
    there = plain_client(lab, "ec2", THERE)
    import_key(there, key)
    with launching(there, key, f"resolve:ssm:{name}") as launch:
        guest = launch()
        assert "510.47.03" in guest.run(f"nvidia-smi {ASKS}").stdout
    kept = invoke("retire", "--apply", *regions)
    assert there.describe_images(ImageIds=[copy])["Images"][0]["State"] == "available"
    assert kept["would"] == []
