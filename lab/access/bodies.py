"""The body of a request, for a layer that looks at it before the next one reads it."""

from __future__ import annotations

import io
from typing import Any


def peeked(environ: dict[str, Any]) -> bytes:
    """The whole body of a WSGI request, which can be read again from its beginning."""
    body: bytes = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
    environ["wsgi.input"] = io.BytesIO(body)
    return body
