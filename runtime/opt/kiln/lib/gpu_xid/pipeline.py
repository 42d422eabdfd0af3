"""Kernel messages to log lines: parse, classify, fold, write. Polling is not its concern."""

from __future__ import annotations

import time

from . import __version__, event, fold, host
from .catalogue import Catalogue
from .parse import parse_message, set_message_starts

TYPE_CHECKING = False  # the module typing would cost the daemon 0.7 MiB
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from .hooks import Spool

_LOOK_AGAIN_S = 1.0  # for the instance's own data, which cloud-init may write after our start
_MAX_TEMPLATES = 64  # under 1 KiB each; real events have fewer codes and GPUs at a time


def messages(text: str) -> Sequence[dict[str, Any]]:
    """The messages of a record as dicts: usually one, more for a record of several lines."""
    if "\n" not in text:
        fields = parse_message(text)
        if fields is None:
            return ()
        fields["raw"] = text
        return (fields,)
    parsed = []
    for part in _parts(text):
        fields = parse_message(part)
        if fields is not None:
            fields["raw"] = part
            parsed.append(fields)
            continue
        for line in map(str.strip, part.split("\n")[1:]):
            fields = parse_message(line)
            if fields is not None:
                fields["raw"] = line
                parsed.append(fields)
    return parsed


def _parts(text: str) -> list[str]:
    """A record of several lines, split before each line that is an event."""
    first, *rest = text.split("\n")
    parts = [first]
    for line in rest:
        fields = parse_message(line.strip())
        if fields is not None and fields["kind"] in ("xid", "sxid"):
            parts.append(line.strip())
        else:
            parts[-1] += "\n" + line
    return parts


