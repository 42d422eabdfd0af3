"""Atom feeds of what the channels came to hold. https://www.rfc-editor.org/rfc/rfc4287"""

from __future__ import annotations

from xml.etree import ElementTree as ET

from kiln.base.printable import printable
from kiln.catalogue.model import Catalogue, CataloguedLine, ChannelMove

_ATOM = "http://www.w3.org/2005/Atom"
_MOST = 50


def feed_text(catalogue: Catalogue, only: CataloguedLine | None = None) -> str:
    """The newest moves of all channels, or of one line's, newest first."""
    lines = [only] if only else catalogue.lines
    moves = [(move, line) for line in lines for move in line.history]
    moves = sorted(moves, key=lambda pair: pair[0].at, reverse=True)[:_MOST]
    about = only.line if only else "all lines"
    feed = ET.Element("feed", xmlns=_ATOM)
    _add(feed, "title", f"AMI Kiln: {about}")
    _add(feed, "id", f"urn:ami-kiln:{catalogue.target}:{catalogue.region}:{about}")
    _add(feed, "updated", moves[0][0].at if moves else catalogue.made)
    _add(ET.SubElement(feed, "author"), "name", catalogue.place)
    for move, line in moves:
        _entry(feed, move, line, catalogue, up="../" if only else "")
    ET.indent(feed)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(feed, encoding="unicode") + "\n"


def _entry(
    feed: ET.Element, move: ChannelMove, line: CataloguedLine, catalogue: Catalogue, up: str
) -> None:
    entry = ET.SubElement(feed, "entry")
    _add(entry, "title", f"{line.line} {move.channel}: {move.ami_name}")
    place = f"{catalogue.target}:{catalogue.region}:{line.line}:{move.channel}:{move.at}"
    _add(entry, "id", f"urn:ami-kiln:{place}")
    _add(entry, "updated", move.at)
    ET.SubElement(entry, "link", href=f"{up}{line.page}#{move.image}")
    why = f": {move.why}" if move.why else ""
    _add(entry, "summary", f"{move.action} by {move.by}{why}")


def _add(parent: ET.Element, name: str, text: str) -> None:
    # XML has no control characters, escaped or not.
    ET.SubElement(parent, name).text = printable(text)
