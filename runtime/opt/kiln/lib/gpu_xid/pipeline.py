"""Kernel messages in, log lines out: parse, classify, fold, write. Knows nothing of polling."""

import time

from . import __version__, event, fold, host
from .catalogue import Catalogue
from .parse import parse_message, set_message_starts

_MAX_TEMPLATES = 64  # under 1 KiB each; more than that many codes and GPUs at a time are made up


def messages(text):
    """What a record says: usually one dict; a record of several lines may hold more."""
    if "\n" not in text:
        fields = parse_message(text)
        if fields is None:
            return ()
        fields["raw"] = text
        return (fields,)
    found = []
    for part in _parts(text):
        fields = parse_message(part)
        if fields is not None:
            fields["raw"] = part
            found.append(fields)
            continue
        for line in map(str.strip, part.split("\n")[1:]):
            fields = parse_message(line)
            if fields is not None:
                fields["raw"] = line
                found.append(fields)
    return found


def _parts(text):
    """A record of several lines, cut before each line that is an event of its own."""
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
    """Holds what an event needs beside its own line. `write(line_bytes, sync, events)` gets each
    line; `spool.put(line_dict)` each event, but for those like one that it said False to."""

    def __init__(self, config, boot, write, spool):
        self.boot = boot
        self.write = write
        self.spool = spool
        self.driver = host.driver_version()
        self.gpus = host.Gpus(host.gpu_addresses())
        self.clock = event.Clock()
        # (head, injected) of plain events -> (template, sync): all their lines differ only in what
        # `event.fill` fills in.
        self.templates = {}
        self.details = fold.Details()
        self.storm = fold.Storm(0)
        self.fallen = set()  # GPUs already reported as off the bus
        self.handled = None  # all records up to here have been through `take`
        self.handled_usec = None
        self.cursor = None  # instead of a number, where the journal is read
        self.configure(config)

    def configure(self, config):
        self.raw = config["format"] == "raw"
        self.catalogue = Catalogue(overrides=config["severity"])
        set_message_starts(self.catalogue.entry("message starts") or ())
        self.emit(self.storm.flush())
        self.storm = fold.Storm(0 if self.raw else config["fold_window_s"])
        self.templates.clear()

    def learn(self, text):
        """Only what a line teaches about the machine: for records that are in the log already."""
        for fields in messages(text):
            self._learn(fields, injected=False)

    def _learn(self, fields, injected):
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
            self.fallen.add(fields["pci"] and host.short(fields["pci"]))

    def take(self, seq, usec, text, injected=False, marks=None):
        """One record. marks: `catchup`, `previous_boot`, `cursor` go into the line; `when` (UNIX
        seconds) and `boot` stand in for this machine's now."""
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
                whole = self.details.detail(fields)
                if whole is not None:
                    self.emit(self.storm.add(whole))
            else:
                self._note(fields, kind, seq, usec, injected)

    def _note(self, fields, kind, seq, usec, injected):
        if kind == "driver" and not injected and "previous_boot" not in fields:
            self.meta("driver", seq, usec, driver=fields["driver"], gpus=len(host.gpu_addresses()))
        elif kind == "gpu-lost":
            # The driver says "fallen off the bus" without an Xid. Once per GPU, and not after 79.
            if (fields["pci"] and host.short(fields["pci"])) not in self.fallen:
                fields.update(xid=None, message="", pid=None, process=None, implied_xid=79)
                self.emit([fields])
        self._learn(fields, injected)

    def line_of(self, fields):
        """Classified, completed event as the dict that is written."""
        fields["driver"] = self.driver
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

    def emit(self, events):
        """Write events in order, each with `safe` where others are still held back."""
        for place, fields in enumerate(events):
            plain = fields.get("plain") and len(events) == 1 and self.safe() == fields["seq"]
            known = self.templates.get((fields["head"], fields["injected"])) if plain else None
            if known is not None:
                template, sync = known
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

    def _remember(self, fields, template, sync):
        if len(self.templates) >= _MAX_TEMPLATES:
            self.templates.clear()
        self.templates[fields["head"], fields["injected"]] = template, sync

    def meta(self, name, seq, usec, **more):
        """A line about the monitor itself (`start`, `stop`, `overrun`, `driver`). Not in raw."""
        if not self.raw:
            self.write(self.meta_line(name, seq, usec, **more))

    def meta_line(self, name, seq, usec, **more):
        if seq is not None and name != "rotated" and self.safe() != seq:
            more["safe"] = self.safe()
        line = event.record(name, time.time(), self.boot, seq, usec, version=__version__, **more)
        return event.encode(line)

    def held_from(self):
        """Number of the first record whose event is held back, or None."""
        held = [n for n in (self.details.held_from(), self.storm.held_from()) if n is not None]
        return min(held) if held else None

    def safe(self):
        """All records up to this number are in the log, or were none of ours."""
        if self.details.held or self.storm.held:
            return self.held_from() - 1
        return -1 if self.handled is None else self.handled

    def due(self, now):
        """Write what has been held back long enough."""
        for whole in self.details.due(now):
            self.emit(self.storm.add(whole))
        self.emit(self.storm.due(now))

    def next_due(self):
        """time.monotonic() at which `due` has something to do, or None."""
        times = [t for t in (self.details.next_due(), self.storm.next_due()) if t is not None]
        return min(times) if times else None

    def finish(self):
        for whole in self.details.flush():
            self.emit(self.storm.add(whole))
        self.emit(self.storm.flush())
