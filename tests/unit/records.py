"""A record and an AMI for tests, of which a test changes what it is about."""

from __future__ import annotations

from datetime import datetime, timezone
from functools import cache
from typing import Any

from kiln.base.paths import ROOT
from kiln.base.recipe import Recipe
from kiln.cloud.images import Image
from kiln.cloud.target import ParentAmi
from kiln.matrix import load
from kiln.pipeline.checks import Check
from kiln.pipeline.record import Checks, Record


@cache
def a_recipe() -> Recipe:
    """The matrix's first recipe."""
    return load.load_recipes(ROOT / "amis.yaml")[0]


def a_record(**more: Any) -> Record:
    """The record of a verified build in AWS; `more` replaces fields."""
    fields: dict[str, Any] = {
        "run_id": "20261121T000000Z-aaaa",
        "kind": "build",
        "status": "verified",
        "recipe": a_recipe(),
        "recipe_digest": "d" * 64,
        "target": "aws",
        "region": "eu-central-1",
        "source_ami": ParentAmi("ami-0a0e0000", "amzn2", "2026-11-01", "ssm:/aws/x"),
        "ami_id": "ami-0fade000",
        "verify_instance_type": "g4dn.xlarge",
        "packer": "Packer 1.6.6 (/usr/bin/packer)",
        "git_commit": "c0ffee0",
        "started": "2026-11-21T00:00:00Z",
        "finished": "2026-11-21T00:10:00Z",
        "folder": "/build/1",
        "seconds": {"packer build": 59.26, "checks": 9.0},
        "checks": checks(("test_cuda", "test_the_packages_are_held", "passed", "")),
        **more,
    }
    return Record(**fields)


def an_image(ami_id: str = "ami-00000001", **more: Any) -> Image:
    """An AMI as EC2 describes it; `more` replaces fields."""
    created = datetime(2026, 11, 1, tzinfo=timezone.utc)
    fields = {"name": "row", "state": "available", "created": created, "tags": {}, **more}
    return Image("us-east-1", ami_id, **fields)


def checks(*those: tuple[str, str, str, str]) -> Checks:
    """The checks of a record from (file, name, outcome, message)."""
    made = tuple(
        Check(name, file, outcome, 0.1, message)  # type: ignore[arg-type]
        for file, name, outcome, message in those
    )
    count = [sum(check.outcome == word for check in made) for word in OUTCOMES]
    return Checks(*count, made)


OUTCOMES = ("passed", "failed", "skipped")
