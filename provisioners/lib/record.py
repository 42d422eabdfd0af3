"""Writes the JSON records of a bake in /etc/kiln. Python 3.7 and later, standard library only."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any


def load(path: str, default: Any) -> Any:
    """The content of a JSON file, or `default` when it does not exist."""
    try:
        with open(path) as stream:
            return json.load(stream)
    except FileNotFoundError:
        return default


def save(path: str, data: Any) -> None:
    """Replaces a JSON file in one step."""
    with open(path + ".new", "w") as stream:
        json.dump(data, stream, indent=1, sort_keys=True)
        stream.write("\n")
    os.chmod(path + ".new", 0o644)
    os.replace(path + ".new", path)


def download(path: str, url: str, sha256: str, how: str, component: str) -> None:
    """Record a download; a URL has one entry.

    {"url", "sha256", "sha256_was": "locked"|"first-seen", "component"}
    """
    entries = [entry for entry in load(path, []) if entry["url"] != url]
    entries.append({"url": url, "sha256": sha256, "sha256_was": how, "component": component})
    save(path, sorted(entries, key=lambda entry: entry["url"]))


def component(path: str, *assignments: str) -> None:
    """Change a record: `key=value` sets a string, `key+=a b` adds words that a list lacks."""
    record = load(path, {"component": os.path.basename(path)[: -len(".json")]})
    for assignment in assignments:
        key, _, value = assignment.partition("=")
        if key.endswith("+"):
            words = record.setdefault(key[:-1], [])
            words.extend(word for word in value.split() if word not in words)
        else:
            record[key] = value
    save(path, record)


if __name__ == "__main__":
    commands: dict[str, Callable[..., None]] = {"download": download, "component": component}
    commands[sys.argv[1]](*sys.argv[2:])
