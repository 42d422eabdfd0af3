"""Print: `output` a task's answer to stdout, `log` everything else to stderr."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import os
import re
import sys
from collections.abc import Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from kiln.base.errors import KilnError, operation_failed
from kiln.base.vocabulary import printable

if TYPE_CHECKING:
    from rich.table import Table

# Spaces at a line's end, before or after colors.
_PADDING = re.compile(r" +((?:\x1b\[[0-9;]*m)*) *$", re.MULTILINE)
# Set by each task's --json.
FORMAT = SimpleNamespace(json=False)


def output(data: Any, *text: str | Table, indent: int | None = 2) -> None:
    """Print the data for a program (--json), or the text for a person; no text prints nothing."""
    if FORMAT.json:
        print(json.dumps(data, indent=indent, default=_plain))
        return
    for part in text:
        if isinstance(part, str):
            print(printable(part))
        elif part.row_count:
            from rich.console import Console

            console = Console()
            with console.capture() as captured:
                # A wide table's lines are wrapped by the terminal: Rich would cut its columns.
                console.print(part, soft_wrap=True)
            print(_PADDING.sub(r"\1", captured.get()), end="")


def _plain(value: Any) -> Any:
    return vars(value) if dataclasses.is_dataclass(value) else str(value)


def log(text: object, *, error: bool = False) -> None:
    """Print what a person should know to stderr."""
    mark = "\033[31merror:\033[0m " if sys.stderr.isatty() else "error: "
    print(f"{mark if error else ''}{printable(text)}", file=sys.stderr, flush=True)


def table(headings: Sequence[str], rows: Sequence[Sequence[str | tuple[str, str]]]) -> Table:
    """Return a table as wide as its longest row: half a version is a wrong version.

    A cell is a text, or a text and its style.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    made = Table(box=None, pad_edge=False, header_style="bold", show_header=bool(headings))
    for heading in headings or range(len(rows[0]) if rows else 0):
        made.add_column(str(heading), no_wrap=True)
    for row in rows:
        cells = [(cell, "") if isinstance(cell, str) else cell for cell in row]
        made.add_row(*(Text(printable(text), style) for text, style in cells))
    # On a dumb terminal Rich takes 80 columns unless both numbers are given.
    made.width = Console(width=100_000, height=25).measure(made).maximum
    return made


def file_failed(error: OSError) -> KilnError:
    """Return the error of a file, or of the output, that cannot be read or written."""
    if error.errno == errno.ENOSPC:
        discard_output()
    elif error.filename is None:
        raise error
    return operation_failed(f"{error.filename or 'output'}: {error.strerror}")


def discard_output() -> None:
    """Send stdout nowhere: Python flushes it on exit and would report the same error again."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
