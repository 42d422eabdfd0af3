"""Tasks about Xid and SXid events: xid.explain, xid.parse."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from invoke import Context

from kiln.base.errors import KilnError, operation_failed
from kiln.cli.flags import JSON
from kiln.cli.front import note, say, show, task


@task(positional=["code"], help={"code": "79, xid79 or sxid12028", **JSON})
def explain(c: Context, code: str, json: bool = False) -> None:
    """What an Xid or SXid means, how severe it is, what to do: ./invoke xid.explain 79"""
    from kiln.xid import catalogue

    show(catalogue.explain_code(code), as_json=json, text=explained_text)


@task(positional=["file"], help={"file": "a kernel log, or - for standard input", **JSON})
def parse(c: Context, file: str, json: bool = False) -> None:
    """The GPU events in a kernel log of any form: dmesg | ./invoke xid.parse - --json"""
    print_events(file, as_json=json)


def explained_text(entry: dict[str, Any]) -> str:
    """A catalogue entry for a person."""
    title = f"{entry['kind'].upper()} {entry['code']}: {entry['name']}"
    width = max(len(key) for key in entry)
    lines = [
        f"  {key.replace('_', ' '):<{width}}  {_value(value)}"
        for key, value in entry.items()
        if (value or value is False) and key not in ("kind", "code", "name")
    ]
    return "\n".join([title, *lines])


def print_events(file: str, *, as_json: bool) -> None:
    """Print the events of a kernel log, one per line.

    Raises KilnError when the file cannot be opened (exit status 2) or read to its end (1).
    """
    from json import dumps

    from kiln.xid import archive

    event, left_out = None, archive.LeftOut()
    with _opened(file) as log:
        for event in _read(archive.events(log, left_out), file):
            say(dumps(event) if as_json else archive.printable_line(_line(event)))
    if left_out.count:
        note(
            f"{file}: left out {left_out.count} of the lines with an Xid or SXid, first in line "
            f"{left_out.first}: damaged, or written by another program than the kernel"
        )
    elif event is None and not as_json:
        note(f"no Xid, no SXid and no lost GPU in {file}")


def _read(events: Iterator[dict[str, Any]], file: str) -> Iterator[dict[str, Any]]:
    """The events; turns an OSError while reading (rather than printing) into KilnError."""
    try:
        yield from events
    except OSError as error:
        raise operation_failed(f"{file}: {error.strerror}") from None


def _line(event: dict[str, Any]) -> str:
    code = next((name for name in ("xid", "sxid") if event[name] is not None), None)
    kind = f"{'SXid' if code == 'sxid' else 'Xid'} {event[code]}" if code else "GPU lost"
    process = f" pid {event['pid']} {event['process'] or ''}" if event["pid"] is not None else ""
    times = f" (x{event['count']})" if event.get("count", 1) > 1 else ""
    return (
        f"{event['severity'] or '-':<8} {kind:<11} {event['pci'] or '-':<14} "
        f"{event['name'] or 'not in the catalogue'}{process}{times}: {event['action'] or '-'}"
    )


def _opened(file: str) -> BinaryIO:
    if file == "-":
        if sys.stdin is None:
            raise KilnError("standard input is closed", hint="name a kernel log, or pipe one in")
        return sys.stdin.buffer
    try:
        return Path(file).open("rb")
    except OSError as error:
        raise KilnError(
            f"{file}: {error.strerror}", hint="name a kernel log, or - for standard input"
        ) from None


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return "; ".join(map(str, value))
    if isinstance(value, dict):
        return ", ".join(f"{key} {item}" for key, item in value.items())
    return str(value)
