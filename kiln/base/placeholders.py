"""The `{…}` in texts of facts and of the matrix, for which values are filled in."""

from __future__ import annotations

from string import Formatter

from kiln.base.vocabulary import quoted


def names_in(text: str) -> list[str]:
    """The names in the `{…}` of a text, sorted. Raises ValueError for a brace that is none."""
    try:
        parts = [part for part in Formatter().parse(text) if part[1] is not None]
    except ValueError as error:
        raise ValueError(f"{quoted(text)}: {error}") from None
    if any(form or conversion for _, _, form, conversion in parts):
        raise ValueError(f"{quoted(text)}: write a placeholder as {{arch}}, without `!` or `:`")
    return sorted({str(name) for _, name, _, _ in parts})
