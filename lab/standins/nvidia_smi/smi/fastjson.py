"""JSON by the C functions below Python's json, which loads `re` and so takes 8 ms to import."""

from __future__ import annotations

from _json import encode_basestring_ascii, make_encoder, make_scanner

TYPE_CHECKING = False  # typing itself costs start-up time
if TYPE_CHECKING:
    from typing import Any


class _AsJson:
    """What json.loads tells its scanner."""

    strict = True
    object_hook = object_pairs_hook = None
    parse_float, parse_int, parse_constant = float, int, float


def _refuse(value: Any) -> Any:
    raise TypeError(f"{value!r} has no JSON")


_scan = make_scanner(_AsJson)  # type: ignore[arg-type]
_write = make_encoder(None, _refuse, encode_basestring_ascii, None, ": ", ", ", False, False, True)


def loads(text: str) -> Any:
    """The value. Raises ValueError for what is no JSON."""
    text = text.strip(" \t\n\r")
    try:
        value, end = _scan(text, 0)
    except StopIteration:
        raise ValueError("no JSON") from None
    if end != len(text):
        raise ValueError("something follows the JSON")
    return value


def dumps(value: Any) -> str:
    """What json.dumps writes."""
    return "".join(_write(value, 0))
