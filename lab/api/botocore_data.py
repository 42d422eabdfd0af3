"""Cache of botocore's files: read once in a process, not once for each session.

EC2's description is 3 MB of JSON, and which services there are is a list of 400 folders. moto makes
a session for each list of regions and for each request that it checks: that was half of the lab's
start. A session's clients share what it has read in the same way.
"""

from __future__ import annotations

import functools
from typing import Any

from botocore.loaders import JSONFileLoader, Loader

_load_file = JSONFileLoader.load_file
_list_services = Loader.list_available_services


@functools.cache
def _once(path: str) -> Any:
    return _load_file(JSONFileLoader(), path)


@functools.cache
def _listed_once(places: tuple[str, ...], type_name: str) -> Any:
    return _list_services(Loader(list(places), include_default_search_paths=False), type_name)


def read_once() -> None:
    """Share the data among all sessions of this process. Call it before moto is imported."""
    JSONFileLoader.load_file = _shared  # type: ignore[method-assign, assignment]
    Loader.list_available_services = _listed  # type: ignore[method-assign, assignment]


def _shared(_: JSONFileLoader, file_path: str) -> Any:
    return _once(file_path)


def _listed(loader: Loader, type_name: str) -> Any:
    return _listed_once(tuple(loader.search_paths), type_name)
