"""The catalog of what was published, promoted and rolled back; its place in S3."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kiln.catalog.gather import gather_catalog
from kiln.catalog.model import CatalogdLine, Gathered
from kiln.catalog.site import MANIFEST, publish_site, site_files, write_site
from kiln.matrix.load import load_recipes
from kiln.matrix.model import Publish
from tests.unit import commands
from tests.unit.publish.channel import (
    AWS,
    HOME,
    LINE,
    OTHER,
    RECIPE,
    Bake,
    back,
    promoted,
    published,
    resolved,
    versions_of,
)
from tests.unit.publish.test_provenance import key_file

pytestmark = pytest.mark.slow


def gathered(settings: Publish | None = None) -> Gathered:
    """The catalog of this line, and of one that the matrix has before it."""
    before = next(recipe for recipe in load_recipes() if recipe.channel_line != LINE)
    known = {LINE: settings or Publish()}
    return gather_catalog(AWS, [before, RECIPE], known, [OTHER], pytest.fail)


def the_line(settings: Publish | None = None) -> CatalogdLine:
    return next(line for line in gathered(settings).catalog.lines if line.line == LINE)


def test_line_has_its_channels_images_and_moves(bake: Bake) -> None:
    first, second = (
        bake(1),
        bake(2, versions=versions_of("525.85.12")),
    )
    published(OTHER, ami_id=first)
    promoted("candidate")
    published(OTHER, ami_id=second)
    line = gathered().catalog.lines[0]
    assert line == the_line(), "what can be had stands first"
    held = {(channel.channel, channel.region): channel for channel in line.channels}
    assert held["nightly", HOME].ami_id == second and held["candidate", HOME].ami_id == first
    assert held["nightly", OTHER].ami_id != second and len(held) == 4
    assert {channel.trust for channel in line.channels} == {"verified"}
    newest, oldest = line.images
    assert (newest.images[HOME], newest.before) == (second, oldest.key)
    assert newest.changes == {"high": 1, "medium": 0, "low": 0}, "a driver of another branch"
    # Of moves of one second, those of a channel are in order.
    assert [move.image for move in line.history if move.channel == "nightly"] == [
        newest.key, oldest.key,
    ]  # fmt: skip
    assert sorted((move.channel, move.action) for move in line.history) == [
        ("candidate", "promote"), ("nightly", "publish"), ("nightly", "publish"),
    ]  # fmt: skip
    back("nightly")
    assert (
        next(entry for entry in the_line().history if entry.channel == "nightly").action
        == "rollback"
    )


def test_only_the_amis_tag_verifies(client: Callable[..., Any], bake: Bake) -> None:
    ami_id = bake(1)
    published(OTHER, ami_id=ami_id)
    tags = [{"Key": "kiln:verified", "Value": "fail 2026-11-02T00:00:00Z c0ffee0"}]
    client("ec2").create_tags(Resources=[ami_id], Tags=tags)
    line = the_line()
    trust = {channel.region: channel.trust for channel in line.channels}
    assert trust == {HOME: "not verified", OTHER: "verified"}
    assert line.images[0].trust == "not verified"
    assert "fail 2026-11-02" in line.images[0].why_not
    copy = resolved(client, "nightly", OTHER)
    client("ec2", OTHER).disable_image_deregistration_protection(ImageId=copy)
    client("ec2", OTHER).deregister_image(ImageId=copy)
    assert {channel.trust for channel in the_line().channels} == {"not verified", "gone"}
    client("ec2").delete_tags(Resources=[ami_id], Tags=[{"Key": "kiln:verified"}])
    assert (the_line().images[0].trust, the_line().images[0].why_not) == (
        "not verified", "nothing verified it",
    )  # fmt: skip


def test_signed_image_matches_until_changed(
    client: Callable[..., Any], bake: Bake, tmp_path: Path
) -> None:
    settings = Publish.model_validate({"sign": {"key_file": str(key_file(tmp_path))}})
    ami_id = bake(1)
    published(settings=settings, ami_id=ami_id)
    assert the_line(settings).images[0].signed == "matches"
    assert the_line().images[0].signed == "unsigned"
    tags = [{"Key": "kiln:recipe-digest", "Value": "e" * 64}]
    client("ec2").create_tags(Resources=[ami_id], Tags=tags)
    image = the_line(settings).images[0]
    assert image.signed == "does not match" and "kiln:recipe-digest" in image.signed_why
    published(settings=settings, ami_id=bake(2))
    signed = [image.signed for image in the_line(settings).images]
    assert signed == ["matches", "unknown"], "only what channels hold is asked about"


def test_site_in_s3_replaces_only_the_former_site(
    client: Callable[..., Any], bake: Bake, tmp_path: Path
) -> None:
    bucket = f"catalog-{tmp_path.name}".replace("_", "-").lower()[:60] + "0"
    s3 = client("s3")
    s3.create_bucket(Bucket=bucket)
    s3.put_object(Bucket=bucket, Key="site/thesis.odt", Body=b"years of work")
    s3.put_object(Bucket=bucket, Key=f"site/{MANIFEST}", Body=b'["thesis.odt"]')
    published(ami_id=bake(1))
    site, messages = tmp_path / "site", []
    write_site(site_files(gathered(), pytest.fail), site)
    publish_site(site, f"s3://{bucket}/site", AWS, messages.append)
    there = {stored["Key"] for stored in s3.list_objects_v2(Bucket=bucket)["Contents"]}
    files = {f"site/{path.relative_to(site)}" for path in site.rglob("*") if path.is_file()}
    assert there == files | {"site/thesis.odt"}
    page = s3.get_object(Bucket=bucket, Key="site/index.html")
    assert page["ContentType"] == "text/html; charset=utf-8"
    assert json.loads(s3.get_object(Bucket=bucket, Key="site/catalog.json")["Body"].read())
    # A line goes, with its pages.
    empty = gathered()
    empty = replace(empty, catalog=replace(empty.catalog, lines=()))
    write_site(site_files(empty, pytest.fail), site)
    publish_site(site, f"s3://{bucket}/site/", AWS, messages.append)
    there = {stored["Key"] for stored in s3.list_objects_v2(Bucket=bucket)["Contents"]}
    assert "site/thesis.odt" in there
    assert not any(key.startswith(("site/lines/", "site/images/")) for key in there)
    assert "of the site before removed" in messages[1]


def test_nightly_finish_renews_the_catalog(
    client: Callable[..., Any], bake: Bake, tmp_path: Path
) -> None:
    bucket = f"night-{tmp_path.name}".replace("_", "-").lower()[:60] + "0"
    client("s3").create_bucket(Bucket=bucket)
    ami_id = bake(1)
    published(ami_id=ami_id)
    flags = ["--name", RECIPE.name, "--target", "aws", "--region", HOME, "--out", str(tmp_path)]
    done = commands.invoke("nightly.finish", *flags, "--catalog", f"s3://{bucket}/catalog")
    assert f"files are at s3://{bucket}/catalog/" in done.stderr, done.stderr
    found = client("s3").get_object(Bucket=bucket, Key="catalog/catalog.json")
    lines = json.loads(found["Body"].read())["lines"]
    assert {channel["ami_id"] for line in lines for channel in line["channels"]} == {ami_id}
