"""Many connections in one stream of bytes, as Session Manager's port forwarding has them: the
server's end of smux, version 1.

github:aws/session-manager-plugin vendor/src/github.com/xtaci/smux/frame.go
@61cf1288c7c66b4cbff922b7ed8a6604b3a3c2ea. A frame is a version, a
command, the length of its data and the number of its connection (little-endian), and the data.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable

_HEADER = struct.Struct("<BBHI")
_VERSION = 1
_OPEN, _END, _DATA = 0, 1, 2
_PIECE = 16384


class Mux:
    """Connections of a client to one port. `connect` makes one to the port, or raises OSError;
    `send` takes what goes to the client; `failed` is called when the port does not answer."""

    def __init__(
        self,
        connect: Callable[[], socket.socket],
        send: Callable[[bytes], None],
        failed: Callable[[], None],
    ) -> None:
        self._connect, self._send, self._failed = connect, send, failed
        self._sending = threading.Lock()
        self._sockets: dict[int, socket.socket] = {}
        self._rest = b""

    def feed(self, data: bytes) -> None:
        """Take bytes of the client."""
        self._rest += data
        while len(self._rest) >= _HEADER.size:
            _, command, size, number = _HEADER.unpack_from(self._rest)
            end = _HEADER.size + size
            if len(self._rest) < end:
                return
            content, self._rest = self._rest[_HEADER.size : end], self._rest[end:]
            self._take(command, number, content)

    def close(self) -> None:
        """End all connections."""
        for number in list(self._sockets):
            self._end(number)

    def _take(self, command: int, number: int, content: bytes) -> None:
        if command == _OPEN:
            self._open(number)
        elif command == _END:
            self._end(number)
        elif command == _DATA and number in self._sockets:
            try:
                self._sockets[number].sendall(content)
            except OSError:
                self._end(number)

    def _open(self, number: int) -> None:
        try:
            made = self._connect()
        except OSError:
            self._failed()
            self._frame(_END, number, b"")
            return
        self._sockets[number] = made
        threading.Thread(target=self._read, args=(number, made), daemon=True).start()

    def _read(self, number: int, made: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := made.recv(_PIECE):
                self._frame(_DATA, number, data)
        if self._end(number):
            self._frame(_END, number, b"")

    def _end(self, number: int) -> bool:
        made = self._sockets.pop(number, None)
        if made is None:
            return False
        with contextlib.suppress(OSError):
            made.shutdown(socket.SHUT_RDWR)
        made.close()
        return True

    def _frame(self, command: int, number: int, data: bytes) -> None:
        with self._sending:
            self._send(_HEADER.pack(_VERSION, command, len(data), number) + data)
