"""The documents of `consume` for a line, as its page shows them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kiln.base.errors import KilnError
from kiln.catalogue.model import CataloguedLine, ChannelInRegion
from kiln.consume.kinds import KINDS, write_document
from kiln.consume.launch_request import launch_request
from kiln.publish.lines import Line


@dataclass(frozen=True)
class SnippetText:
    """A document of one kind."""

    kind: str
    summary: str
    text: str


@dataclass(frozen=True)
class Snippet:
    """The documents for a line's channel. `warning` says what is wrong with what it holds;
    `regions` are those of the channel, each with its AMI."""

    channel: str
    warning: str
    instance_type: str
    documents: tuple[SnippetText, ...]
    regions: tuple[tuple[str, str], ...]


def line_snippets(line: CataloguedLine, row: Line, region: str) -> tuple[Snippet, ...]:
    """Each kind that takes the line, for each of its channels that holds something there, the last
    one first; if none does, for the last one.

    Raises KilnError if its row does not serve the instance type that checks it.
    """
    declared = row.settings.channels
    here = {holding.channel: holding for holding in line.channels if holding.region == region}
    names = [name for name in reversed(declared) if name in here] or [declared[-1]]
    return tuple(_of_channel(line, row, region, name, here.get(name)) for name in names)


def _of_channel(
    line: CataloguedLine, row: Line, region: str, channel: str, held: ChannelInRegion | None
) -> Snippet:
    """The documents for a channel, and the regions that have it with their AMIs, this one first.

    A document that cannot follow the channel holds the AMI's id; without one it is left out.
    """
    request = launch_request(line.line, channel, region, row=row)
    documents = []
    for kind in KINDS.values():
        if kind.needs_id and held is None:
            continue
        launch = replace(request, image_id=held.ami_id) if kind.needs_id and held else request
        try:
            documents.append(SnippetText(kind.name, kind.summary, write_document(kind, launch)))
        except KilnError:
            continue  # the kind is not for this line
    places = {each.region: each.ami_id for each in line.channels if each.channel == channel}
    regions = ((region, places.pop(region, "")), *places.items())
    return Snippet(channel, _warning(held), request.instance_type.type, tuple(documents), regions)


def _warning(held: ChannelInRegion | None) -> str:
    if held is None:
        return "which holds nothing yet"
    if held.trust == "gone":
        return "whose AMI is not there any more"
    return "" if held.trust == "verified" else f"whose AMI is {held.trust}"
