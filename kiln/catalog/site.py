"""The catalog as a site: its pages, data, downloads and feeds; its place in a folder and in S3.

All that is from AWS or from a record is escaped by Jinja, or written as JSON into files of its own,
which the pages' Content-Security-Policy lets them load and nothing else.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from kiln.base.errors import KilnError, named_by
from kiln.base.paths import TEMPLATES
from kiln.base.templates import render
from kiln.base.vocabulary import printable
from kiln.catalog.gather import changes_between
from kiln.catalog.model import (
    Catalog,
    CatalogdImage,
    CatalogdLine,
    ChannelInRegion,
    Gathered,
    catalog_json_schema,
)
from kiln.cloud import aws
from kiln.cloud.target import Target
from kiln.consume import KINDS, launch_request
from kiln.facts import table
from kiln.image import diff, sbom
from kiln.image.version_info import read_version_info
from kiln.pipeline.record import Record, as_text
from kiln.publish import lines

_STATIC = ("catalog.css", "catalog.js", "line.js", "compare.js")
# Nothing but the site's own files.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "base-uri 'none'; form-action 'none'"
)
Say = Callable[[str], None]
# Differences on a line's page; the rest is on the page that compares.
_MOST_CHANGES = 100
_MOST_MOVES = 50
# Names every file of the site: what else is there is not ours.
MANIFEST = "files.json"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".xml": "application/atom+xml; charset=utf-8",
}


def site_files(gathered: Gathered, say: Say) -> Iterator[tuple[str, str]]:
    """Yield every file of the site: its path within, and its text. The pages come last.

    `say` gets a line for one whose row does not serve the type that checks it, and its page then
    has no documents.
    """
    catalog = gathered.catalog
    for name in _STATIC:
        yield name, (TEMPLATES / "catalog" / name).read_text(encoding="utf-8")
    for line in catalog.lines:
        for image in line.images:
            if image.key in gathered.records:
                yield from _image_files(image, gathered.records[image.key])
        yield f"lines/{line.line.replace('/', '-')}.xml", _feed(catalog, line)
    yield "feed.xml", _feed(catalog)
    yield "data.js", f"window.kilnCatalog = {_script(_data(catalog))};\n"
    yield "catalog.schema.json", catalog_json_schema()
    yield "catalog.json", json.dumps(catalog.to_dict(), indent=1) + "\n"

    page = partial(render, catalog=catalog, policy=_POLICY, today=catalog.made[:10])
    rows = lines.load_lines()
    for line in catalog.lines:
        values = _line_values(line, gathered, rows.get(line.line), say)
        yield line.page, page("catalog/line.html.j2", here=line.page, up="../", **values)
    comparable = sum(image.record is not None for line in catalog.lines for image in line.images)
    for here in ("compare.html", "index.html"):
        yield here, page(f"catalog/{here}.j2", here=here, up="", comparable=comparable)


def _script(data: Any) -> str:
    """Return JSON for a script: no `<`, so that no HTML parser could end the script there."""
    return json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")


def _data(catalog: Catalog) -> dict[str, Any]:
    """Return what the scripts search: lines, instance types and images."""
    lines = []
    images = []
    for line in catalog.lines:
        branch = line.driver.split(".")[0] if line.driver else ""
        held = " ".join(
            dict.fromkeys(f"{holding.channel} {holding.ami_id}" for holding in line.channels)
        )
        text = f" {line.line} {line.recipe} {line.distro_name} driver {line.driver} {branch} {held}"
        cuda = line.cuda or ""
        lines.append(
            {
                "distro": line.distro,
                "flavor": line.flavor,
                "arch": line.arch,
                "cuda": cuda,
                "text": f"{text} {line.stack} {line.flavor} cuda {cuda} ".lower(),
            }
        )
        for image in line.images:
            ids = " ".join(image.images.values())
            words = f" {image.ami_name} {ids} {image.key} ".lower()
            images.append([f"{image.ami_name} ({line.line})", f"{line.page}#{image.key}", words])
    return {
        "lines": lines,
        "types": {kind.type: kind.lines for kind in catalog.types},
        "found": images,
        "severities": table("diff")["severities"],
    }


def _line_values(
    line: CatalogdLine, gathered: Gathered, row: lines.Line | None, say: Say
) -> dict[str, Any]:
    """Return what a line's page shows besides the line itself; `row` is the matrix's, if any."""
    image = line.images[0] if line.images else None
    record = gathered.records.get(image.key) if image else None
    before = gathered.records.get(image.before or "") if image else None
    return {
        "line": line,
        "image": image,
        "installed": _installed(image, record) if image else {},
        "checks": record.checks.checks if record and record.checks else (),
        "changes": changes_between(before, record),
        "most": _MOST_CHANGES,
        "launches": _launches(line, row, gathered.catalog.region, say) if row else (),
    }


def _launches(line: CatalogdLine, row: lines.Line, region: str, say: Say) -> list[dict[str, Any]]:
    """Return the documents for each of a line's channels that holds something in the region, the
    last channel first; if none does, for the last one.

    Empty if the row does not serve the type that checks it, as of a distribution that ended last
    night.
    """
    declared = row.settings.channels
    here = {holding.channel: holding for holding in line.channels if holding.region == region}
    names = [name for name in reversed(declared) if name in here] or [declared[-1]]
    try:
        return [_launch(line, row, region, name, here.get(name)) for name in names]
    except KilnError as error:
        say(f"{line.line}: what launches it is left out: {error}")
        return []


def _launch(
    line: CatalogdLine,
    row: lines.Line,
    region: str,
    channel: str,
    held: ChannelInRegion | None,
) -> dict[str, Any]:
    """Return the documents for a channel, and the regions that have it with their AMIs, this one
    first.

    A document that cannot follow the channel holds the AMI's id; without one it is left out.
    """
    request = launch_request(line.line, channel, region, row=row)
    pinned = request.model_copy(update={"image_id": held.ami_id if held else None})
    documents = []
    for kind in KINDS.values():
        if kind.needs_id and held is None:
            continue
        try:
            text = kind.document(pinned if kind.needs_id else request)
        except KilnError:
            continue  # the kind is not for this line
        documents.append({"kind": kind.name, "summary": kind.summary, "text": text})
    warnings = {
        "verified": "",
        "not verified": "whose AMI is not verified",
        "gone": "whose AMI is not there any more",
    }
    places = {each.region: each.ami_id for each in line.channels if each.channel == channel}
    return {
        "channel": channel,
        "warning": warnings[held.trust] if held else "which holds nothing yet",
        "instance_type": request.instance_type.type,
        "documents": documents,
        "regions": ((region, places.pop(region, "")), *places.items()),
    }


def _installed(image: CatalogdImage, record: Record | None) -> dict[str, str]:
    """Return the versions on the image: its release's, and of each component in its record."""
    seen = {name: value for name, value in image.installed.items() if value and name != "digest"}
    versions = record.versions if record else None
    parts = read_version_info(versions).components if versions else {}
    return seen | {
        name: part.version
        for name, part in parts.items()
        if part.version and name not in (*seen, "nvidia-driver")
    }