class Pipeline:
    """The state that events need besides their own line.

    `write(line_bytes, sync, events)` gets each line; `spool.put(line_dict)` each event, except
    events for whose code and GPU it has returned False.
    """

    def __init__(
        self, config: dict[str, Any], boot: str, write: Callable[..., None], spool: Spool
    ) -> None:
        self.boot = boot
        self.write = write
        self.spool = spool
        self.driver = host.driver_version()
        self.gpus = host.Gpus(host.gpu_addresses())
        self.machine: dict[str, str] = {}
        self.next_look = 0.0
        self.clock = event.Clock()
        # (head, injected) of plain events -> (template, sync): their lines differ only in the
        # values that `event.fill` inserts.
        self.templates: dict[tuple[str, bool], tuple[list[str], bool]] = {}
        self.details = fold.Details()
        self.storm = fold.Storm(0)
        self.fallen: set[str | None] = set()  # GPUs already reported as off the bus
        self.handled: int | None = None  # `take` has seen all records up to this number
        self.handled_usec: int | None = None
        self.cursor: str | None = None  # used instead of a number when the journal is read
        self.configure(config)

    def configure(self, config: dict[str, Any]) -> None:
        self.raw = config["format"] == "raw"
        self.catalogue = Catalogue(overrides=config["severity"])
        set_message_starts(self.catalogue.entry("message starts") or ())
        self.emit(self.storm.flush())
        self.storm = fold.Storm(0 if self.raw else config["fold_window_s"])
        self.templates.clear()

    def learn(self, text: str) -> None:
        """Learn about the machine from a record whose event is already in the log."""
        for fields in messages(text):
            self._learn(fields, injected=False)

    def _learn(self, fields: dict[str, Any], injected: bool) -> None:
        kind = fields["kind"]
        if kind == "uuid" and not (injected and self.gpus.knows(fields["pci"])):
            self.gpus.learn(fields["pci"], fields["uuid"])
            self.templates.clear()
        elif kind == "driver" and not injected:
            self.driver = fields["driver"]
            self.templates.clear()
        elif kind == "xid" and fields["xid"] == 79:
            self.fallen.add(host.short(fields["pci"]))
        elif kind == "gpu-lost":
            self.fallen.add(self._gpu_of(fields))

    @staticmethod
    def _gpu_of(fields: dict[str, Any]) -> str | None:
        return host.short(fields["pci"]) if fields["pci"] else None

    def take(  # noqa: PLR0912 - a branch per kind of message
        self,
        seq: int | None,
        usec: int | None,
        text: str,
        injected: bool = False,
        marks: dict[str, Any] | None = None,
    ) -> None:
        """Handle one record.

        marks: `catchup`, `previous_boot` and `cursor` are added to the line; `when` (UNIX seconds)
        and `boot` replace the current time and boot.
        """
        self.handled, self.handled_usec = seq, usec
        if marks:
            self.cursor = marks.get("cursor", self.cursor)
        elif self.storm.running and self.storm.repeats(seq, usec, text, injected):
            return
        for fields in messages(text):
            kind = fields["kind"]
            fields["seq"], fields["usec"], fields["injected"] = seq, usec, injected
            if marks:
                fields.update(marks, plain=False)
            if self.raw:
                if kind in ("xid", "sxid", "sxid-detail"):
                    self.write(event.raw_line(usec or 0, fields["raw"]))
            elif kind == "xid":
                self.emit(self.storm.add(fields) if seq is not None else [fields])
                if fields["xid"] == 79:
                    self._learn(fields, injected)
            elif kind == "sxid":
                if seq is None:
                    self.emit([fields])
                else:
                    for whole in self.details.add(fields):
                        self.emit(self.storm.add(whole))
            elif kind == "sxid-detail":
                complete = self.details.detail(fields)
                if complete is not None:
                    self.emit(self.storm.add(complete))
            else:
                self._note(fields, kind, seq, usec, injected)

    def _note(
        self, fields: dict[str, Any], kind: str, seq: int | None, usec: int | None, injected: bool
    ) -> None:
        if kind == "driver" and not injected and "previous_boot" not in fields:
            self.meta("driver", seq, usec, driver=fields["driver"], gpus=len(host.gpu_addresses()))
        elif kind == "gpu-lost" and self._gpu_of(fields) not in self.fallen:
            # "Fallen off the bus" without an Xid: reported once per GPU, and not after Xid 79.
            fields.update(xid=None, message="", pid=None, process=None, implied_xid=79)
            self.emit([fields])
        self._learn(fields, injected)

    def line_of(self, fields: dict[str, Any]) -> dict[str, Any]:
        """The dict that is written for an event, after classifying it."""
        fields["driver"] = self.driver
        if "previous_boot" not in fields:  # a stopped instance may come back as another type
            fields.update(self.machine)
        lost = fields.get("implied_xid")
        if lost:
            fields["xid"] = lost
        self.catalogue.classify(fields, self.driver)
        self.gpus.add_to(fields)
        if lost:
            fields["xid"] = None
        when = fields.get("when")
        when = self.clock.time_of(fields["usec"]) / 1000000.0 if when is None else when
        return event.gpu_event(
            fields, when, fields.get("boot", self.boot), fields["seq"], fields["usec"]
        )

    def _know_machine(self) -> None:
        now = time.monotonic()
        if now < self.next_look:
            return
        self.next_look = now + _LOOK_AGAIN_S
        self.machine = host.machine()
        if self.machine:
            self.templates.clear()

    def emit(self, events: list[dict[str, Any]]) -> None:
        """Write events in order, each with `safe` where other events are still held back."""
        if events and not self.machine:
            self._know_machine()
        for place, fields in enumerate(events):
            plain = fields.get("plain") and len(events) == 1 and self.safe() == fields["seq"]
            stored = self.templates.get((fields["head"], fields["injected"])) if plain else None
            if stored is not None:
                template, sync = stored
                unix_us = self.clock.time_of(fields["usec"])
                self.write(event.fill(template, fields, unix_us), sync)
                continue
            line = self.line_of(fields)
            if line["seq"] is not None:
                safe = self.safe()
                for later in events[place + 1 :]:
                    safe = min(safe, later.get("first_seq", later["seq"]) - 1)
                if safe != line["seq"]:
                    line["safe"] = safe
            concerns_hooks = self.spool.put(line)
            sync = line["severity"] == "fatal"
            self.write(event.encode(line), sync, line.get("count", 1))
            if plain and not concerns_hooks and fields["xid"] in self.catalogue.plain:
                self._remember(fields, event.template(line), sync)

    def _remember(self, fields: dict[str, Any], template: list[str], sync: bool) -> None:
        if len(self.templates) >= _MAX_TEMPLATES:
            self.templates.clear()
        self.templates[fields["head"], fields["injected"]] = template, sync

    def meta(self, name: str, seq: int | None, usec: int | None, **more: Any) -> None:
        """Write a line about the monitor itself, such as `start` or `overrun`. Not if raw."""
        if not self.raw:
            self.write(self.meta_line(name, seq, usec, **more))

    def meta_line(self, name: str, seq: int | None, usec: int | None, **more: Any) -> bytes:
        if seq is not None and name != "rotated" and self.safe() != seq:
            more["safe"] = self.safe()
        line = event.record(name, time.time(), self.boot, seq, usec, version=__version__, **more)
        return event.encode(line)

    def held_from(self) -> int | None:
        """The number of the first record whose event is held back, or None."""
        held = [n for n in (self.details.held_from(), self.storm.held_from()) if n is not None]
        return min(held) if held else None

    def safe(self) -> int:
        """The events of all records up to this number are in the log."""
        held = self.held_from() if self.details.held or self.storm.held else None
        if held is not None:
            return held - 1
        return -1 if self.handled is None else self.handled

    def due(self, now: float) -> None:
        """Write events that have been held back long enough."""
        for whole in self.details.due(now):
            self.emit(self.storm.add(whole))
        self.emit(self.storm.due(now))

    def next_due(self) -> float | None:
        """time.monotonic() at which to call `due`, or None."""
        times = [t for t in (self.details.next_due(), self.storm.next_due()) if t is not None]
        return min(times) if times else None

    def finish(self) -> None:
        for whole in self.details.flush():
            self.emit(self.storm.add(whole))
        self.emit(self.storm.flush())
