"""Files and folders that a person names for what a task writes."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator

from kiln.base import vocabulary
from kiln.base.errors import KilnError

# What is wrong with the name itself, and not with the disk or with permissions.
_OF_THE_NAME = {
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.EEXIST,
    errno.ENAMETOOLONG,
    errno.ELOOP,
}


@contextlib.contextmanager
def named_by(flag: str) -> Iterator[None]:
    """While inside, a name that the flag gave and that cannot be written is invalid input.

    Raises KilnError (exit status 2) in the place of such an OSError.
    """
    try:
        yield
    except OSError as error:
        if error.filename is None or error.errno not in _OF_THE_NAME:
            raise
        raise KilnError(
            f"{flag}: {vocabulary.shown(str(error.filename))}: {error.strerror}",
            hint="name a file or folder that can be made there",
        ) from None
