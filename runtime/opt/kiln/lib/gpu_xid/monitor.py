"""The monitor: read the kernel log to its end, write its events, sleep until woken.

No timer runs while nothing happens. Nothing here imports `typing`, `argparse` or `subprocess`:
they would stay in its memory for as long as the machine runs.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import time

from . import __version__, checkpoint, config, event, hooks, host, kmsg
from .catalog import Catalog
from .fold import Fold
from .log import EventLog
from .parse import messages, set_message_starts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_STATE_DIR = "/var/lib/gpu-xid"
# Catching up ends here even if the kernel writes faster than we read: systemd waits for READY.
_CATCH_UP_S = 30
_STEP = 128  # records between two writes to the log
# An SXid comes with its Severity and Data records back to back; this is for two reads.
_DETAIL_WAIT_S = 0.05
_LOOK_AGAIN_S = 1.0  # for the instance's own data, which cloud-init may write after our start


def say(level: int, text: str) -> None:
    """Write a line to the journal. level: 3 error, 4 warning, 6 info."""
    with contextlib.suppress(OSError):
        os.write(2, f"<{level}>gpu-xid: {text}\n".encode("utf-8", "replace"))


def notify(message: str) -> None:
    """sd_notify(3). Does nothing when systemd did not start this process."""
    path = os.environ.get("NOTIFY_SOCKET", "")
    if path:
        address = "\0" + path[1:] if path.startswith("@") else path
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as to:
            to.sendto(message.encode(), address)


class Monitor:
    """The monitor on one kernel log and one event log; `start`, then `run` or `work`."""

    def __init__(
        self, conf: dict[str, Any], reader: kmsg.KmsgReader, position: checkpoint.PositionFile
    ) -> None:
        self.reader = reader
        self.position = position
        self.boot = host.boot_id()
        self.log = EventLog(conf["log"], conf["max_bytes"], conf["keep"], self._dropped_line)
        self.spool = hooks.Spool(conf["hooks"])
        self.catalog = Catalog(conf["severity"])
        set_message_starts(self.catalog.entry("message starts") or ())
        self.fold = Fold(conf["fold_window_s"])
        self.clock = event.Clock()
        self.driver = host.driver_version()
        self.gpus = host.Gpus(host.gpu_addresses())
        self.machine: dict[str, str] = {}
        self._look_at = 0.0
        self.lost_gpus: set[tuple[str | None, bool]] = set()  # already reported as off the bus
        # Events in the order of the kernel, which wait for the details of an SXid before them.
        self.waiting: list[dict[str, Any]] = []
        self.handled = -1  # every record up to this one
        self.catching_up = False
        self.stopping = False

    # -- starting and stopping

    def start(self, problem: str | None = None) -> None:
        """Write the start record, then the events of this boot that are not in the log yet.

        problem: what is wrong with the configuration, which becomes an event.
        """
        self.handled, ended = checkpoint.recover(self.log.path, self.position.load(), self.boot)
        gpus = len(self.gpus.index)
        self._meta("start", driver=self.driver, gpus=gpus, previous=ended, pid=os.getpid())
        if problem is not None:
            self._meta("config-error", severity="error", raw=problem)
        self.reader.fetch()
        first = self.reader.first_seq
        if first is not None:
            self._overrun(self.handled, first, before_start=True)
        self.catching_up = True
        end = time.monotonic() + _CATCH_UP_S
        while not self.reader.drained and time.monotonic() < end:
            self.work()
        self.catching_up = False
        self.reader.backlog_limit = kmsg.STORM_BACKLOG

    def run(self) -> None:
        """Work until SIGTERM or SIGINT."""
        wake, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_write)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: setattr(self, "stopping", True))
        notify(f"READY=1\nSTATUS=reading the kernel log, writing {self.log.path}")
        poll = select.poll()
        poll.register(self.reader.fd, select.POLLIN)
        poll.register(wake, select.POLLIN)
        while not self.stopping:
            poll.poll(self.timeout_ms())
            self.work()
        self.stop()

    def stop(self) -> None:
        """Write what waits, and a last line that says how far the kernel log was read."""
        self.work()
        self._release(float("inf"))
        for counted in self.fold.flush():
            self._write(counted)
        self._meta("stop")
        self.log.retry_at = None
        self._flush()
        self.log.close()
        self.reader.close()
        self.position.close()

    # -- working

    def work(self) -> None:
        """Handle what the kernel has said, and what is due."""
        self.clock.forget()
        for count, record in enumerate(self.reader.drain(), 1):
            if isinstance(record, kmsg.Lost):
                self._overrun(record.after, record.first)
            else:
                self._take(record)
            if count % _STEP == 0:
                self._flush()
        last = self.reader.last_seq()
        if self.reader.drained and last is not None:
            self.handled = max(self.handled, last)
        now = time.monotonic()
        self._release(now)
        for counted in self.fold.due(now):
            self._write(counted)
        self._flush()
        if self.spool.dropped:
            say(3, f"{self.spool.dropped} events did not reach the hooks: {self.spool.path}")
            self.spool.dropped = 0

    def timeout_ms(self) -> int | None:
        """Milliseconds until something is due; None when only the kernel can wake us."""
        if not self.reader.drained:  # records wait in memory, so poll may not wake
            return 0
        times = [self.fold.next_due(), self.log.retry_at]
        times += [fields["due"] for fields in self.waiting]
        due = min((t for t in times if t is not None), default=None)
        return None if due is None else max(0, int((due - time.monotonic()) * 1000) + 1)

    def _take(self, record: str) -> None:
        """Handle a record. One that makes our own code fail must not stop those after it."""
        try:
            prefix, seq, usec, text = kmsg.decode(record)
            known = seq <= self.handled  # in the log already: only learn from it
            for fields in messages(text):
                fields.update(seq=seq, usec=usec, injected=prefix >= 8)
                if self.catching_up:
                    fields["catchup"] = True
                self._sort_out(fields, known)
            if not known:
                self.handled = seq
        except Exception as error:
            self._unhandled(error, record)
        self._release(time.monotonic())

    def _sort_out(self, fields: dict[str, Any], known: bool) -> None:
        kind, injected = fields["kind"], fields["injected"]
        fields["due"] = 0.0
        if kind == "sxid-detail":
            self._add_detail(fields)
            return
        if kind == "uuid":
            if not injected or not self.gpus.knows(fields["pci"]):
                self.gpus.learn(fields["pci"], fields["uuid"])
            return
        if kind == "driver":
            if injected:
                return
            self.driver = fields["driver"]
        elif kind == "gpu-lost" or (kind == "xid" and fields["xid"] == 79):
            gpu = (host.short(fields["pci"]) if fields["pci"] else None, injected)
            if kind == "gpu-lost" and gpu in self.lost_gpus:
                return  # reported once per GPU, and not after Xid 79
            self.lost_gpus.add(gpu)
        elif kind == "sxid":
            fields["due"] = time.monotonic() + _DETAIL_WAIT_S
        elif kind != "xid":
            return
        if not known:
            self.waiting.append(fields)

    def _add_detail(self, fields: dict[str, Any]) -> None:
        """Give a Severity or Data record to its SXid, which waits for both."""
        for earlier in self.waiting:
            if earlier["kind"] == "sxid" and earlier["head"] == fields["head"]:
                details = earlier.setdefault("detail", [])
                details.append(fields["message"])
                if len(details) == 2:
                    earlier["due"] = 0.0

    def _release(self, now: float) -> None:
        """Write the waiting events up to the first one that is not due."""
        while self.waiting and self.waiting[0]["due"] <= now:
            fields = self.waiting.pop(0)
            if fields["kind"] == "driver":
                driver, gpus = fields["driver"], len(host.gpu_addresses())
                self._meta("driver", fields["seq"], driver=driver, gpus=gpus)
            elif fields["kind"] == "gpu-lost":
                fields.update(xid=None, message="", pid=None, process=None, implied_xid=79)
                self._write(fields)
            else:
                for ready in self.fold.add(fields):
                    self._write(ready)

    def _write(self, fields: dict[str, Any]) -> None:
        """Classify an event, and give it to the hooks and the log."""
        if not self.machine and time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + _LOOK_AGAIN_S
            self.machine = host.machine()
        try:
            fields.update(self.machine, driver=self.driver)
            self.catalog.classify(fields, self.driver)
            self.gpus.add_to(fields)
            when = self.clock.seconds(fields["usec"])
            line = event.gpu_event(fields, when, self.boot, fields["seq"], fields["usec"])
            self.spool.put(line)
            self.log.add(event.encode(line), line["severity"] == "fatal", line.get("count", 1))
        except Exception as error:
            self._unhandled(error, fields["raw"])

    def _unhandled(self, error: Exception, raw: str) -> None:
        say(3, f"a kernel line could not be handled ({error!r}): {raw[:500]!r}")
        self._meta("unhandled", severity="error", raw=raw)

    def _overrun(self, after: int, first: int, **more: Any) -> None:
        # After a restart the reader passes over what was handled before.
        after = max(after, self.handled)
        lost = first - after - 1
        if lost <= 0:
            return
        say(4, f"{lost} kernel records were overwritten before they could be read")
        self._release(float("inf"))
        self.handled = first - 1
        more.update(severity="warning", lost=lost, lost_from=after + 1, lost_to=first - 1)
        self._meta("overrun", **more)

    def _meta(self, name: str, seq: int | None = None, **more: Any) -> None:
        """Write a line about the monitor itself, such as `start` or `overrun`."""
        seq = self._written() if seq is None else seq
        more["version"] = __version__
        seq_or_none = None if seq < 0 else seq
        line = event.record(name, time.time(), self.boot, seq_or_none, None, **more)
        self.log.add(event.encode(line))

    def _dropped_line(self, count: int) -> bytes:
        text = f"{count} events did not fit into the queue while {self.log.path} was not writable"
        say(3, text)
        more = {"severity": "error", "events": count, "version": __version__}
        return event.encode(event.record("dropped", time.time(), self.boot, None, None, **more))

    def _flush(self) -> None:
        before = self.log.error
        written = self.log.flush()
        if written and before is not None:
            say(6, f"{self.log.path} is writable again")
        if not written and before is None and self.log.error is not None:
            reason = self.log.error.strerror
            say(3, f"cannot write {self.log.path}: {reason}; events wait in memory")
        if written and self._written() >= 0:
            self.position.save(self.boot, self._written())

    def _written(self) -> int:
        """Return the last record up to which every event is in the log or its queue."""
        return self.waiting[0]["seq"] - 1 if self.waiting else self.handled


def main(config_path: str, kmsg_path: str) -> int:
    """Run the monitor until it is stopped; returns its exit status."""
    conf, problem = config.effective(config_path)
    if problem is not None:
        say(3, f"{problem}; the defaults are in force until it is corrected")
    is_default = conf["log"] == os.path.realpath(config.DEFAULTS["log"])
    state = _STATE_DIR + "/position" if is_default else conf["log"] + ".position"
    try:
        position = checkpoint.PositionFile(state)
    except checkpoint.BusyError:
        say(3, "another gpu-xid monitor already writes {}".format(conf["log"]))
        return 1
    try:
        monitor = Monitor(conf, kmsg.KmsgReader(kmsg_path), position)
        monitor.start(problem)
        monitor.run()
    except OSError as error:
        say(3, f"{error.filename or kmsg_path}: {error.strerror}")
        return 1
    return 0
