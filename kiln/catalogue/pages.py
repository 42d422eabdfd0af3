"""The catalogue as files: pages, data for their scripts, downloads, feeds.

All that is from AWS or from a record is escaped by Jinja, or written as JSON into files of its own,
which the pages' Content-Security-Policy lets them load and nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from kiln.base.errors import KilnError
from kiln.base.paths import TEMPLATES
from kiln.base.templates import render
from kiln.base.vocabulary import printable, read_time
from kiln.catalogue.fleet_xids import DAYS
from kiln.catalogue.gather import changes_between
from kiln.catalogue.model import (
    Catalogue,
    CataloguedImage,
    CataloguedLine,
    ChannelInRegion,
    Gathered,
    catalogue_json_schema,
)
from kiln.catalogue.reference import mig_files, mig_gpus, xid_codes, xid_state
from kiln.consume.kinds import KINDS
from kiln.consume.request import launch_request
from kiln.facts import table
from kiln.image import diff, sbom
from kiln.image.version_info import read_version_info
from kiln.pipeline.record import Record, as_text
from kiln.publish import lines

FOLDER = TEMPLATES / "catalogue"
STATIC = ("catalogue.css", "catalogue.js", "line.js", "compare.js")
# Nothing but the site's own files; the header that --serve sends says more (`site.HEADERS`).
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "base-uri 'none'; form-action 'none'"
)
Say = Callable[[str], None]
# Differences on a line's page; the rest is on the page that compares.
_MOST_CHANGES = 100
_MOST_MOVES = 50


def site_files(gathered: Gathered, say: Say) -> Iterator[tuple[str, str]]:
    """Every file of the site: its path within, and its text. The pages come last.

    `say` gets a line for one whose row does not serve the type that checks it, and its page then
    has no documents.
    """
    catalogue = gathered.catalogue
    for name in STATIC:
        yield name, (FOLDER / name).read_text(encoding="utf-8")
    yield from mig_files()
    for line in catalogue.lines:
        for image in line.images:
            if image.key in gathered.records:
                yield from _image_files(image, gathered.records[image.key])
        yield f"lines/{_name(line)}.xml", _feed(catalogue, line)
    yield "feed.xml", _feed(catalogue)
    yield "data.js", f"window.kilnCatalogue = {_script(_data(catalogue))};\n"
    yield "catalogue.schema.json", catalogue_json_schema()
    yield "catalogue.json", json.dumps(catalogue.as_json(), indent=1) + "\n"
    yield from _pages(gathered, say)


def _pages(gathered: Gathered, say: Say) -> Iterator[tuple[str, str]]:
    catalogue = gathered.catalogue

    def page(template: str, *, here: str, up: str = "", **more: Any) -> str:
        return render(
            f"catalogue/{template}",
            catalogue=catalogue,
            policy=POLICY,
            today=catalogue.made[:10],
            here=here,
            up=up,
            **more,
        )

    rows = lines.load_lines()
    for line in catalogue.lines:
        values = _of_line(line, gathered, rows.get(line.line), say)
        yield line.page, page("line.html.j2", here=line.page, up="../", **values)
    comparable = sum(image.record is not None for line in catalogue.lines for image in line.images)
    yield "compare.html", page("compare.html.j2", here="compare.html", comparable=comparable)
    yield "mig.html", page("mig.html.j2", here="mig.html", gpus=mig_gpus())
    yield "xid.html", page("xid.html.j2", here="xid.html", codes=xid_codes(), as_of=xid_state())
    yield "index.html", page("index.html.j2", here="index.html", days=_days)


def _name(line: CataloguedLine) -> str:
    return line.line.replace("/", "-")


def _script(data: Any) -> str:
    """JSON inside a script: no `<`, so that no HTML parser could end the script there."""
    return json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")


def _days(before: str, after: str) -> int | None:
    try:
        return max(0, (read_time(after) - read_time(before)).days)
    except ValueError:
        return None


def _data(catalogue: Catalogue) -> dict[str, Any]:
    """What the scripts search: lines, types, and whatever else has a page."""
    lines = []
    rows: list[list[str]] = []
    for line in catalogue.lines:
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
            rows.append([f"{image.ami_name} ({line.line})", f"{line.page}#{image.key}", words])
    for code in xid_codes():
        name = f"Xid {code['code']}"
        words = f" xid {code['code']} {code['name']} {code['severity']} ".lower()
        rows.append([name, f"xid.html#xid-{code['code']}", words])
    for gpu in mig_gpus():
        for kind in gpu["types"]:
            name = kind["instance_type"]
            words = f" mig {name} {gpu['gpu']} ".lower()
            rows.append([f"MIG on {name}", f"mig.html#{name}", words])
    return {
        "lines": lines,
        "types": {kind.type: [list(served) for served in kind.lines] for kind in catalogue.types},
        "found": rows,
        "severities": table("diff")["severities"],
    }


def _of_line(
    line: CataloguedLine, gathered: Gathered, row: lines.Line | None, say: Say
) -> dict[str, Any]:
    image = line.images[0] if line.images else None
    record = gathered.records.get(image.key) if image else None
    before = gathered.records.get(image.before or "") if image else None
    return {
        "line": line,
        "feed": f"{_name(line)}.xml",
        "image": image,
        "installed": list(_installed(image, record)) if image else [],
        "checks": record.checks.checks if record and record.checks else (),
        "changes": changes_between(before, record),
        "most": _MOST_CHANGES,
        "codes": {code["code"]: code for code in xid_codes()},
        "days": DAYS,
        "launches": _launches(line, row, gathered.catalogue.region, say) if row else (),
    }


def _launches(line: CataloguedLine, row: lines.Line, region: str, say: Say) -> list[dict[str, Any]]:
    """The documents for each of a line's channels that holds something in the region, the last
    channel first; if none does, for the last one.

    None where the row does not serve the type that checks it, as of a distribution that ended last
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
    line: CataloguedLine,
    row: lines.Line,
    region: str,
    channel: str,
    held: ChannelInRegion | None,
) -> dict[str, Any]:
    """The documents for a channel, and the regions that have it with their AMIs, this one first.

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
    warning = ""
    if held is None:
        warning = "which holds nothing yet"
    elif held.trust != "verified":
        gone = held.trust == "gone"
        warning = "whose AMI is not there any more" if gone else f"whose AMI is {held.trust}"
    places = {each.region: each.ami_id for each in line.channels if each.channel == channel}
    return {
        "channel": channel,
        "warning": warning,
        "instance_type": request.instance_type.type,
        "documents": documents,
        "regions": ((region, places.pop(region, "")), *places.items()),
    }


def _installed(image: CataloguedImage, record: Record | None) -> Iterator[tuple[str, str]]:
    """Versions on the image: of its release, and of each component that its record lists."""
    seen = {name: value for name, value in image.installed.items() if value and name != "digest"}
    yield from seen.items()
    if record and record.versions:
        for name, part in read_version_info(record.versions).components.items():
            if part.version and name not in (*seen, "nvidia-driver"):
                yield name, part.version


def _image_files(image: CataloguedImage, record: Record) -> Iterator[tuple[str, str]]:
    """Record, SBOM and what pages look up."""
    # Where the run's folder was is nobody's business here.
    yield f"images/{image.key}.record.json", as_text(replace(record, folder=""))
    facts: Mapping[str, Any] = {}
    if record.versions:
        facts = diff.recorded_values(read_version_info(record.versions))
        yield f"images/{image.key}.sbom.json", sbom.build_sbom(record, record.versions)
    script = _script({"name": image.ami_name, "facts": facts})
    yield (
        f"images/{image.key}.js",
        f"(window.kilnImages ||= {{}})[{_script(image.key)}] = {script};\n",
    )


def _feed(catalogue: Catalogue, only: CataloguedLine | None = None) -> str:
    """An Atom feed of the newest moves of all channels, or of one line's."""
    lines = [only] if only else catalogue.lines
    moves = [(move, line) for line in lines for move in line.history]
    return render(
        "catalogue/feed.xml.j2",
        catalogue=catalogue,
        about=only.line if only else "all lines",
        up="../" if only else "",
        moves=sorted(moves, key=lambda pair: pair[0].at, reverse=True)[:_MOST_MOVES],
        plain=printable,
    )
