"""The data of HCL files that were parsed before, in `.parsed` of the folder of the runs.

Parsing is a function of the text and of the parser alone, so an entry never becomes wrong: its name
is a digest of both.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kiln.base.paths import ROOT, build_dir

# A row has a file of its own, and each change of it makes another one; entries have 20 KB or so.
_MOST = 200


def parsed(text: str, parse: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
    """What `parse` makes of a text, from an earlier run if there was one. Raises what it raises.

    A folder that cannot be read or written costs time and nothing else.
    """
    folder = build_dir() / ".parsed"
    path = folder / f"{hashlib.sha256(_parser() + text.encode()).hexdigest()}.json"
    with contextlib.suppress(OSError, ValueError):
        earlier = json.loads(path.read_bytes())
        if isinstance(earlier, dict):
            return earlier
    data = parse(text)
    with contextlib.suppress(OSError):
        _keep(path, data)
    return data


@functools.cache
def _parser() -> bytes:
    """What decides how a text is parsed: the parser's version, and the module that calls it."""
    files = (ROOT / "requirements.lock", Path(__file__).with_name("hclfile.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).digest()


def _keep(path: Path, data: dict[str, Any]) -> None:
    path.parent.mkdir(exist_ok=True)  # a run makes the folder of the runs
    new = path.with_suffix(f".{os.getpid()}")
    new.write_text(json.dumps(data), encoding="utf-8")
    new.replace(path)  # whole or not at all
    others = sorted(path.parent.iterdir(), key=lambda file: file.stat().st_mtime)
    for old in others[:-_MOST]:
        old.unlink()
