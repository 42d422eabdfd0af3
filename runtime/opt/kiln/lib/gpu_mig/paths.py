"""Where gpu-mig reads and writes. `GPU_MIG_ROOT` puts all of it under another directory (tests)."""

from __future__ import annotations

import json
import os

CONFIG = "/etc/kiln/mig-config.yaml"
CONFIG_DIR = "/etc/kiln/mig-config.d"
DEFAULTS = "/etc/default/gpu-mig"
LEGACY_DEFAULTS = "/etc/default/mig"
RUN_DIR = "/run/gpu-mig"  # gone after a reboot
STATE_DIR = "/var/lib/kiln/gpu-mig"  # survives a reboot


def at(path):
    """`path` below GPU_MIG_ROOT."""
    return os.environ.get("GPU_MIG_ROOT", "").rstrip("/") + path


def read(path, default=""):
    """A small file's text, or `default` when it cannot be read."""
    try:
        with open(at(path), encoding="utf-8", errors="replace") as f:
            return f.read()
    except OSError:
        return default


def read_json(path):
    """A JSON object written by `write_json`, or {}; a torn file counts as absent."""
    try:
        found = json.loads(read(path) or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def write_json(path, data):
    """Replaces the file in one step, so that a kill leaves the old or the new one."""
    full = at(path)
    os.makedirs(os.path.dirname(full), exist_ok=True)
    with open(full + ".new", "w", encoding="utf-8") as f:
        json.dump(data, f, indent=1, sort_keys=True)
        f.flush()
        os.fsync(f.fileno())
    os.replace(full + ".new", full)


def program(name):
    """Where a program is on PATH, "" when it is not (shutil.which costs an import of 5 ms)."""
    for folder in os.environ.get("PATH", os.defpath).split(os.pathsep):
        found = os.path.join(folder, name)
        if os.path.isfile(found) and os.access(found, os.X_OK):
            return found
    return ""


def remove(path):
    """Removes a file that may not be there."""
    try:
        os.unlink(at(path))
    except FileNotFoundError:
        pass
