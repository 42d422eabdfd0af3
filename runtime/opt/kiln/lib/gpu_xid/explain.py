"""`79`, `xid79`, `SXid 12028`, `sxid-12028` -> everything the catalogue knows about the code."""

from .catalogue import Catalogue


class UnknownCodeError(ValueError):
    """No such code. `nearest`: known codes around it, as texts."""

    def __init__(self, message, nearest=()):
        ValueError.__init__(self, message)
        self.nearest = list(nearest)


def normalise(code):
    """(kind, number) of what a person typed. A bare number is an Xid below 1000, else an SXid.

    Raises UnknownCodeError when it is no code at all.
    """
    text = str(code).strip().lower()
    word = text[: len(text) - len(text.lstrip("sxid"))]
    digits = text[len(word) :].lstrip(" :-_#") if word else text
    if word not in ("", "xid", "sxid") or not _is_number(digits):
        raise UnknownCodeError("%r is no Xid; write 79, xid79 or sxid 12028" % str(code))
    number = int(digits)
    if word:
        return word, number
    return ("xid" if number < 1000 else "sxid"), number


def explain(code, catalogue=None):
    """The catalogue's entry with `kind` and `code`. Raises UnknownCodeError, with the nearest."""
    catalogue = catalogue or Catalogue()
    kind, number = normalise(code)
    entry = catalogue.entry("%s %d" % (kind, number))
    if entry is None:
        kinds = (key.partition(" ") for key in catalogue.keys())
        known = [int(code) for word, _, code in kinds if word == kind and code.isdigit()]
        near = sorted(known, key=lambda other: (abs(other - number), other))[:3]
        label = {"xid": "Xid", "sxid": "SXid"}[kind]
        raise UnknownCodeError(
            "%s %d is not in the catalogue" % (label, number),
            ["%s %d" % (label, other) for other in sorted(near)],
        )
    return dict({"kind": kind, "code": number}, **entry)


def _is_number(text):
    return 0 < len(text) < 10 and all(c in "0123456789" for c in text)
