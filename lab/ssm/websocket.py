"""The server's end of a WebSocket, on the connection of an HTTP request that asks for one.

https://www.rfc-editor.org/rfc/rfc6455
"""

from __future__ import annotations

import base64
import hashlib
import socket
import struct
import threading
from collections.abc import Mapping
from typing import Any

# https://www.rfc-editor.org/rfc/rfc6455#section-1.3
_MAGIC = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_MORE, _BINARY, _CLOSE, _PING, _PONG = 0, 2, 8, 9, 10
# Bytes of a message; those of the session manager's plugin have a little more than 1,024.
_LONGEST = 1 << 20


class ClosedError(Exception):
    """The other side has closed the connection, or does not keep to the protocol."""


def is_wanted(environ: Mapping[str, Any]) -> bool:
    """Whether a request asks for a WebSocket."""
    return str(environ.get("HTTP_UPGRADE", "")).lower() == "websocket"


class WebSocket:
    """A connection on which messages are sent by any thread, and received by one."""

    def __init__(self, environ: Mapping[str, Any]) -> None:
        """Accept it. Raises KeyError when the request is not a whole one."""
        self._socket: socket.socket = environ["werkzeug.socket"]
        self._stream = self._socket.makefile("rb")
        self._sending = threading.Lock()
        key = environ["HTTP_SEC_WEBSOCKET_KEY"] + _MAGIC
        digest = hashlib.sha1(key.encode(), usedforsecurity=False).digest()
        self._write(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Accept: " + base64.b64encode(digest) + b"\r\n\r\n"
        )

    def patient(self) -> None:
        """Wait for messages for as long as it takes."""
        self._socket.settimeout(None)

    def receive(self) -> bytes:
        """The next message. Raises ClosedError."""
        message = b""
        while True:
            last, kind, data = self._frame()
            if kind == _CLOSE:
                raise ClosedError("closed by the client")
            if kind == _PING:
                self._send(_PONG, data)
            if kind >= _CLOSE:
                continue
            message += data
            if len(message) > _LONGEST:
                raise ClosedError("too long a message")
            if last:
                return message

    def send(self, message: bytes) -> None:
        """Send a message. Raises ClosedError."""
        self._send(_BINARY, message)

    def close(self) -> None:
        """Say goodbye and close the connection."""
        try:
            self._send(_CLOSE, struct.pack(">H", 1000))
            self._socket.shutdown(socket.SHUT_RDWR)
        except (ClosedError, OSError):
            pass

    def _frame(self) -> tuple[bool, int, bytes]:
        first, second = self._read(2)
        size = second & 0x7F
        if size == 126:
            size = struct.unpack(">H", self._read(2))[0]
        elif size == 127:
            size = struct.unpack(">Q", self._read(8))[0]
        if not second & 0x80 or size > _LONGEST:
            raise ClosedError("not a frame of a client")
        mask = self._read(4)
        data = self._read(size)
        key = (mask * (size // 4 + 1))[:size]
        plain = int.from_bytes(data, "big") ^ int.from_bytes(key, "big")
        return bool(first & 0x80), first & 0x0F, plain.to_bytes(size, "big")

    def _read(self, size: int) -> bytes:
        try:
            data: bytes = self._stream.read(size)
        except (OSError, ValueError) as error:
            raise ClosedError(str(error)) from None
        if len(data) < size:
            raise ClosedError("the connection has ended")
        return data

    def _send(self, kind: int, data: bytes) -> None:
        size = len(data)
        if size < 126:
            head = struct.pack(">BB", 0x80 | kind, size)
        elif size < 1 << 16:
            head = struct.pack(">BBH", 0x80 | kind, 126, size)
        else:
            head = struct.pack(">BBQ", 0x80 | kind, 127, size)
        self._write(head + data)

    def _write(self, data: bytes) -> None:
        try:
            with self._sending:
                self._socket.sendall(data)
        except OSError as error:
            raise ClosedError(str(error)) from None
