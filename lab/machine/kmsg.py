"""A guest's /dev/kmsg: a file with the records of a kernel log, which the lab serves by FUSE.

Guests are no users of this machine's kernel log. Reads, polls and lost records are those of the
device (dev-kmsg in the kernel's Documentation/ABI/testing); it cannot seek. The messages are those
of <linux/fuse.h>.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import struct
import threading
import time
from pathlib import Path

from lab.base.shell import run
from lab.machine.namespace import mount

_IN, _OUT = struct.Struct("IIQQIIII"), struct.Struct("IiQ")
_GETATTR, _SETATTR, _OPEN, _READ, _WRITE, _RELEASE, _INIT, _INTERRUPT, _POLL = (
    *(3, 4, 14, 15, 16, 18, 26, 36, 40),
)
_SILENT = (2, 38, 42, _INTERRUPT)  # FORGET, DESTROY, BATCH_FORGET
_DIRECT_IO, _STREAM = 1, 16
_POLLIN, _POLLOUT = 1, 4
_NOTIFY_POLL = 1
_MODE = 0o100644
_ROOT = 1  # the root of guests, in the cell
_MOST = 4096  # records
_LONGEST = 1024  # bytes of a written line
_USER = 1 << 3  # the facility of lines that are not the kernel's
_DEFAULT_LEVEL = 4


class KernelLog:
    """The log of one guest, from its start on until `close`."""

    def __init__(self, node: Path) -> None:
        self._node = node
        self._records: dict[int, bytes] = {}
        self._next = 0
        self._positions: dict[int, int] = {}
        self._files = 0
        self._waiting: dict[int, tuple[int, int]] = {}  # read request → file, size
        self._polls: set[int] = set()
        self._lock = threading.RLock()
        self.add(b"Linux version " + os.uname().release.encode(), 5)
        node.touch()
        self._fuse = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        how = f"fd={self._fuse},rootmode={_MODE:o},user_id=0,group_id=0"
        mount("kmsg", node, "fuse", 0, f"{how},default_permissions,allow_other")
        threading.Thread(target=self._serve, daemon=True, name="kmsg").start()

    def close(self) -> None:
        """End the log, also for who still reads it."""
        run("umount", "--lazy", str(self._node), check=False)

    def add(self, text: bytes, prefix: int) -> None:
        """Add a record, as the kernel does where the facility in `prefix` is 0."""
        with self._lock:
            shown = re.sub(rb"[^ -\[\]-~]", lambda byte: b"\\x%02x" % byte[0][0], text)
            head = f"{prefix},{self._next},{time.monotonic_ns() // 1000},-;".encode()
            self._records[self._next] = head + shown + b"\n"
            self._records.pop(self._next - _MOST, None)
            self._next += 1
            for unique in list(self._waiting):
                self._read(unique)
            for handle in self._polls:
                self._reply(0, struct.pack("Q", handle), _NOTIFY_POLL)
            self._polls.clear()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):  # ENODEV: it is closed
            while True:
                request = os.read(self._fuse, 1 << 17)
                with self._lock:
                    _, kind, unique, *_ = _IN.unpack_from(request)
                    self._answer(kind, unique, request[_IN.size :])
        os.close(self._fuse)

    def _answer(self, kind: int, unique: int, body: bytes) -> None:
        if kind == _INTERRUPT:
            (unique,) = struct.unpack_from("Q", body)
            if self._waiting.pop(unique, None):
                self._reply(unique, -errno.EINTR)
        elif kind == _INIT:
            self._reply(unique, struct.pack("IIIIHHI40x", 7, 31, 0, 0, 8, 8, 1 << 16))
        elif kind in (_GETATTR, _SETATTR):
            attributes = struct.pack("Q40x12x7I", 1, _MODE, 1, _ROOT, _ROOT, 0, 4096, 0)
            self._reply(unique, struct.pack("QII", 60, 0, 0) + attributes)
        elif kind == _OPEN:
            self._files += 1
            self._positions[self._files] = min(self._records)
            self._reply(unique, struct.pack("QII", self._files, _DIRECT_IO | _STREAM, 0))
        elif kind == _READ:
            file, _, size, _, _, flags, _ = struct.unpack_from("QQIIQII", body)
            self._waiting[unique] = file, size
            if not self._read(unique) and flags & os.O_NONBLOCK:
                del self._waiting[unique]
                self._reply(unique, -errno.EAGAIN)
        elif kind == _WRITE:
            size = struct.unpack_from("QQI", body)[2]
            self._reply(unique, self._write(body[40 : 40 + size]))
        elif kind == _POLL:
            file, handle, flags = struct.unpack_from("QQI", body)
            ready = self._positions[file] < self._next
            if flags and not ready:
                self._polls.add(handle)
            self._reply(unique, struct.pack("II", _POLLOUT | (_POLLIN if ready else 0), 0))
        elif kind == _RELEASE:
            self._positions.pop(struct.unpack_from("Q", body)[0], None)
            self._reply(unique, b"")
        elif kind not in _SILENT:
            self._reply(unique, -errno.ENOSYS)

    def _read(self, unique: int) -> bool:
        """Answer a read if there is something for it."""
        file, size = self._waiting[unique]
        position = self._positions[file]
        if position >= self._next:
            return False
        del self._waiting[unique]
        answer: bytes | int = -errno.EPIPE  # it was overwritten
        if position in self._records:
            answer = self._records[position]
            self._positions[file] += 1
            if len(answer) > size:
                answer = -errno.EINVAL
        else:
            self._positions[file] = min(self._records)
        self._reply(unique, answer)
        return True

    def _write(self, line: bytes) -> bytes | int:
        if len(line) > _LONGEST:
            return -errno.EINVAL
        match = re.match(rb"<([0-9]{1,4})>", line)
        prefix = int(match[1]) if match else _DEFAULT_LEVEL
        text = line[match.end() if match else 0 :].removesuffix(b"\n")
        self.add(text, prefix if prefix >= _USER else prefix | _USER)
        return struct.pack("II", len(line), 0)

    def _reply(self, unique: int, answer: bytes | int, code: int = 0) -> None:
        if isinstance(answer, int):
            code, answer = answer, b""
        with contextlib.suppress(FileNotFoundError):  # who asked is gone
            os.write(self._fuse, _OUT.pack(_OUT.size + len(answer), code, unique) + answer)
