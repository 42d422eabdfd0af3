"""JSON through the C functions below Python's json, which loads `re` and so takes 8 ms to import.

`loads` raises ValueError for what is no JSON; `dumps` writes what json.dumps writes.
"""

from __future__ import annotations

TYPE_CHECKING = False  # typing itself costs start-up time
if TYPE_CHECKING:
    from typing import Any

try:
    from _json import (  # type: ignore[import-not-found]
        encode_basestring_ascii,
        make_encoder,
        make_scanner,
    )
except ImportError:  # a Python without them
    from json import dumps, loads
else:

    class _AsJson:
        strict = True
        object_hook = object_pairs_hook = None
        parse_float, parse_int, parse_constant = float, int, float

    _scan = make_scanner(_AsJson)
    _write = make_encoder(None, None, encode_basestring_ascii, None, ": ", ", ", False, False, True)

    def loads(text: str) -> Any:
        text = text.strip(" \t\n\r")
        try:
            value, end = _scan(text, 0)
        except StopIteration:
            raise ValueError("no JSON") from None
        if end != len(text):
            raise ValueError("something follows the JSON")
        return value

    def dumps(value: Any) -> str:
        return "".join(_write(value, 0))
