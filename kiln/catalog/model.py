"""The content of the catalog, as data: catalog.json is this, docs/catalog.schema.json its schema.

Every text from AWS is a text: nothing here is trusted to be a name of a file or to be HTML.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from kiln.pipeline.record import Record

SCHEMA = 1

# Only the AMI's own tag, an available image and a whole move make an image verified.
Trust = Literal["verified", "not verified", "gone"]
# `unsigned`: the line names no key; `unknown`: nobody could ask (another region, no permission).
Signed = Literal["matches", "does not match", "unsigned", "unknown"]


@dataclass(frozen=True)
class ChannelInRegion:
    """The content of a channel in a region. `why_not` says why its AMI is not verified.

    Times are UTC in ISO 8601.
    """

    channel: str
    region: str
    ami_id: str
    ami_name: str | None
    trust: Trust
    why_not: str
    since: str
    drift: str
    parameter: str


@dataclass(frozen=True)
class ChannelMove:
    """A move of a channel in the home region, from the history of its parameter."""

    channel: str
    at: str
    by: str
    action: str
    ami_name: str
    image: str
    why: str


@dataclass(frozen=True)
class CheckCounts:
    """Numbers of an image's checks that passed, failed and were skipped, and the instance type."""

    passed: int
    failed: int
    skipped: int
    instance_type: str | None


@dataclass(frozen=True)
class CatalogdImage:
    """An image that a channel holds or has held. `key` names its files in the site.

    `trust` is of the AMI in the home region. `changes` counts the differences to the image before
    (`before`: its key) by severity; None where one of the two has no record here.
    """

    key: str
    ami_name: str
    images: dict[str, str]
    built: str
    trust: Trust
    why_not: str
    signed: Signed
    signed_why: str
    installed: dict[str, str | None]
    recipe: str
    recipe_digest: str
    git_commit: str
    checks: CheckCounts | None = None
    packages: int | None = None
    record: str | None = None
    sbom: str | None = None
    before: str | None = None
    changes: dict[str, int] | None = None


@dataclass(frozen=True)
class CatalogdLine:
    """A line. `in_matrix` is false for one that only its channels still know.

    `driver_ends` is the last day on which the driver's branch gets fixes.
    """

    line: str
    page: str
    in_matrix: bool
    recipe: str
    distro: str
    distro_name: str
    stack: str
    flavor: str
    arch: str
    driver: str | None
    kernel_module: str | None
    cuda: str | None
    driver_ends: str | None
    channels: tuple[ChannelInRegion, ...] = ()
    history: tuple[ChannelMove, ...] = ()
    images: tuple[CatalogdImage, ...] = ()


@dataclass(frozen=True)
class ServedType:
    """The lines that serve an instance type, best first: index in `lines`, number of warnings."""

    type: str
    gpus: str
    lines: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Catalog:
    """All of it. `place` says whose channels these are: an account of AWS, or a lab."""

    made: str
    place: str
    target: str
    region: str
    regions: tuple[str, ...]
    lines: tuple[CatalogdLine, ...]
    types: tuple[ServedType, ...] = ()
    schema: int = SCHEMA

    def to_dict(self) -> dict[str, Any]:
        """Return the catalog as plain data, `schema` first."""
        return {"schema": self.schema, **asdict(self)}


@dataclass(frozen=True)
class Gathered:
    """A catalog with the records that its pages are made from, by an image's key."""

    catalog: Catalog
    records: Mapping[str, Record] = field(default_factory=dict)


def catalog_json_schema() -> str:
    """Return the text of docs/catalog.schema.json."""
    from pydantic import TypeAdapter

    made: dict[str, Any] = TypeAdapter(Catalog).json_schema()
    made["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    made["title"] = "Catalog"
    return json.dumps(made, indent=2) + "\n"
