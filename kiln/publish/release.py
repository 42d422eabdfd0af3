"""A release: what a channel holds, as the JSON parameter beside the AMI's id says it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from kiln.base import vocabulary
from kiln.base.errors import KilnError
from kiln.image.version_info import read_version_info

SCHEMA = 1
Action = Literal["publish", "promote", "rollback"]


@dataclass(frozen=True)
class Moved:
    """How a channel came to a release. Times are UTC in ISO 8601; `by` is an ARN."""

    at: str
    by: str
    action: Action
    why: str = ""


@dataclass(frozen=True)
class Installed:
    """Versions as they are on the image; None for what is not on it. `kernel` is the one that boots
    and `digest` the SHA-256 of the image's version-info."""

    driver: str | None = None
    kernel: str | None = None
    cuda: str | None = None
    nccl: str | None = None
    efa: str | None = None
    glibc: str | None = None
    digest: str | None = None


@dataclass(frozen=True)
class Release:
    """An AMI with its copies, as a channel holds it: `images` maps a region to the AMI's id there.

    `verdict` is the value of the AMI's tag `kiln:verified`.
    """

    line: str
    channel: str
    recipe: str
    ami_name: str
    images: dict[str, str]
    verdict: str
    run_id: str
    recipe_digest: str
    git_commit: str
    built: str
    moved: Moved
    installed: Installed = Installed()
    schema: int = field(default=SCHEMA)

    def into(self, channel: str, moved: Moved) -> Release:
        """The same AMI in another channel."""
        return replace(self, channel=channel, moved=moved)

    def as_json(self) -> str:
        """The parameter's value: one line, `schema` first."""
        return json.dumps({"schema": self.schema, **asdict(self)}, separators=(",", ":"))


_ADAPTER = TypeAdapter(Release)


def read_release(text: str, called: str) -> Release:
    """The release in a parameter's value; `called` names the parameter in messages.

    Raises KilnError (exit status 2) for an invalid value: callers send its ids to EC2 and look up
    its run's record.
    """
    try:
        data = json.loads(text)
        if isinstance(data, dict) and data.get("schema") != SCHEMA:
            shown = vocabulary.shown(data.get("schema"))
            raise KilnError(f"{called}: schema {shown}; this checkout reads {SCHEMA}")
        release = _ADAPTER.validate_python(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the whole value"
        raise KilnError(f"{called}: not a release: `{where}`: {first['msg']}") from None
    except (ValueError, RecursionError) as error:
        raise KilnError(f"{called}: not a release: {error}") from None
    for region, ami_id in release.images.items():
        vocabulary.REGION.required(region, f"{called}: `images`")
        vocabulary.AMI_ID.required(ami_id, f"{called}: `images.{region}`")
    vocabulary.CHANNEL_LINE.required(release.line, f"{called}: `line`")
    vocabulary.CHANNEL.required(release.channel, f"{called}: `channel`")
    vocabulary.RECIPE_NAME.required(release.recipe, f"{called}: `recipe`")
    vocabulary.RUN_ID.required(release.run_id, f"{called}: `run_id`")
    vocabulary.TIME.required(release.moved.at, f"{called}: `moved.at`")
    return release


def on_image(versions: dict[str, Any]) -> Installed:
    """The versions in an image's version-info; none for a record that has none.

    Raises KilnError (exit status 2) for a damaged one.
    """
    if not versions:
        return Installed()
    info = read_version_info(versions, "the version-info of the AMI's record")
    packages = {package.name: package.full_version for package in info.packages}

    def component(name: str) -> str | None:
        part = info.components.get(name)
        return part.version if part else None

    return Installed(
        driver=component("nvidia-driver"),
        kernel=info.kernel.boots or None,
        cuda=component("cuda"),
        nccl=component("nccl"),
        efa=component("efa"),
        # Amazon Linux's name and Debian's.
        glibc=packages.get("glibc") or packages.get("libc6"),
        digest=hashlib.sha256(json.dumps(versions, sort_keys=True).encode()).hexdigest(),
    )
