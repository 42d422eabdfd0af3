"""The tasks that need no machine: Xid texts, MIG layouts, telemetry's cost and installer."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import yaml

from kiln import mig
from kiln.base.errors import KilnError, operation_failed
from kiln.base.paths import ROOT
from kiln.xid import explain

if TYPE_CHECKING:
    from kiln.telemetry import Telemetry
    from kiln.telemetry.bundle import AgentPackage


def explained(entry: dict[str, Any]) -> str:
    """A catalogue entry for a person."""
    title = f"{entry['kind'].upper()} {entry['code']}: {entry['name']}"
    width = max(len(key) for key in entry)
    lines = [
        f"  {key.replace('_', ' '):<{width}}  {_shown(value)}"
        for key, value in entry.items()
        if value and key not in ("kind", "code", "name")
    ]
    return "\n".join([title, *lines])


def parse(file: str, *, as_json: bool) -> int:
    """Print the events of a kernel log, one a line; 0 whether there are any or not.

    Raises KilnError when the file cannot be opened (exit code 2) or read to its end (1).
    """
    event = None
    with _opened(file) as log:
        for event in _read(explain.parse_stream(log), file):
            print(json.dumps(event) if as_json else explain.printable(_event_line(event)))
    if event is None and not as_json:
        print(f"no Xid and no SXid in {file}", file=sys.stderr)
    return 0


def _read(events: Iterator[dict[str, Any]], file: str) -> Iterator[dict[str, Any]]:
    """The events; what fails in here is the reading, not the printing."""
    try:
        yield from events
    except OSError as error:
        raise operation_failed(f"{file}: {error.strerror}") from None


def _event_line(event: dict[str, Any]) -> str:
    kind = f"Xid {event['xid']}" if event["xid"] is not None else f"SXid {event['sxid']}"
    process = f" pid {event['pid']} {event['process'] or ''}" if event["pid"] is not None else ""
    times = f" (x{event['count']})" if event.get("count", 1) > 1 else ""
    return (
        f"{event['severity'] or '-':<8} {kind:<11} {event['pci'] or '-':<14} "
        f"{event['name'] or 'not in the catalogue'}{process}{times}: {event['action'] or '-'}"
    )


def mig_verdict(answer: dict[str, Any]) -> str:
    """`mig.check` for a person."""
    if answer["valid"]:
        return "fits"
    nearest = f"\n  nearest: {answer['nearest']}" if answer.get("nearest") else ""
    return f"does not fit: {answer['reason']}{nearest}"


def mig_plan(answer: dict[str, Any]) -> str:
    """`mig.plan` for a person: the picture."""
    return mig.draw_text(answer)


def write_svg(plan: dict[str, Any], path: str | None) -> None:
    """Write a plan's picture, when a path is given."""
    if path:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(mig.draw_svg(plan), encoding="utf-8")


def telemetry_settings(profile: str, interval: str | int = 60) -> Telemetry:
    """Settings from flags. Raises KilnError (exit code 2) with the nearest right value."""
    from kiln.telemetry import Telemetry

    try:
        return Telemetry(profile=profile, interval=int(interval))
    except ValueError as error:
        # pydantic's list of errors: the last line of each is what a person needs.
        said = [line.strip() for line in str(error).splitlines() if line.startswith("  ")]
        text = said[0].split(" [type=")[0] if said else str(error)
        raise KilnError(text.removeprefix("Value error, ")) from None


def bundle(out: str, profile: str) -> int:
    """Write the telemetry installer for running instances."""
    from kiln.telemetry import bundle as building

    path = Path(out)
    digest = building.write(path, telemetry_settings(profile), _agent_packages())
    print(
        f"{path}  sha256 {digest}\nrun it as root on the instance; --uninstall takes it off again"
    )
    return 0


def _agent_packages() -> Iterable[AgentPackage]:
    """The CloudWatch agent's packages whose checksum is locked: those may be fetched."""
    from kiln.telemetry.bundle import AgentPackage

    lock = yaml.safe_load((ROOT / "amis.lock.yaml").read_text())
    for entry in lock["artifacts"]:
        url = entry["url"]
        if (
            "/amazon-cloudwatch-agent." in url
            and url.endswith((".rpm", ".deb"))
            and entry["sha256"]
        ):
            distro, machine = url.split("/")[-4:-2]
            yield AgentPackage(distro, machine, url, entry["sha256"])


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


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return "; ".join(map(str, value))
    if isinstance(value, dict):
        return ", ".join(f"{key} {item}" for key, item in value.items())
    return str(value)
