"""The daemon: read the kernel log to its end, write its events, sleep until woken.

No timer runs while nothing happens.
"""

from __future__ import annotations

import os
import select
import signal
import time

from . import checkpoint, config, event, hooks, host, kmsg
from .log import EventLog
from .pipeline import Pipeline, messages
from .watchdog import Watchdog, say

TYPE_CHECKING = False  # the module typing would cost the daemon 0.7 MiB
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from .journal import JournalReader
    from .kmsg import KmsgReader

# Catching up ends here even if the kernel writes faster than we read: systemd waits for READY.
_CATCH_UP_S = 30
_STEP = 128  # records between two writes to the log


class Monitor:
    def __init__(
        self,
        conf: dict[str, Any],
        reader: KmsgReader | JournalReader,
        position_file: checkpoint.PositionFile,
        reload: Callable[[], dict[str, Any]] | None = None,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self.conf = conf
        self.reader = reader
        self.position_file = position_file
        self.reload_config = reload or (lambda: conf)
        self.watchdog = Watchdog(environ)
        self.boot = host.boot_id()
        self.log = EventLog(
            conf["log"],
            conf["max_bytes"],
            conf["keep"],
            conf["queue_lines"],
            self._first_line,
            self._dropped_line,
        )
        self.resume = checkpoint.recover(conf["log"], position_file, conf["format"] == "raw")
        self.lines = Pipeline(conf, self.boot, self._write, hooks.Spool(conf["hooks"]))
        self.started = False
        self.stopping = False
        # Sequence number and time up to which every event is in the log.
        self.written: tuple[int | None, int | None] = (None, None)
        self.written_cursor = self.lines.cursor = self.resume.cursor(self.boot)

    # -- callbacks of the pipeline and the log

    def _write(self, line: bytes, sync: bool = False, events: int = 1) -> None:
        if self.resume.skip_lines:  # raw format: written before the crash
            self.resume.skip_lines -= 1
            return
        self.log.add(line, sync, events)

    def _first_line(self) -> bytes:
        """A new file starts with the checkpoint, so that moving the old file away loses nothing."""
        if not self.started or self.lines.raw:
            return b""
        more: dict[str, Any] = {"cursor": self.written_cursor} if self.written_cursor else {}
        return self.lines.meta_line("rotated", *self.written, **more)

    def _dropped_line(self, count: int) -> bytes:
        say(
            3,
            f"{count} events did not fit into the queue while {self.log.path} was not writable",
        )
        if self.lines.raw:
            return b""
        return self.lines.meta_line("dropped", None, None, severity="error", events=count)

    # -- starting

    def start(self) -> None:
        """Write the start record, then the events of this boot before it."""
        position = self._earlier_position()
        seq = position.safe if position else None
        usec = position.usec if position and position.safe == position.seq else None
        self.lines.handled, self.lines.handled_usec = self.written = seq, usec
        self.lines.meta(
            "start",
            seq,
            usec,
            driver=self.lines.driver,
            gpus=len(self.lines.gpus.index),
            previous=self.resume.ended,
            pid=os.getpid(),
        )
        new_boot = position is None and self.resume.cursor(self.boot) is None
        if new_boot and self.conf["previous_boot_lines"] and not self.lines.raw:
            self._previous_boot()
        self._catch_up(position)
        self._flush()
        self.watchdog.say(f"READY=1\nSTATUS=reading the kernel log, writing {self.log.path}")
        self.watchdog.disarm()

    def _earlier_position(self) -> checkpoint.Position | None:
        """Where an earlier run on this same kernel stopped, or None.

        A container that restarts (systemd-nspawn) has a new boot id on the same kernel; the ring
        then still has the record with our last number and time.
        """
        if not isinstance(self.reader, kmsg.KmsgReader):
            self.reader.follow(self.resume.cursor(self.boot))
            return None
        position = self.resume.position(self.boot)
        if position is not None:
            return position
        for candidate in self.resume.positions:
            if candidate.usec is not None and self.reader.holds(candidate.seq, candidate.usec):
                return self.resume.position(candidate.boot)
        self.resume.covered = []
        return None

    def _previous_boot(self) -> None:
        """Write the events that the journal has of the previous boot and the log has not."""
        from . import journal

        logged = checkpoint.logged_until(self.log.path)
        # The driver version and the lost GPUs of that boot do not apply to this one.
        current = self.lines.driver, set(self.lines.fallen)
        for row in journal.previous_boot(self.conf["previous_boot_lines"]):
            injected, usec, text, boot, when = row
            if boot != self.boot and (usec is None or usec > logged.get(boot, -1)):
                self.lines.take(
                    None, usec, text, injected, {"previous_boot": True, "boot": boot, "when": when}
                )
        self.lines.driver, self.lines.fallen = current

    def _catch_up(self, position: checkpoint.Position | None) -> None:
        safe = position.safe if position is not None else -1
        self.reader.drained = False
        counted = False
        end = time.monotonic() + _CATCH_UP_S
        while not self.reader.drained and time.monotonic() < end:
            # In small steps: the heap never shrinks below the most that was held at once.
            for record in self.reader.drain(limit=_STEP, backlog=_STEP):
                if not counted:
                    counted = True
                    self._lost_before_start(position)
                if isinstance(record, kmsg.Lost):
                    self._overrun(record.after, record.first)
                    continue
                self._take(record, safe, {"catchup": True})
            self._flush()
        if not counted:
            self._lost_before_start(position)
        self.resume.covered = []
        self.resume.skip_lines = 0
        self._all_handled()

    def _take(self, record: Any, safe: int = -1, marks: dict[str, Any] | None = None) -> None:
        """Handle one record. A line that makes our own code fail must not stop the lines after it.

        safe: every record up to this number is in the log. marks: see `Pipeline.take`; marks from
        the journal take precedence.
        """
        try:
            (prefix, seq, usec, text), more = self.reader.decode(record)
            if (seq is not None and seq <= safe) or (
                self.resume.covered and self._covered(seq, text, prefix >= 8)
            ):
                self.lines.learn(text)
            else:
                self.lines.take(seq, usec, text, prefix >= 8, more or marks)
        except Exception as error:
            say(3, f"a kernel line could not be handled ({error!r}): {record[:500]!r}")
            if not self.lines.raw:
                line = self.lines.meta_line("unhandled", None, None, severity="error")
                self.log.add(line[:-2] + b',"raw":' + event.to_json(repr(record)).encode() + b"}\n")

    def _all_handled(self) -> None:
        """Records that the reader skipped have no events, so they need not be read again."""
        seq, usec = self.reader.last_seen()
        if seq is not None and self.reader.drained:
            self.lines.handled, self.lines.handled_usec = seq, usec

    def _covered(self, seq: int | None, text: str, injected: bool) -> bool:
        for fields in messages(text):
            fields["seq"], fields["injected"] = seq, injected
            if fields["kind"] in ("xid", "sxid", "gpu-lost") and self.resume.covers(fields):
                return True
        return False

    def _lost_before_start(self, position: checkpoint.Position | None) -> None:
        """Records of this boot that were overwritten while no monitor ran."""
        first = self.reader.first_seq
        after = position.safe if position else -1
        if first is not None and first > after + 1:
            # Only a run that ended cleanly recorded exactly how far it had read.
            exact = position is None or self.resume.ended != "killed"
            self._overrun(after, first, before_start=True, exact=exact)

    def _overrun(self, after: int, first: int, **more: Any) -> None:
        lost = first - after - 1
        say(4, f"{lost} kernel records were overwritten before they could be read")
        self.lines.handled, self.lines.handled_usec = first - 1, None
        self.lines.meta(
            "overrun",
            first - 1,
            None,
            severity="warning",
            lost=lost,
            lost_from=after + 1,
            lost_to=first - 1,
            **more,
        )

    def run(self) -> None:
        """Until SIGTERM or SIGINT."""
        wake, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: None)
        signal.set_wakeup_fd(wake_write)
        self.start()
        poll = select.poll()
        poll.register(self.reader.fd, select.POLLIN)
        poll.register(wake, select.POLLIN)
        while not self.stopping:
            for fd, _ in poll.poll(self.timeout_ms()):
                if fd == wake:
                    self._signals(os.read(wake, 64))
            self.work()
            if self.reader.ended and not self.stopping:
                # Stopping the unit also ends journalctl, possibly before our signal arrives.
                poll.unregister(self.reader.fd)
                if poll.poll(1000):
                    self._signals(os.read(wake, 64))
                if not self.stopping:
                    raise OSError(0, "ended; a restart follows the journal again", "journalctl")
        self.stop()

    # -- working

    def work(self) -> None:
        busy = False
        self.lines.clock.forget()
        for count, record in enumerate(self.reader.drain()):
            if not busy:
                busy = True
                self.watchdog.arm()
            if isinstance(record, kmsg.Lost):
                self._overrun(record.after, record.first)
                continue
            self._take(record)
            if count % _STEP == _STEP - 1:
                self._flush()
        if busy:
            self._all_handled()
        due = self.lines.next_due()
        if due is not None and due <= time.monotonic():
            busy = True
            self.watchdog.arm()
            self.lines.due(time.monotonic())
        self._flush()
        spool = self.lines.spool
        if spool.dropped:
            say(3, f"{spool.dropped} events did not reach the hooks: {spool.path}")
            spool.dropped = 0
        self.watchdog.disarm()

    def _flush(self) -> None:
        before = self.log.error
        if not self.log.pending():
            return
        if self.log.flush():
            self.started = True
            if before is not None:
                say(6, f"{self.log.path} is writable again")
            self._save_position()
            if self.log.full():
                self._rotate()
        elif before is None and self.log.error is not None:
            say(
                3,
                f"cannot write {self.log.path}: {self.log.error.strerror}; events wait in memory "
                f"(up to {self.log.queue_lines} lines) and in the ring of the kernel",
            )

    def _rotate(self) -> None:
        self.lines.finish()  # no event may be held back across the change of files
        try:
            if self.log.flush():
                self._save_position()
                self.log.rotate()
                self._save_position()
        except OSError as error:
            say(4, f"cannot rotate {self.log.path}: {error.strerror}")

    def _save_position(self) -> None:
        lines, log = self.lines, self.log
        seq, usec, safe = lines.handled, lines.handled_usec, lines.safe()
        if seq is not None:
            self.written = (safe, usec if safe == seq else None)
        self.written_cursor = lines.cursor
        if seq is not None or lines.cursor is not None:
            self.position_file.save(
                checkpoint.Position(self.boot, seq, usec, safe, log.inode, log.size, lines.cursor)
            )

    def _signals(self, numbers: bytes) -> None:
        for number in numbers:
            if number == signal.SIGHUP:
                self._reload()
            else:
                self.stopping = True

    def _reload(self) -> None:
        self.watchdog.say("RELOADING=1")
        try:
            conf = self.reload_config()
        except config.BadConfigError as error:
            say(3, f"configuration not reloaded: {error}")
        else:
            if conf["log"] != self.log.path or conf["format"] != self.conf["format"]:
                say(4, "a new log path or format takes effect at the next start")
                conf["log"], conf["format"] = self.log.path, self.conf["format"]
            self.conf = conf
            self.log.max_bytes, self.log.keep = conf["max_bytes"], conf["keep"]
            self.log.queue_lines = conf["queue_lines"]
            self.lines.configure(conf)
            self.lines.spool = hooks.Spool(conf["hooks"])
            say(6, "configuration reloaded")
        self.log.close()  # the next line opens it again
        self._flush()
        self.watchdog.say("READY=1")

    def stop(self) -> None:
        """Write a last line that says how far the kernel log was read, for the next start."""
        self.work()
        self.lines.finish()
        self._all_handled()
        self.lines.meta("stop", self.lines.handled, self.lines.handled_usec)
        self.watchdog.say("STOPPING=1")
        self.log.retry_at = None
        self._flush()
        self.log.close()
        self.reader.close()
        self.position_file.close()

    # -- sleeping

    def timeout_ms(self) -> int | None:
        """Milliseconds until something is due; None when only the kernel can wake us."""
        if not self.reader.drained:  # records wait in memory, so poll may not wake
            return 0
        now = time.monotonic()
        times = [t - now for t in (self.lines.next_due(), self.log.retry_at) if t is not None]
        watchdog = self.watchdog.wake_in()
        if watchdog is not None:
            times.append(watchdog)
        return max(0, int(min(times) * 1000) + 1) if times else None
