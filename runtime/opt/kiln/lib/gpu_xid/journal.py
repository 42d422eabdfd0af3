"""The systemd journal: used where /dev/kmsg cannot be read, and for the previous boot.

The journal keeps no kernel sequence numbers. The checkpoint is therefore its cursor, in each line;
nothing is folded, and an SXid has no Severity and Data records.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import time

TYPE_CHECKING = False  # the module typing would cost the daemon 0.7 MiB
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

_KERNEL = "0"  # SYSLOG_FACILITY of messages from the kernel itself
_READ = 65536
# The driver writes no longer journal lines; longer ones are discarded while they are read.
_MAX_LINE = 262144


def spawn(arguments: list[str], program: str = "journalctl") -> tuple[int, int]:
    """Start journalctl; returns (pid, non-blocking fd of its output)."""
    read, write = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        try:
            os.dup2(write, 1)
            os.execvp(program, [program, *arguments])  # noqa: S606 - no shell is meant
        finally:
            os._exit(127)
    os.close(write)
    os.set_blocking(read, False)
    return pid, read


def end(pid: int) -> None:
    """End a child started by `spawn`, and wait for it."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, 9)
    os.waitpid(pid, 0)


def may_matter(line: bytes) -> bool:
    """A cheap first test. Text that is not UTF-8 is stored as numbers: NVRM is 78,86,82,77."""
    if b"NVRM" in line or b"nvswitch" in line:
        return True
    numbers = line.replace(b" ", b"")
    return b"[78,86,82,77," in numbers or b"[110,118,105,100," in numbers


def message(row: dict[str, Any]) -> tuple[bool, int | None, str]:
    """(injected, microseconds since boot or None, text) of a journal row.

    For lines written to /dev/kmsg from user space, journald moves a leading `word:` into the
    identifier; it is put back.
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
        text = f"{name}: {text}"
    return injected, _number(row.get("_SOURCE_MONOTONIC_TIMESTAMP")), text


def _number(value: object) -> int | None:
    """The number in a field of the journal, which is text; None for anything else."""
    text = str(value)
    return int(text) if text.isdecimal() and text.isascii() and len(text) < 20 else None


class JournalReader:
    """Follows the kernel messages of this boot. Interface of KmsgReader, and `follow` to start."""

    first_seq: int | None = None
    drained = True

    def __init__(self, program: str = "journalctl") -> None:
        self.program = program
        self.pid = 0
        self.since = 0  # microseconds since boot when following began
        self.fd = -1
        self.rest = b""
        self.ended = False  # journalctl has ended

    def follow(self, cursor: str | None) -> None:
        """Start after that cursor (None: at the beginning of this boot)."""
        arguments = ["--dmesg", "--boot", "--output=json", "--follow", "--no-tail", "--no-pager"]
        if cursor:
            arguments.append("--after-cursor=" + cursor)
        self.since = int(time.monotonic() * 1000000)
        self.pid, self.fd = spawn(arguments, self.program)

    def close(self) -> None:
        if self.pid:
            end(self.pid)
            self.pid = 0

    def last_seen(self) -> tuple[None, None]:
        return None, None

    def holds(self, _seq: int | None, _usec: int | None) -> bool:
        return False

    def drain(self, limit: int = 0, backlog: int = 0) -> Iterator[bytes]:
        """Yield lines until none is waiting. Sets `ended` when journalctl has ended."""
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

    def decode(self, line: bytes) -> tuple[tuple[int, None, int | None, str], dict[str, Any]]:
        """As KmsgReader.decode: (prefix, None, microseconds, text), marks."""
        row = json.loads(line.decode("utf-8", "replace"))
        injected, usec, text = message(row)
        marks = {"cursor": row.get("__CURSOR"), "catchup": usec is not None and usec < self.since}
        return ((8 if injected else 0), None, usec, text), marks


def previous_boot(
    lines: int, wait_s: float = 20, program: str = "journalctl"
) -> Iterator[tuple[bool, int | None, str, str, float]]:
    """Yield (injected, usec, text, boot id, UNIX seconds) of the last `lines` kernel messages of
    the previous boot. Yields nothing if the journal does not reach back or hangs."""
    arguments = ["--dmesg", "--boot=-1", "--output=json", "--no-pager", f"--lines={lines}"]
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
                    entry = _previous(line)
                    if entry is not None:
                        yield entry
    finally:
        os.close(fd)
        end(pid)


def _previous(line: bytes) -> tuple[bool, int | None, str, str, float] | None:
    try:
        row = json.loads(line.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None
    if not isinstance(row, dict):
        return None
    injected, usec, text = message(row)
    boot, when = row.get("_BOOT_ID"), _number(row.get("__REALTIME_TIMESTAMP"))
    if not isinstance(boot, str) or when is None:
        return None
    return injected, usec, text, boot, when / 1000000.0
