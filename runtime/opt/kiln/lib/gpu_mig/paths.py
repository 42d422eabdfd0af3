"""The files of gpu-mig. `GPU_MIG_ROOT` puts all of them under another directory (for tests)."""

from __future__ import annotations

import contextlib
import json
import os
from typing import Any

CONFIG = "/etc/kiln/mig-config.json"
CONFIG_DIR = "/etc/kiln/mig-config.d"
DEFAULTS = "/etc/default/gpu-mig"
RUN_DIR = "/run/gpu-mig"  # gone after a reboot
STATE_DIR = "/var/lib/kiln/gpu-mig"  # survives a reboot


def at(path: str) -> str:
    """`path` below GPU_MIG_ROOT."""
    return os.environ.get("GPU_MIG_ROOT", "").rstrip("/") + path


def read(path: str, default: str = "") -> str:
    """The text of a small file, or `default` when it cannot be read."""
    try:
        with open(at(path), encoding="utf-8", errors="replace") as f:
            return f.read()
    except OSError:
        return default


def read_json(path: str) -> dict[str, Any]:
    """A JSON object written by `write_json`, or {}; a torn file counts as absent."""
    try:
        data = json.loads(read(path) or "{}")
    except (ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}


def write_json(path: str, data: Any) -> None:
    """Replaces the file in one step: a killed process leaves the old or the new content."""
    full = at(path)
    os.makedirs(os.path.dirname(full), exist_ok=True)
    with open(full + ".new", "w", encoding="utf-8") as f:
        json.dump(data, f, indent=1, sort_keys=True)
        f.flush()
        os.fsync(f.fileno())
    os.replace(full + ".new", full)


def remove(path: str) -> None:
    """Removes a file if it exists."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(at(path))
