"""A catalog for tests: the matrix's lines, with channels and images made up by the test."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from functools import cache
from typing import Any

from kiln.base.paths import ROOT
from kiln.catalog.gather import changes_between, line_about, served_types
from kiln.catalog.model import (
    Catalog,
    CatalogdImage,
    CatalogdLine,
    ChannelInRegion,
    ChannelMove,
    CheckCounts,
    Gathered,
)
from kiln.facts import instance
from kiln.matrix.load import load_recipes
from kiln.pipeline.record import Record
from tests.unit import records

INFO = json.loads((ROOT / "tests/data/version-info.json").read_text())
EKS = "al2023/lts/eks/x86_64"
BASE = "al2023/lts/base/x86_64"
ARM = "al2023/lts/base/arm64"
LINES = (EKS, BASE, ARM, "al2/classic/base/x86_64")
HOME, OTHER = "us-east-1", "eu-west-1"
TYPES = ("g5.xlarge", "p5.48xlarge", "g5g.xlarge")
HOSTILE = "<script>document.title='owned'</script>"


@cache
def known_lines() -> tuple[CatalogdLine, ...]:
    """Some of the matrix's lines, without channels: all would only cost time."""
    return tuple(
        line_about(recipe.channel_line, recipe, {})
        for recipe in load_recipes()
        if recipe.channel_line in LINES
    )


@cache
def types() -> tuple[Any, ...]:
    recipes = [recipe for recipe in load_recipes() if recipe.channel_line in LINES]
    return served_types(recipes, [line.line for line in known_lines()], [*map(instance, TYPES)])


def catalog(lines: tuple[CatalogdLine, ...] | None = None, **more: Any) -> Catalog:
    """A catalog of an account, as of a day of 2026."""
    fields: dict[str, Any] = {
        "made": "2026-11-23T12:00:00Z",
        "place": "AWS, account 123456789012, us-east-1",
        "target": "aws",
        "region": HOME,
        "regions": (HOME, OTHER),
        "lines": known_lines() if lines is None else lines,
        "types": types(),
    }
    return Catalog(**{**fields, **more})


def image(number: int, **more: Any) -> CatalogdImage:
    """A verified image; the higher the number, the newer."""
    key = f"202611{number // 1000 + 1:02}T{number % 1000 // 60:02}{number % 60:02}00Z-aaaa"
    fields: dict[str, Any] = {
        "key": key,
        "ami_name": f"al2023-580.178.04-eks-{key}",
        "images": {HOME: f"ami-{number:017x}", OTHER: f"ami-e{number:016x}"},
        "built": f"2026-11-{number % 20 + 1:02}T00:00:00Z",
        "trust": "verified",
        "why_not": "",
        "signed": "unsigned",
        "signed_why": "the matrix names no key for this line",
        "installed": {"driver": "580.178.04", "kernel": "6.1.112", "cuda": "13.0.2"},
        "recipe": "al2023-580.178.04-eks",
        "recipe_digest": "d" * 64,
        "git_commit": "c0ffee0",
        "record": f"images/{key}.record.json",
        "sbom": f"images/{key}.sbom.json",
        "checks": CheckCounts(1, 0, 1, "g5.xlarge"),
        "packages": 5,
    }
    return CatalogdImage(**{**fields, **more})


def record(driver: str = "580.178.04", **more: Any) -> Record:
    """A record whose image has that driver, with a check that was skipped."""
    info = copy.deepcopy(INFO)
    info["components"]["nvidia-driver"]["version"] = driver
    if driver != "580.178.04":
        # Of the same first number: less grave.
        info["components"]["cuda"]["version"] = "13.0.1"
    checks = records.checks(
        ("test_cuda", "test_the_packages_are_held", "passed", ""),
        ("test_efa", "test_it_sends", "skipped", f"no EFA here {HOSTILE}"),
    )
    return records.a_record(versions=info, checks=checks, **more)


def published(count: int = 2, name: str | None = None, trust: str = "verified") -> Gathered:
    """The line EKS, whose newest image is in channel stable in two regions, and the one before in
    candidate; these two have a record."""
    images = [image(number) for number in range(count, 0, -1)]
    if name is not None:
        images[0] = replace(images[0], ami_name=name)
    why = "" if trust == "verified" else "nothing verified it"
    images[0] = replace(images[0], trust=trust, why_not=why)  # type: ignore[arg-type]
    known = {
        image.key: record("580.178.04" if at == 0 else "570.211.01")
        for at, image in enumerate(images[:2])
    }
    if len(images) > 1:
        changes = changes_between(known[images[1].key], known[images[0].key]) or []
        counts = {word: sum(c.severity == word for c in changes) for word in ("high", "low")}
        images[0] = replace(images[0], before=images[1].key, changes=counts)
    channels = tuple(
        ChannelInRegion(
            channel="stable",
            region=region,
            ami_id=images[0].images[region],
            ami_name=images[0].ami_name,
            trust=trust,  # type: ignore[arg-type]
            why_not=why,
            since="2026-11-22T00:00:00Z",
            drift="",
            parameter=f"/ami-kiln/{EKS}/stable/image_id",
        )
        for region in (HOME, OTHER)
    )
    if len(images) > 1:
        before = replace(channels[0], channel="candidate", ami_id=images[1].images[HOME])
        parameter = channels[0].parameter.replace("stable", "candidate")
        channels += (replace(before, ami_name=images[1].ami_name, parameter=parameter),)
    moves = tuple(
        ChannelMove(
            "stable", image.built, "arn:aws:iam::123456789012:role/ci", "publish", image.ami_name,
            image.key, "a <b>reason</b>",
        )
        for image in images[:3]
    )  # fmt: skip
    lines = tuple(
        replace(line, channels=channels, images=tuple(images), history=moves)
        if line.line == EKS
        else line
        for line in known_lines()
    )
    return Gathered(catalog(lines), known)
