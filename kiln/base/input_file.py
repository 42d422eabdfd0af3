"""Files that somebody else wrote: amis.yaml, the lock, records, states of runs.

A name may lead to a file without an end (/dev/zero) or to one of gigabytes, by mistake or not: to
read it whole would take the machine's memory before anything could be said about it.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

# The largest of them, a record with an image's packages, has some megabytes.
LONGEST = 64 << 20


def read_bytes(path: Path) -> bytes:
    """What is in a file. Raises OSError, also for one of more than 64 MiB."""
    with path.open("rb") as file:
        content = file.read(LONGEST + 1)
    if len(content) > LONGEST:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
    return content


def read_text(path: Path) -> str:
    """The same as text, with every line's end as a newline. Raises UnicodeDecodeError too."""
    return read_bytes(path).decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")


def why_unreadable(error: OSError | UnicodeDecodeError) -> str:
    """Why a file cannot be read, for a message: an error of `read_bytes` or `read_text`."""
    if isinstance(error, UnicodeDecodeError):
        line = error.object.count(b"\n", 0, error.start) + 1
        return f"byte {error.object[error.start]:#04x} in line {line} is not UTF-8"
    if isinstance(error, IsADirectoryError):
        return "it is a folder, not a file"
    if error.errno == errno.EFBIG:
        return f"it is larger than {LONGEST >> 20} MiB"
    return str(error.strerror or error)
