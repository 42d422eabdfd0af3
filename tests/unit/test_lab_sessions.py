"""Session Manager's data channel in the lab, spoken as AWS's plugin speaks it.

github:aws/session-manager-plugin src/message, src/datachannel
@61cf1288c7c66b4cbff922b7ed8a6604b3a3c2ea

The plugin itself is in tests/lab/test_session_manager.py, where it is to be had.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import socket
import struct
import threading
import uuid
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from lab.access import auth
from lab.guests import inside
from lab.ssm import channel, messages, sessions
from lab.ssm.messages import Message
from lab.ssm.sessions import Session, Sessions
from lab.ssm.smux import Mux

SSH: dict[str, str] = {"portNumber": "22"}
FORWARDING = {"portNumber": "22", "localPortNumber": "0", "type": "LocalPortForwarding"}


class Plugin:
    """The other end of a WebSocket, byte by byte."""

    def __init__(self, made: socket.socket) -> None:
        self._socket, self._stream, self._next = made, made.makefile("rb"), 0
        self._writing = threading.Lock()

    def open(self, token: str) -> list[bytes]:
        head = []
        while (line := self._stream.readline().strip()) != b"":
            head.append(line)
        self.frame(1, json.dumps({"MessageSchemaVersion": "1.0", "TokenValue": token}).encode())
        return head

    def frame(self, kind: int, data: bytes) -> None:
        mask = os.urandom(4)
        masked = bytes(byte ^ mask[place % 4] for place, byte in enumerate(data))
        size = len(data)
        length = struct.pack(">BH", 0x80 | 126, size)
        if size <= 125:
            length = struct.pack(">B", 0x80 | size)
        with self._writing:
            self._socket.sendall(bytes([0x80 | kind]) + length + mask + masked)

    def read(self) -> Message | None:
        """The next message; None when the channel is closed."""
        first = self._stream.read(2)
        if len(first) < 2 or first[0] & 0x0F == 8:
            return None
        size = first[1]
        if size == 126:
            (size,) = struct.unpack(">H", self._stream.read(2))
        assert first[0] == 0x82, "a whole binary message"
        return messages.unpacked(self._stream.read(size))

    def ping(self) -> None:
        """Wait until everything that was sent before was taken; what came is lost."""
        self.frame(9, b"")
        while (head := self._stream.read(2)) and head[0] & 0x0F != 10:
            size = head[1]
            if size == 126:
                (size,) = struct.unpack(">H", self._stream.read(2))
            self._stream.read(size)

    def unanswered(self) -> Message:
        """The next message of the stream."""
        found = self.read()
        assert found
        return found if found.kind == messages.OUTPUT else self.unanswered()

    def take(self) -> Message:
        """The next message of the stream, which is acknowledged."""
        found = self.unanswered()
        self.frame(2, messages.packed(messages.acknowledgement(found)))
        return found

    def say(self, payload: bytes, kind: int = messages.DATA, number: int | None = None) -> None:
        number = self._next if number is None else number
        self.frame(2, messages.packed(Message(messages.INPUT, payload, kind, number)))
        self._next = number + 1

    def shake(self) -> dict[str, Any]:
        """The handshake; what the agent asked for."""
        asked = self.take()
        assert asked.payload_type == messages.HANDSHAKE_REQUEST
        self.say(json.dumps({"ClientVersion": "1.2.0.0"}).encode(), messages.HANDSHAKE_RESPONSE)
        acknowledged = self.read()  # nothing may come after the end of the handshake
        assert acknowledged and acknowledged.kind == messages.ACKNOWLEDGE
        assert self.take().payload_type == messages.HANDSHAKE_COMPLETE
        return dict(json.loads(asked.payload))


@pytest.fixture
def echo() -> Iterator[tuple[int, list[socket.socket]]]:
    """A port that greets and sends back what it gets, and its connections."""
    server = socket.create_server(("127.0.0.1", 0))
    made: list[socket.socket] = []

    def serve(connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            connection.sendall(b"hello ")
            while data := connection.recv(65536):
                connection.sendall(data)

    def accept() -> None:
        while True:
            try:
                made.append(server.accept()[0])
            except OSError:
                return
            threading.Thread(target=serve, args=(made[-1],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    yield server.getsockname()[1], made
    server.shutdown(socket.SHUT_RDWR)
    server.close()
    for connection in made:
        connection.close()


Open = Callable[..., tuple[Session, Plugin]]


@pytest.fixture
def opened(echo: tuple[int, list[socket.socket]]) -> Iterator[Open]:
    """Makes a session to that port, and a client that has said its token."""
    ends: list[Callable[[], None]] = []

    def make(properties: dict[str, str], token: str = "", **more: Any) -> tuple[Session, Plugin]:
        kept = Sessions()
        session = Session(
            target="i-0123456789abcdef0",
            region="us-east-1",
            owner="AROAEXAMPLE:bake",
            document="AWS-StartSSHSession",
            properties=properties,
            agent="3.3.987.0",
            connect=lambda port: socket.create_connection(("127.0.0.1", echo[0])),
            alive=more.get("alive", lambda: True),
            id="bake-0123456789abcdef0",
        )
        kept.add(session)
        ends.append(session.end)
        client = connected(kept, session)
        ends.append(client._socket.close)
        head = client.open(token or session.token)
        assert head[0] == b"HTTP/1.1 101 Switching Protocols"
        return session, client

    yield make
    for end in ends:
        end()


def connected(kept: Sessions, session: Session) -> Plugin:
    ours, theirs = socket.socketpair()
    theirs.settimeout(60)
    environ = {
        "PATH_INFO": f"{sessions.PATH}{session.id}",
        "HTTP_SEC_WEBSOCKET_KEY": "dGhlIHNhbXBsZSBub25jZQ==",
        "werkzeug.socket": ours,
    }
    threading.Thread(target=kept.channel, args=(environ,), daemon=True).start()
    return Plugin(theirs)


def test_a_message_is_laid_out_as_the_plugin_reads_it() -> None:
    name = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")
    made = messages.packed(Message(messages.OUTPUT, b"payload", messages.DATA, 7, id=name))
    assert struct.unpack_from(">I", made, 0) == (116,)
    assert made[4:36] == b"output_stream_data".ljust(32)
    assert struct.unpack_from(">q", made, 48) == (7,)
    assert made[64:80].hex() == "8899aabbccddeeff0011223344556677"
    assert made[80:112] == hashlib.sha256(b"payload").digest()
    assert struct.unpack_from(">II", made, 112) == (messages.DATA, len(b"payload"))
    assert made[120:] == b"payload"
    assert messages.unpacked(made).id == name
    for broken in (made[:100], made[:-1] + b"D"):
        with pytest.raises(messages.NotAMessageError):
            messages.unpacked(broken)


def test_the_answer_to_a_websocket_is_that_of_the_rfc(opened: Open) -> None:
    digest = hashlib.sha1(b"dGhlIHNhbXBsZSBub25jZQ==258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest()
    assert base64.b64encode(digest) == b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo="  # its own example
    kept, (session, _) = Sessions(), opened(SSH)
    kept.add(session)
    client = connected(kept, session)
    head = client.open(session.token)
    assert b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" in head


def test_ssh_goes_to_the_port_and_back(opened: Open) -> None:
    _, client = opened(SSH)
    asked = client.shake()
    assert asked["AgentVersion"] == "3.3.987.0"
    (action,) = asked["RequestedClientActions"]
    assert action["ActionParameters"] == {"SessionType": "Port", "Properties": SSH}
    assert client.take().payload == b"hello "
    client.say(b"x" * 3000)
    seen = b""
    while len(seen) < 3000:
        piece = client.take().payload
        assert len(piece) <= messages.PIECE
        seen += piece
    assert seen == b"x" * 3000


def test_what_is_not_acknowledged_is_sent_again_and_what_comes_twice_counts_once(
    opened: Open,
) -> None:
    _, client = opened(SSH)
    client.shake()
    first, again = client.unanswered(), client.unanswered()
    assert (first.payload, first.sequence) == (b"hello ", again.sequence)
    client.frame(2, messages.packed(messages.acknowledgement(first)))
    client.say(b"one")
    client.say(b"one", number=1)
    client.say(b"two")
    seen = b""
    while len(seen) < 6:
        message = client.take()
        seen += message.payload if message.sequence > first.sequence else b""
    assert seen == b"onetwo"


@pytest.mark.parametrize("token", ["wrong", "é"])
def test_a_session_opens_with_its_token_only(opened: Open, token: str) -> None:
    _, client = opened(SSH, token=token)
    assert client.read() is None


def test_a_client_that_lost_its_connection_goes_on_with_a_new_token(opened: Open) -> None:
    session, client = opened(SSH)
    client.shake()
    assert client.take().payload == b"hello "
    old = session.token
    client._socket.shutdown(socket.SHUT_RDWR)
    assert not session.opens(old) or session.resumed() != old
    kept = Sessions()
    kept.add(session)
    second = connected(kept, session)
    second.open(session.token)
    second.say(b"after", number=1)
    assert second.take().payload == b"after"


def test_a_session_ends_with_its_flag_its_port_and_its_instance(
    opened: Open, echo: tuple[int, list[socket.socket]]
) -> None:
    session, client = opened(SSH)
    client.shake()
    client.say(messages.TERMINATE_SESSION.to_bytes(4, "big"), messages.FLAG)
    while (message := client.read()) and message.kind != messages.CLOSED:
        pass
    assert message and json.loads(message.payload)["SessionId"] == session.id
    assert session.ended
    session, client = opened(SSH)
    client.shake()
    client.take()
    echo[1][-1].shutdown(socket.SHUT_RDWR)
    while (message := client.read()) and message.kind != messages.CLOSED:
        pass
    assert message and session.ended
    session, client = opened(SSH, alive=lambda: False)
    while client.read():
        pass
    assert session.ended


def session_to(port: Callable[[int], socket.socket]) -> Session:
    return Session(
        target="i-0123456789abcdef0",
        region="us-east-1",
        owner="AROAEXAMPLE:bake",
        document="AWS-StartSSHSession",
        properties=SSH,
        agent="3.3.987.0",
        connect=port,
        alive=lambda: True,
        id="bake-0123456789abcdef0",
    )


def test_a_connection_that_ends_at_once_is_closed_with_its_session(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours, guest = socket.socketpair()
    session = session_to(lambda port: ours)
    guest.close()
    # The thread that reads is as fast as it can be.
    monkeypatch.setattr(threading.Thread, "start", threading.Thread.run)
    session.begin()
    assert session.ended
    assert ours.fileno() == -1


def test_a_connection_is_closed_whose_session_ended_while_it_was_made() -> None:
    ours, guest = socket.socketpair()

    def connect(port: int) -> socket.socket:
        session.end()
        return ours

    session = session_to(connect)
    session.begin()
    assert ours.fileno() == -1
    guest.close()


def frame(command: int, number: int, data: bytes = b"") -> bytes:
    return struct.pack("<BBHI", 1, command, len(data), number) + data


def test_forwarding_has_many_connections_in_one_stream(opened: Open) -> None:
    _, client = opened(FORWARDING)
    (action,) = client.shake()["RequestedClientActions"]
    assert action["ActionParameters"]["Properties"] == FORWARDING
    both = frame(0, 3) + frame(0, 5) + frame(2, 3, b"three") + frame(2, 5, b"five")
    # A frame need not end where a message ends: neither its header nor its data.
    for piece in (both[:11], both[11:27], both[27:]):
        client.say(piece)
    client.say(frame(1, 5))
    seen, rest = {3: b"", 5: b""}, b""
    while len(seen[3]) < len(b"hello three"):
        rest += client.take().payload
        while len(rest) >= 8:
            version, command, size, number = struct.unpack_from("<BBHI", rest)
            assert version == 1
            if command == 2:
                seen[number] += rest[8 : 8 + size]
            rest = rest[8 + size :]
    assert seen[3] == b"hello three"
    assert b"hello five".startswith(seen[5])


def socket_pair_session(
    opened: Open, properties: dict[str, str], *ports: socket.socket | OSError
) -> tuple[Session, Plugin]:
    """A session after its handshake, whose connections are these, in turn."""
    session, client = opened(properties)
    made = iter(ports)

    def connect(_: int) -> socket.socket:
        port = next(made)
        if isinstance(port, OSError):
            raise port
        return port

    session.connect = connect
    client.shake()
    return session, client


def test_an_upload_goes_on_while_a_large_answer_comes_down(opened: Open) -> None:
    ours, guest = socket.socketpair()
    answer, upload = b"a" * (4 << 20), b"u" * (400 << 10)
    got: list[bytes] = []

    def program() -> None:
        guest.sendall(answer)  # and reads only then
        got.append(guest.makefile("rb").read(len(upload)))

    _, client = socket_pair_session(opened, SSH, ours)
    running = threading.Thread(target=program, daemon=True)
    running.start()

    def send() -> None:
        for start in range(0, len(upload), 1024):
            client.say(upload[start : start + 1024])

    threading.Thread(target=send, daemon=True).start()
    seen, last = 0, -1
    while seen < len(answer):
        message = client.take()
        if message.sequence > last:
            seen, last = seen + len(message.payload), message.sequence
    running.join(60)
    assert got == [upload]
    guest.close()


def test_a_port_that_refuses_does_not_end_the_download_of_another_connection(
    opened: Open,
) -> None:
    ours, guest = socket.socketpair()
    answer = b"a" * (4 << 20)
    _, client = socket_pair_session(opened, FORWARDING, ours, ConnectionRefusedError())
    threading.Thread(target=guest.sendall, args=(answer,), daemon=True).start()
    client.say(frame(0, 3))
    seen: dict[int, Message] = {}
    while len(seen) < sessions._WINDOW:  # more is not sent before one is acknowledged
        message = client.unanswered()
        seen[message.sequence] = message
    client.say(frame(0, 5))
    for message in list(seen.values()):
        client.frame(2, messages.packed(messages.acknowledgement(message)))
    of_flag, size = 0, sum(len(message.payload) for message in seen.values())
    while size < len(answer) or not of_flag:
        message = client.take()
        if message.sequence not in seen:
            seen[message.sequence] = message
            of_flag += message.payload_type == messages.FLAG
            size += len(message.payload)
    guest.close()


def test_what_a_port_does_not_take_in_time_is_taken_when_it_is_sent_again(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "_KEPT", 2)
    ours, guest = socket.socketpair()
    fed: list[bytes] = []
    taken, goes_on = threading.Semaphore(0), threading.Event()

    class Slow(sessions._Direct):
        def feed(self, data: bytes) -> None:
            fed.append(data)
            taken.release()
            goes_on.wait(60)

    monkeypatch.setattr(sessions, "_Direct", Slow)
    _, client = socket_pair_session(opened, SSH, ours)
    client.say(b"one")
    assert taken.acquire(timeout=60)
    for text in (b"two", b"three", b"four"):
        client.say(text)
    client.ping()  # all before it was looked at
    goes_on.set()
    assert taken.acquire(timeout=60) and taken.acquire(timeout=60)
    client.say(b"four", number=4)
    assert taken.acquire(timeout=60)
    assert fed == [b"one", b"two", b"three", b"four"]
    guest.close()


def test_a_connection_to_a_machine_with_its_own_kernel_may_be_silent(
    echo: tuple[int, list[socket.socket]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inside, "boot_of", lambda instance: 0)
    made = inside.connect(SimpleNamespace(address="127.0.0.1"), echo[0])  # type: ignore[arg-type]
    assert made.gettimeout() is None
    made.close()


def test_a_port_that_does_not_answer_is_said() -> None:
    sent: list[bytes] = []
    failed: list[bool] = []

    def refuse() -> socket.socket:
        raise ConnectionRefusedError

    mux = Mux(refuse, sent.append, lambda: failed.append(True))
    mux.feed(frame(0, 3))
    mux.feed(frame(2, 3, b"data that nobody takes"))
    assert (sent, failed) == ([frame(1, 3)], [True])


def test_a_web_page_gets_no_session() -> None:
    seen: list[str] = []

    def inner(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        seen.append(environ["PATH_INFO"])
        return []

    entrance = channel.over(inner, Sessions(), ["10.201.0.1"])
    plain = {"PATH_INFO": f"{sessions.PATH}x", "HTTP_HOST": "127.0.0.1:4599"}
    asks = {**plain, "HTTP_UPGRADE": "websocket", "HTTP_SEC_WEBSOCKET_KEY": "k"}
    for environ in (plain, {**asks, "HTTP_ORIGIN": "https://a"}, {**asks, "HTTP_HOST": "a.b"}):
        entrance(environ, None)
    assert len(seen) == 3
    assert auth.from_a_page({**asks, "HTTP_ORIGIN": "https://a"}, [])
