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
