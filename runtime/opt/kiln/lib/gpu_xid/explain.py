"""`79`, `xid79`, `SXid 12028`, `sxid-12028` -> everything the catalogue knows about the code."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .catalogue import Catalogue


class UnknownCodeError(ValueError):
    """Unknown code. `nearest`: the nearest known codes, such as `Xid 79`."""

    def __init__(self, message: str, nearest: Iterable[str] = ()) -> None:
        ValueError.__init__(self, message)
        self.nearest = list(nearest)


def normalise(code: object) -> tuple[str, int]:
    """(kind, number) of a code as typed. A bare number below 10000 is an Xid, others are SXids.

    Raises UnknownCodeError when the text is not a code.
    """
    text = str(code).strip().lower()
    word = text[: len(text) - len(text.lstrip("sxid"))]
    digits = text[len(word) :].lstrip(" :-_#") if word else text
    if word not in ("", "xid", "sxid") or not _is_number(digits):
        raise UnknownCodeError(f"{str(code)!r} is not an Xid; write 79, xid79 or sxid 12028")
    number = int(digits)
    if word:
        return word, number
    return ("xid" if number < 10000 else "sxid"), number


def explain(code: object, catalogue: Catalogue | None = None) -> dict[str, Any]:
    """The catalogue entry with `kind` and `code`. Raises UnknownCodeError."""
    catalogue = catalogue or Catalogue()
    kind, number = normalise(code)
    entry = catalogue.entry(f"{kind} {number}")
    if entry is None:
        kinds = (key.partition(" ") for key in catalogue.keys())  # noqa: SIM118 - not a mapping
        known = [int(code) for word, _, code in kinds if word == kind and code.isdigit()]
        near = sorted(known, key=lambda other: (abs(other - number), other))[:3]
        label = {"xid": "Xid", "sxid": "SXid"}[kind]
        raise UnknownCodeError(
            f"{label} {number} is not in the catalogue",
            [f"{label} {other}" for other in sorted(near)],
        )
    return dict({"kind": kind, "code": number}, **entry)


def _is_number(text: str) -> bool:
    return 0 < len(text) < 10 and all(c in "0123456789" for c in text)
