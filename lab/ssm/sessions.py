"""Sessions of Session Manager: SSH and port forwarding to a guest, for the program that AWS's CLI,
Packer and this project use, session-manager-plugin.

StartSession gives a token; whoever opens the session's WebSocket with it talks to the agent of the
instance. Here the lab itself is the agent's end: it connects inside the guest, to the port on
localhost, as the agent does.

https://docs.aws.amazon.com/systems-manager/latest/APIReference/API_StartSession.html
"""

from __future__ import annotations

import contextlib
import hmac
import json
import queue
import secrets
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from lab.ssm import messages
from lab.ssm.messages import Message
from lab.ssm.smux import Mux
from lab.ssm.websocket import ClosedError, WebSocket

PATH = "/v1/data-channel/"
# Connects to a port on localhost in the guest. Raises OSError.
Connect = Callable[[int], socket.socket]
# Seconds after which a message is sent again, and a session ends that its client has left: the
# plugin tries to come back five times, with at most five seconds between them.
_AGAIN, _LEFT = 0.5, 20.0
# Messages that may be on their way; the plugin keeps 10,000.
_WINDOW = 1000
# Messages of the client that may wait for the port.
_KEPT = 1000
_TERMINATE = messages.TERMINATE_SESSION.to_bytes(4, "big")


@dataclass(eq=False)
class Session:
    """A session. `muxed`: the client has many connections in its stream, else one."""

    target: str
    region: str
    owner: str  # aws:userid
    document: str
    properties: dict[str, str]
    agent: str  # its version
    connect: Connect
    alive: Callable[[], bool]
    id: str
    token: str = field(default_factory=lambda: secrets.token_urlsafe(48), repr=False)
    started: float = field(default_factory=time.time)
    ended: float = 0.0

    def __post_init__(self) -> None:
        self._client: WebSocket | None = None
        self._left = time.monotonic()
        self._lock = threading.Condition()
        # Data sent and not acknowledged: number → message and when it was sent.
        self._waiting: dict[int, tuple[bytes, float]] = {}
        self._sent = self._expected = 0
        self._way: Mux | _Direct | None = None
        # What the client has sent for the port; None: nothing more.
        self._inbox: queue.Queue[bytes | None] = queue.Queue(_KEPT)
        self._acknowledgements: queue.Queue[bytes | None] = queue.Queue(_KEPT)
        threading.Thread(target=self._watch, daemon=True).start()

    def serve(self, client: WebSocket) -> None:
        """Talk to the client until it or the session is gone."""
        with self._lock:
            self._client, first = client, self._sent == 0
        if first:
            request = messages.handshake(self.agent, self.properties)
            self._send(request, messages.HANDSHAKE_REQUEST)
        try:
            while not self.ended:
                self._take(messages.unpacked(client.receive()))
        except (ClosedError, messages.NotAMessageError):
            pass
        finally:
            with self._lock:
                if self._client is client:
                    self._client, self._left = None, time.monotonic()
            client.close()

    def resumed(self) -> str:
        """A new token, for a client that has lost its connection."""
        self.token = secrets.token_urlsafe(48)
        return self.token

    def opens(self, token: str) -> bool:
        """Whether a token opens the session."""
        return not self.ended and hmac.compare_digest(token.encode(), self.token.encode())

    def end(self, why: str = "") -> None:
        """End the session; the client gets the reason."""
        with self._lock:
            if self.ended:
                return
            self.ended, client, way = time.time(), self._client, self._way
            self._lock.notify_all()
        for waiting in (self._inbox, self._acknowledgements):
            with contextlib.suppress(queue.Full):  # who reads it looks at `ended`, too
                waiting.put_nowait(None)
        if client:
            with contextlib.suppress(ClosedError):
                client.send(messages.packed(messages.closed(self.id, self.target, why)))
            client.close()
        if way:
            way.close()

    def _watch(self) -> None:
        """Send again what was lost, and end a session that nobody is at."""
        while not self.ended:
            time.sleep(_AGAIN / 2)
            if not self.alive():
                self.end()
            with self._lock:
                gone = self._client is None and time.monotonic() - self._left > _LEFT
                late = next(iter(self._waiting.items()), None)
                client = self._client
                again = late and time.monotonic() - late[1][1] > _AGAIN
                if late and again:
                    self._waiting[late[0]] = (late[1][0], time.monotonic())
            if gone:
                self.end()
            elif client and late and again:
                with contextlib.suppress(ClosedError):
                    client.send(late[1][0])

    def _send(self, payload: bytes, kind: int = messages.DATA) -> None:
        """Send the next message of the stream."""
        with self._lock:
            self._lock.wait_for(lambda: len(self._waiting) < _WINDOW or self.ended)
            if self.ended:
                return
            message = messages.packed(Message(messages.OUTPUT, payload, kind, self._sent))
            # During the handshake the plugin accepts messages at once, and only once.
            if kind in (messages.DATA, messages.FLAG):
                self._waiting[self._sent] = (message, time.monotonic())
            self._sent += 1
            client = self._client
        # Without the lock: a client that takes nothing now must not keep its acknowledgements out.
        if client:
            with contextlib.suppress(ClosedError):  # it is sent again when there is a client
                client.send(message)

    def _send_data(self, data: bytes) -> None:
        for start in range(0, len(data), messages.PIECE):
            self._send(data[start : start + messages.PIECE])

    def _take(self, message: Message) -> None:
        if message.kind == messages.ACKNOWLEDGE:
            number = json.loads(message.payload).get("AcknowledgedMessageSequenceNumber")
            with self._lock:
                self._waiting.pop(number, None)
                self._lock.notify_all()
        elif message.kind == messages.INPUT and message.sequence <= self._expected:
            is_new_data = (
                message.sequence == self._expected and message.payload_type == messages.DATA
            )
            if is_new_data and self._inbox.full():
                return  # the port does not keep up: the client sends it again
            # Before anything that follows from it: the plugin ends, or hears nothing any more, when
            # something comes between the end of the handshake and its first connection.
            # github:aws/session-manager-plugin
            # src/sessionmanagerplugin/session/portsession/portsession.go (IsStreamNotSet)
            # @61cf1288c7c66b4cbff922b7ed8a6604b3a3c2ea
            self._acknowledge(messages.packed(messages.acknowledgement(message)))
            # What came before is acknowledged anew, and not taken twice.
            if message.sequence == self._expected:
                self._expected += 1
                self._do(message)

    def _acknowledge(self, answer: bytes) -> None:
        if self._way:
            # Who takes messages waits for nobody: a client may wait with what it sends until it has
            # taken what comes. One that is left out is asked for again.
            with contextlib.suppress(queue.Full):
                self._acknowledgements.put_nowait(answer)
        elif self._client:
            self._client.send(answer)

    def _do(self, message: Message) -> None:
        if message.payload_type == messages.HANDSHAKE_RESPONSE:
            self._send(
                messages.handshake_complete(time.time() - self.started), messages.HANDSHAKE_COMPLETE
            )
            self.begin()
        elif message.payload_type == messages.DATA and self._way:
            self._inbox.put_nowait(message.payload)
        elif (message.payload_type, message.payload) == (messages.FLAG, _TERMINATE):
            self.end()

    def begin(self) -> None:
        port = int(self.properties["portNumber"])
        if "type" in self.properties:
            self._way = Mux(lambda: self.connect(port), self._send_data, self._failed)
            self._start_feeding(self._way)
            return
        try:
            way = _Direct(self.connect(port), self._send_data, self.end)
        except OSError as error:
            self.end(f"Unable to connect to specified port: {error}")
            return
        with self._lock:
            self._way, ended = way, self.ended
        if ended:  # while it connected: `end` has not seen this connection
            way.close()
        else:
            way.start()
            self._start_feeding(way)

    def _start_feeding(self, way: Mux | _Direct) -> None:
        """Pass on to the port what the client sends, in a thread of its own: a port that writes a
        lot reads nothing until that is taken, which takes the client's acknowledgements."""

        def answer(acknowledgement: bytes) -> None:
            client = self._client
            if client:
                with contextlib.suppress(ClosedError):
                    client.send(acknowledgement)

        for waiting, take in ((self._inbox, way.feed), (self._acknowledgements, answer)):
            threading.Thread(target=self._each, args=(waiting, take), daemon=True).start()

    def _each(self, waiting: queue.Queue[bytes | None], take: Callable[[bytes], None]) -> None:
        while not self.ended and (data := waiting.get()) is not None:
            take(data)

    def _failed(self) -> None:
        self._send(messages.CONNECT_TO_PORT_ERROR.to_bytes(4, "big"), messages.FLAG)


