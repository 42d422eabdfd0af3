"""The systemd journal: where /dev/kmsg may not be read, and for the boot before this one.

The journal keeps no kernel sequence numbers, so here the checkpoint is its cursor, in each line;
nothing is folded, and an SXid comes without its Severity and Data records.
"""

import os
import select
import time

from . import lean

_KERNEL = "0"  # SYSLOG_FACILITY of what the kernel itself said
_READ = 65536
# A journal line longer than this is none of the driver's; it is thrown away as it comes.
_MAX_LINE = 262144


def spawn(arguments, program="journalctl"):
    """Start journalctl; returns (pid, non-blocking fd of its output)."""
    read, write = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        try:
            os.dup2(write, 1)
            os.execvp(program, [program] + arguments)
        finally:
            os._exit(127)
    os.close(write)
    os.set_blocking(read, False)
    return pid, read


def end(pid):
    """End a child that `spawn` made, and wait for it."""
    try:
        os.kill(pid, 9)
    except ProcessLookupError:
        pass
    os.waitpid(pid, 0)


def may_matter(line):
    """A cheap first look. Text that is not UTF-8 stands there as numbers: NVRM is 78,86,82,77."""
    if b"NVRM" in line or b"nvswitch" in line:
        return True
    numbers = line.replace(b" ", b"")
    return b"[78,86,82,77," in numbers or b"[110,118,105,100," in numbers


def message(row):
    """(injected, microseconds since boot or None, text) of a journal row.

    journald takes a leading `word:` of a line that was written to /dev/kmsg from user space for
    its identifier; it is put back.
    """
    text = row.get("MESSAGE")
    if isinstance(text, list):  # not UTF-8: the journal gives the bytes
        text = bytes(value & 255 for value in text if isinstance(value, int)).decode(
            "utf-8", "replace"
        )
    if not isinstance(text, str):
        return False, None, ""
    name = row.get("SYSLOG_IDENTIFIER")
    injected = row.get("SYSLOG_FACILITY", _KERNEL) != _KERNEL
    if injected and isinstance(name, str) and name not in ("", "kernel", "unknown"):
        text = "%s: %s" % (name, text)
    usec = str(row.get("_SOURCE_MONOTONIC_TIMESTAMP", ""))
    return injected, int(usec) if usec.isdigit() else None, text


class JournalReader:
    """Follows this boot's kernel messages. Same face as KmsgReader; `follow` starts it."""

    first_seq = None
    drained = True

    def __init__(self, program="journalctl"):
        self.program = program
        self.pid = 0
        self.since = 0  # microseconds since boot when following began
        self.fd = -1
        self.rest = b""
        self.ended = False  # journalctl is gone

    def follow(self, cursor):
        """Begin behind that cursor (or at the beginning of this boot)."""
        arguments = ["--dmesg", "--boot", "--output=json", "--follow", "--no-tail", "--no-pager"]
        if cursor:
            arguments.append("--after-cursor=" + cursor)
        self.since = int(time.monotonic() * 1000000)
        self.pid, self.fd = spawn(arguments, self.program)

    def close(self):
        if self.pid:
            end(self.pid)
            self.pid = 0

    def last_seen(self):
        return None, None

    def holds(self, _seq, _usec):
        return False

    def drain(self, limit=0, backlog=0):
        """Yield rows until there is nothing more to read for now. Sets `ended` at the very end."""
        while not self.ended:
            try:
                block = os.read(self.fd, _READ)
            except BlockingIOError:
                self.drained = True
                return
            if not block:
                self.drained = self.ended = True
                return
            lines = (self.rest + block).split(b"\n")
            self.rest = lines.pop()[:_MAX_LINE]
            for line in lines:
                if may_matter(line):
                    yield line

    def decode(self, line):
        """As KmsgReader.decode: (prefix, None, microseconds, text), marks."""
        row = lean.loads(line.decode("utf-8", "replace"))
        injected, usec, text = message(row)
        marks = {"cursor": row.get("__CURSOR"), "catchup": usec is not None and usec < self.since}
        return ((8 if injected else 0), None, usec, text), marks


def previous_boot(lines, wait_s=20, program="journalctl"):
    """Yield (injected, usec, text, boot id, UNIX seconds) of the last `lines` kernel messages of
    the boot before this one. Yields nothing where the journal does not reach back or hangs."""
    arguments = ["--dmesg", "--boot=-1", "--output=json", "--no-pager", "--lines=%d" % lines]
    pid, fd = spawn(arguments, program)
    try:
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        deadline = time.monotonic() + wait_s
        rest = b""
        while True:
            left = deadline - time.monotonic()
            if left <= 0 or not poll.poll(left * 1000):
                return
            block = os.read(fd, _READ)
            if not block:
                return
            rows = (rest + block).split(b"\n")
            rest = rows.pop()[:_MAX_LINE]
            for line in rows:
                if may_matter(line):
                    found = _previous(line)
                    if found is not None:
                        yield found
    finally:
        os.close(fd)
        end(pid)


def _previous(line):
    try:
        row = lean.loads(line.decode("utf-8", "replace"))
    except ValueError:
        return None
    injected, usec, text = message(row)
    boot, when = row.get("_BOOT_ID"), str(row.get("__REALTIME_TIMESTAMP", ""))
    if not isinstance(boot, str) or not when.isdigit():
        return None
    return injected, usec, text, boot, int(when) / 1000000.0
