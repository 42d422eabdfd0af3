"""What the daemon does: read the kernel log to its end, write what it says, sleep until woken.

No timer runs while nothing happens.
"""

import os
import select
import time

from . import checkpoint, config, hooks, host, kmsg, lean
from .lean import signal
from .log import EventLog
from .pipeline import Pipeline, messages
from .watchdog import Watchdog, say

# Catching up ends here even if the kernel talks faster than we read: systemd waits for READY.
_CATCH_UP_S = 30
_STEP = 128  # records between two writes to the log


class Monitor:
    def __init__(self, conf, reader, position_file, reload=None, environ=os.environ):
        self.conf = conf
        self.reader = reader
        self.position_file = position_file
        self.reload_config = reload
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
        self.written = (None, None)  # sequence number and time up to which all is in the log
        self.written_cursor = self.lines.cursor = self.resume.cursor(self.boot)

    # -- what the pipeline and the log call back

    def _write(self, line, sync=False, events=1):
        if self.resume.skip_lines:  # raw: written already, after the position was last saved
            self.resume.skip_lines -= 1
            return
        self.log.add(line, sync, events)

    def _first_line(self):
        """A new file begins with the checkpoint, so that moving the old one away loses nothing."""
        if not self.started or self.lines.raw:
            return b""
        more = {"cursor": self.written_cursor} if self.written_cursor else {}
        return self.lines.meta_line("rotated", *self.written, **more)

    def _dropped_line(self, count):
        say(
            3,
            "%d events did not fit into the queue while %s was not writable"
            % (count, self.log.path),
        )
        if self.lines.raw:
            return b""
        return self.lines.meta_line("dropped", None, None, severity="error", events=count)

    # -- starting

    def start(self):
        """Write the start record, then what happened before it in this boot."""
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
        self.watchdog.say("READY=1\nSTATUS=reading the kernel log, writing %s" % self.log.path)
        self.watchdog.disarm()

    def _earlier_position(self):
        """Where an earlier run on this same kernel stopped, or None.

        A container that boots anew (systemd-nspawn) gets a new boot id on an old kernel; the
        record with our last number and time is then still in the ring.
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

    def _previous_boot(self):
        """What the journal has of the boot before this one, unless the log has it already."""
        from . import journal

        known = checkpoint.logged_until(self.log.path)
        # What those lines teach (the driver, which GPU is lost) holds for that boot only.
        now = self.lines.driver, set(self.lines.fallen)
        for row in journal.previous_boot(self.conf["previous_boot_lines"]):
            injected, usec, text, boot, when = row
            if boot != self.boot and (usec is None or usec > known.get(boot, -1)):
                self.lines.take(
                    None, usec, text, injected, {"previous_boot": True, "boot": boot, "when": when}
                )
        self.lines.driver, self.lines.fallen = now

    def _catch_up(self, position):
        safe = position.safe if position else -1
        self.reader.drained = False
        counted = False
        end = time.monotonic() + _CATCH_UP_S
        while not self.reader.drained and time.monotonic() < end:
            # In small steps: what is held in memory at once now is held by the heap for ever.
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

    def _take(self, record, safe=-1, marks=None):
        """One record. A line that our own code cannot bear must not stop those that follow.

        safe: of records up to this number all is in the log. marks: see `Pipeline.take`; the
        journal's own go before.
        """
        try:
            (prefix, seq, usec, text), more = self.reader.decode(record)
            if seq is not None and seq <= safe:
                self.lines.learn(text)
            elif self.resume.covered and self._covered(seq, text, prefix >= 8):
                self.lines.learn(text)
            else:
                self.lines.take(seq, usec, text, prefix >= 8, more or marks)
        except Exception as error:
            say(3, "a kernel line could not be handled (%r): %r" % (error, record[:500]))
            if not self.lines.raw:
                line = self.lines.meta_line("unhandled", None, None, severity="error")
                self.log.add(line[:-2] + b',"raw":' + lean.dumps(repr(record)).encode() + b"}\n")

    def _all_handled(self):
        """What the reader passed over was none of ours: that far it need not be read again."""
        seq, usec = self.reader.last_seen()
        if seq is not None and self.reader.drained:
            self.lines.handled, self.lines.handled_usec = seq, usec

    def _covered(self, seq, text, injected):
        for fields in messages(text):
            fields["seq"], fields["injected"] = seq, injected
            if fields["kind"] in ("xid", "sxid", "gpu-lost") and self.resume.covers(fields):
                return True
        return False

    def _lost_before_start(self, position):
        """Records of this boot that were overwritten while no monitor ran."""
        first = self.reader.first_seq
        after = position.safe if position else -1
        if first is not None and first > after + 1:
            # Only a run that said goodbye knew exactly how far it had read.
            exact = position is None or self.resume.ended != "killed"
            self._overrun(after, first, before_start=True, exact=exact)

    def _overrun(self, after, first, **more):
        lost = first - after - 1
        say(4, "%d kernel records were overwritten before they could be read" % lost)
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

    def run(self):
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
            for fd, _ in poll.poll(self._timeout_ms()):
                if fd == wake:
                    self._signals(os.read(wake, 64))
            self.work()
            if self.reader.ended and not self.stopping:
                # Stopping the unit ends journalctl as well, and that may be seen before our signal.
                poll.unregister(self.reader.fd)
                if poll.poll(1000):
                    self._signals(os.read(wake, 64))
                if not self.stopping:
                    raise OSError(0, "ended; a restart follows the journal anew", "journalctl")
        self.stop()

    # -- working

    def work(self):
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
            say(3, "%d events did not reach the hooks: %s" % (spool.dropped, spool.path))
            spool.dropped = 0
        self.watchdog.disarm()

    def _flush(self):
        before = self.log.error
        if not self.log.pending():
            return
        if self.log.flush():
            self.started = True
            if before is not None:
                say(6, "%s is writable again" % self.log.path)
            self._save_position()
            if self.log.full():
                self._rotate()
        elif before is None:
            say(
                3,
                "cannot write %s: %s; events wait in memory (up to %d lines) and in the "
                "kernel's ring" % (self.log.path, self.log.error.strerror, self.log.queue_lines),
            )

    def _rotate(self):
        self.lines.finish()  # nothing may be held back over the change of files
        try:
            if self.log.flush():
                self._save_position()
                self.log.rotate()
                self._save_position()
        except OSError as error:
            say(4, "cannot rotate %s: %s" % (self.log.path, error.strerror))

    def _save_position(self):
        lines, log = self.lines, self.log
        seq, usec, safe = lines.handled, lines.handled_usec, lines.safe()
        if seq is not None:
            self.written = (safe, usec if safe == seq else None)
        self.written_cursor = lines.cursor
        if seq is not None or lines.cursor is not None:
            self.position_file.save(
                checkpoint.Position(self.boot, seq, usec, safe, log.inode, log.size, lines.cursor)
            )

    def _signals(self, numbers):
        for number in numbers:
            if number == signal.SIGHUP:
                self._reload()
            else:
                self.stopping = True

    def _reload(self):
        self.watchdog.say("RELOADING=1")
        try:
            conf = self.reload_config()
        except config.BadConfigError as error:
            say(3, "configuration not reloaded: %s" % error)
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
        self.log.close()  # opened anew at the next line
        self._flush()
        self.watchdog.say("READY=1")

    def stop(self):
        """The last line says how far the log was read, so that the next start counts exactly."""
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

    def _timeout_ms(self):
        """None (sleep until the kernel has something) unless something is due at a known time."""
        if not self.reader.drained:  # records wait in memory; the kernel need not say any more
            return 0
        now = time.monotonic()
        times = [t - now for t in (self.lines.next_due(), self.log.retry_at) if t is not None]
        watchdog = self.watchdog.wake_in()
        if watchdog is not None:
            times.append(watchdog)
        return max(0, int(min(times) * 1000) + 1) if times else None
