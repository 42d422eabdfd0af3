"""JSON and sd_notify without the memory of `json` (which loads `re`) and `socket` (`enum`).

Both stand on the C accelerators that the standard library itself uses. They are private, so
each is tried once at import; where one is missing or behaves differently, the public module
takes its place.
"""

import os


def _json_codec():
    from _json import encode_basestring_ascii, make_encoder, make_scanner

    class Context:
        strict = False
        object_hook = object_pairs_hook = array_hook = None
        parse_float = float
        parse_int = int
        parse_constant = float
        memo = {}  # type: dict

    scan = make_scanner(Context())
    encode = make_encoder(None, None, encode_basestring_ascii, None, ":", ",", False, False, False)

    def loads(text):
        start = len(text) - len(text.lstrip())
        try:
            value, end = scan(text, start)
        except StopIteration as stop:
            raise ValueError("not JSON at character %s" % stop.value) from None
        # The scanner wants json.decoder for its message, which is not there; or too deep a nest.
        except (SystemError, RecursionError):
            raise ValueError("not JSON") from None
        if text[end:].strip():
            raise ValueError("more text after the JSON value at character %d" % end)
        return value

    def dumps(value):
        return "".join(encode(value, 0))

    sample = {"a": [1, None, True, "x\n\u00e9"], "b": {"c": 1.5}}
    if loads(dumps(sample)) != sample:
        raise ImportError("the C JSON accelerator behaves differently")
    return loads, dumps, encode_basestring_ascii


try:
    loads, dumps, quote = _json_codec()
except Exception:  # whatever a future interpreter changes, the public module still works
    import json

    loads = json.loads

    def dumps(value):
        return json.dumps(value, separators=(",", ":"))

    quote = dumps


try:
    import _signal as signal
except ImportError:
    import signal  # noqa: F401

try:
    import _socket
except ImportError:
    import socket as _socket


class Notify:
    """sd_notify(3). Silent when not started by systemd."""

    def __init__(self, environ=os.environ):
        path = environ.get("NOTIFY_SOCKET", "")
        self.address = "\0" + path[1:] if path.startswith("@") else path
        self.socket = None
        if self.address:
            self.socket = _socket.socket(_socket.AF_UNIX, _socket.SOCK_DGRAM)
            self.socket.setblocking(False)

    def send(self, message):
        """True when systemd has taken the message, or there is no systemd to take it."""
        if self.socket is None:
            return True
        try:
            self.socket.sendto(message.encode(), self.address)
        except OSError:
            return False
        return True