def _image_files(image: CatalogdImage, record: Record) -> Iterator[tuple[str, str]]:
    """Yield the record, the SBOM and what pages look up."""
    # Where the run's folder was is nobody's business here.
    yield f"images/{image.key}.record.json", as_text(replace(record, folder=""))
    facts: dict[str, Any] = {}
    if record.versions:
        facts = diff.recorded_values(read_version_info(record.versions))
        yield f"images/{image.key}.sbom.json", sbom.build_sbom(record, record.versions)
    script = _script({"name": image.ami_name, "facts": facts})
    yield (
        f"images/{image.key}.js",
        f"(window.kilnImages ||= {{}})[{_script(image.key)}] = {script};\n",
    )


def _feed(catalog: Catalog, only: CatalogdLine | None = None) -> str:
    """Return an Atom feed of the newest moves of all channels, or of one line's."""
    lines = [only] if only else catalog.lines
    moves = [(move, line) for line in lines for move in line.history]
    return render(
        "catalog/feed.xml.j2",
        catalog=catalog,
        about=only.line if only else "all lines",
        up="../" if only else "",
        moves=sorted(moves, key=lambda pair: pair[0].at, reverse=True)[:_MOST_MOVES],
        plain=printable,
    )


def write_site(files: Iterable[tuple[str, str]], folder: Path) -> list[str]:
    """Write the site in the place of the one before it, and return its files.

    A folder that holds something else is refused.
    """
    with named_by("--out"):
        folder.parent.mkdir(parents=True, exist_ok=True)
        if folder.exists() and any(folder.iterdir()) and not (folder / MANIFEST).is_file():
            raise KilnError(
                f"{folder} holds other files than a catalog",
                hint="name an empty folder, or one that does not exist: --out DIR",
            )
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as made:
        fresh, old = Path(made, "site"), Path(made, "old")
        names = [MANIFEST]
        for name, text in files:
            path = fresh / name
            path.parent.mkdir(parents=True, exist_ok=True)
            # Half a surrogate pair, which JSON of an image may hold, is not a character of UTF-8.
            path.write_text(text, encoding="utf-8", errors="backslashreplace")
            names.append(name)
        (fresh / MANIFEST).write_text(json.dumps(sorted(names)) + "\n")
        # A reader sees the old site or the new one.
        if folder.is_dir():
            folder.rename(old)
        fresh.rename(folder)
    return names


def publish_site(folder: Path, url: str, target: Target, say: Say) -> None:
    """Copy a written site to s3://BUCKET/PREFIX: first what pages need, then the pages, the start
    page last. Then remove what the site before it had."""
    bucket, _, path = url.removeprefix("s3://").partition("/")
    prefix = f"{path.rstrip('/')}/" if path else ""
    s3 = aws.s3(target)
    names = json.loads((folder / MANIFEST).read_text())
    with aws.explained(f"the catalog could not be written to s3://{bucket}/{prefix}"):
        stale = sorted(_published_files(s3, bucket, prefix) - set(names))
        for name in sorted(names, key=lambda name: (name.endswith(".html"), name == "index.html")):
            s3.put_object(
                Bucket=bucket,
                Key=prefix + name,
                Body=(folder / name).read_bytes(),
                ContentType=_TYPES[Path(name).suffix],
                CacheControl="no-cache",
            )
        for name in stale:
            s3.delete_object(Bucket=bucket, Key=prefix + name)
    gone = f", {len(stale)} of the site before removed" if stale else ""
    say(f"{len(names)} files are at s3://{bucket}/{prefix}{gone}")


def _published_files(s3: Any, bucket: str, prefix: str) -> set[str]:
    """Return the files that the site before named as its own; none where there is none."""
    from botocore.exceptions import ClientError

    try:
        with s3.get_object(Bucket=bucket, Key=prefix + MANIFEST)["Body"] as body:
            names = TypeAdapter(list[str]).validate_json(body.read())
            # Anybody may have written the file: only names that a site can have are its own.
            return {n for n in names if Path(n).suffix in _TYPES and ".." not in Path(n).parts}
    except ClientError as error:
        # Without leave to list the bucket, a file that is not there is a refusal.
        if error.response["Error"].get("Code") in ("NoSuchKey", "404", "AccessDenied"):
            return set()
        raise
    except ValidationError:
        return set()
