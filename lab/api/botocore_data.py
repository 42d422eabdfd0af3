"""What botocore reads is read once in a process, not once for each session.

EC2's description is 3 MB of JSON. moto makes a session for each list of regions and for each
request that it checks: that was half of the lab's start. A session's clients share what it has read
in the same way.
"""

from __future__ import annotations

import functools
from typing import Any

from botocore.loaders import JSONFileLoader

_load_file = JSONFileLoader.load_file


@functools.cache
def _once(path: str) -> Any:
    return _load_file(JSONFileLoader(), path)


def read_once() -> None:
    """Share the data among all sessions of this process. Call it before moto is imported."""
    JSONFileLoader.load_file = _shared  # type: ignore[method-assign, assignment]


def _shared(_: JSONFileLoader, file_path: str) -> Any:
    return _once(file_path)
