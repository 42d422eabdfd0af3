"""The messages of Session Manager's data channel, as AWS's plugin and agent have them.

github:aws/session-manager-plugin src/message/clientmessage.go, src/message/handshakemessage.go
@61cf1288c7c66b4cbff922b7ed8a6604b3a3c2ea
"""

from __future__ import annotations

import hashlib
import json
import struct
import time
import uuid
from dataclasses import dataclass, field
from typing import Any

INPUT, OUTPUT, ACKNOWLEDGE, CLOSED = (
    "input_stream_data",
    "output_stream_data",
    "acknowledge",
    "channel_closed",
)
# Types of a payload.
DATA, HANDSHAKE_REQUEST, HANDSHAKE_RESPONSE, HANDSHAKE_COMPLETE, FLAG = 1, 5, 6, 7, 10
# Values of a flag.
TERMINATE_SESSION, CONNECT_TO_PORT_ERROR = 2, 3
# Bytes of data in one message:
# github:aws/amazon-ssm-agent agent/session/config/config.go
# @1c217c89b42de51d4f4063363d8ec1f2eef56055
PIECE = 1024

# Length of the header, type, schema, created (ms), sequence, flags, id, SHA-256 of the payload, its
# type; its length follows, which the header's does not count.
_HEADER = struct.Struct(">I32sIQqQ16s32sI")
_LENGTH = struct.Struct(">I")


class NotAMessageError(ValueError):
    """What came is not a message."""


@dataclass(frozen=True)
class Message:
    """A message of the channel; those of a stream are numbered from 0."""

    kind: str
    payload: bytes
    payload_type: int = 0
    sequence: int = 0
    flags: int = 0
    id: uuid.UUID = field(default_factory=uuid.uuid4)


def packed(message: Message) -> bytes:
    """A message as it is sent."""
    digest = hashlib.sha256(message.payload).digest()
    header = _HEADER.pack(
        _HEADER.size,
        message.kind.encode().ljust(32),
        1,
        int(time.time() * 1000),
        message.sequence,
        message.flags,
        _swapped(message.id.bytes),
        digest,
        message.payload_type,
    )
    return header + _LENGTH.pack(len(message.payload)) + message.payload


def unpacked(data: bytes) -> Message:
    """A message that came. Raises NotAMessageError."""
    if len(data) < _HEADER.size + _LENGTH.size:
        raise NotAMessageError("too short")
    size, kind, _, _, sequence, flags, name, digest, payload_type = _HEADER.unpack_from(data)
    payload = data[size + _LENGTH.size :]
    if payload and hashlib.sha256(payload).digest() != digest:
        raise NotAMessageError("the digest is not that of the payload")
    return Message(
        kind.decode("utf-8", "replace").rstrip(" \0"),
        payload,
        payload_type,
        sequence,
        flags,
        uuid.UUID(bytes=_swapped(name)),
    )


def acknowledgement(of: Message) -> Message:
    """What says that a message of a stream has come."""
    content = {
        "AcknowledgedMessageType": of.kind,
        "AcknowledgedMessageId": str(of.id),
        "AcknowledgedMessageSequenceNumber": of.sequence,
        "IsSequentialMessage": True,
    }
    return Message(ACKNOWLEDGE, _json(content), flags=3)


def handshake(agent: str, properties: dict[str, str]) -> bytes:
    """The agent's request: which session it is."""
    action = {
        "ActionType": "SessionType",
        "ActionParameters": {"SessionType": "Port", "Properties": properties},
    }
    return _json({"AgentVersion": agent, "RequestedClientActions": [action]})


def handshake_complete(seconds: float) -> bytes:
    """What lets the client begin."""
    return _json({"HandshakeTimeToComplete": int(seconds * 1e9), "CustomerMessage": ""})


def closed(session: str, target: str, why: str) -> Message:
    """The end of a session."""
    made = Message(CLOSED, b"")
    content = {
        "MessageId": str(made.id),
        "CreatedDate": time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime()),
        "DestinationId": target,
        "SessionId": session,
        "MessageType": CLOSED,
        "SchemaVersion": 1,
        "Output": why,
    }
    return Message(CLOSED, _json(content), id=made.id)


def _json(content: dict[str, Any]) -> bytes:
    return json.dumps(content).encode()


def _swapped(name: bytes) -> bytes:
    """The two halves of an id change places on the wire."""
    return name[8:] + name[:8]