class _Direct:
    """The only connection of a session, which ends with it. What it reads can end the session, so
    it reads from `start` on, when the session has it."""

    def __init__(
        self, made: socket.socket, send: Callable[[bytes], None], ended: Callable[[], None]
    ) -> None:
        self._socket, self._send, self._ended = made, send, ended

    def start(self) -> None:
        threading.Thread(target=self._read, daemon=True).start()

    def feed(self, data: bytes) -> None:
        try:
            self._socket.sendall(data)
        except OSError:
            self._ended()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _read(self) -> None:
        with contextlib.suppress(OSError):
            while data := self._socket.recv(16384):
                self._send(data)
        self._ended()


class Sessions:
    """All sessions of the lab."""

    def __init__(self) -> None:
        self._sessions: dict[str, Session] = {}

    def add(self, session: Session) -> None:
        self._sessions[session.id] = session

    def find(self, session_id: str) -> Session | None:
        return self._sessions.get(session_id)

    def tags(self, session_id: str) -> dict[str, str]:
        """What policies see of a session: whose it is, and of which instance.

        https://docs.aws.amazon.com/systems-manager/latest/userguide/getting-started-restrict-access-examples.html
        """
        session = self.find(session_id)
        if session is None:
            return {}
        return {
            "aws:ssmmessages:session-id": session.owner,
            "aws:ssmmessages:target-id": session.target,
        }

    def of(self, region: str) -> list[Session]:
        return [session for session in list(self._sessions.values()) if session.region == region]

    def channel(self, environ: dict[str, Any]) -> None:
        """Serve the WebSocket of a session: the first message must have its token."""
        session = self.find(str(environ.get("PATH_INFO", "")).removeprefix(PATH))
        client = WebSocket(environ)
        try:
            message = json.loads(client.receive())
            token = str(message.get("TokenValue", "")) if isinstance(message, dict) else ""
        except (ClosedError, ValueError):
            token = ""
        if session is None or not session.opens(token):
            client.close()
            return
        client.patient()
        session.serve(client)


# Those of this lab.
KEPT = Sessions()
