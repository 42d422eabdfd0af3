"""The configuration: JSON, because Python has no YAML reader. See docs/telemetry-xid.md."""

from __future__ import annotations

import json
import os

from .catalog import SEVERITIES

TYPE_CHECKING = False  # the module typing would cost the monitor 0.7 MiB
if TYPE_CHECKING:
    from typing import Any

PATH = "/etc/kiln/gpu-xid.json"

DEFAULTS: dict[str, Any] = {
    "log": "/var/log/gpuevent.log",
    "max_bytes": 10485760,
    "keep": 5,
    "fold_window_s": 1,
    "severity": {},
    "hooks": {},
}
HOOK_DEFAULTS: dict[str, Any] = {
    "dir": "/etc/kiln/xid.d",
    "severity": ["fatal"],
    "codes": [],
    "injected": False,
    "timeout_s": 60,
}
# name -> (smallest, largest, unit)
_LIMITS = {
    "max_bytes": (4096, 1 << 40, "bytes"),
    "keep": (1, 100, "files"),
    "fold_window_s": (0, 3600, "seconds (0: off)"),
    "timeout_s": (1, 3600, "seconds"),
}
_FRACTIONS = ("fold_window_s", "timeout_s")
_KINDS = {dict: "an object", list: "a list", str: "a string", bool: "true or false"}


class BadConfigError(ValueError):
    """One sentence: file, key, what is wrong, what is valid."""


def effective(path: str = PATH) -> tuple[dict[str, Any], str | None]:
    """Return (the configuration with all keys, what is wrong with the file or None).

    With an invalid file all of the defaults hold: events must be logged and hooks run with a
    mistake in it too.
    """
    try:
        return load(path), None
    except BadConfigError as error:
        return check({}, path), str(error)


def load(path: str = PATH) -> dict[str, Any]:
    """Return the configuration with all keys. Without the file the defaults hold.

    Raises BadConfigError.
    """
    try:
        with open(path, encoding="utf-8") as file:
            given = json.load(file)
    except FileNotFoundError:
        given = {}
    except (OSError, UnicodeDecodeError) as error:
        raise BadConfigError(f"{path}: {error}") from None
    except (ValueError, RecursionError) as error:
        raise BadConfigError(f"{path}: not valid JSON: {error}") from None
    return check(given, path)


def check(given: Any, where: str) -> dict[str, Any]:
    """Complete `given` with the defaults; `where` is named in errors. Raises BadConfigError."""
    config = _complete(given, DEFAULTS, where, "")
    hooks = config["hooks"] = _complete(config["hooks"], HOOK_DEFAULTS, where, "hooks.")
    for key, path in (("log", config["log"]), ("hooks.dir", hooks["dir"])):
        if not path.startswith("/") or "\0" in path:
            raise BadConfigError(f"{where}: {key} is {path!r}; it must be an absolute path")
    for code in [*config["severity"], *hooks["codes"]]:
        if not _is_code(code):
            raise BadConfigError(f'{where}: {code!r} is not a code; a code looks like "xid 63"')
    for severity in [*config["severity"].values(), *hooks["severity"]]:
        if severity not in SEVERITIES:
            known = ", ".join(SEVERITIES)
            raise BadConfigError(f"{where}: {severity!r} is not a severity; they are {known}")
    config["log"] = os.path.realpath(config["log"])  # rotate where a link leads to
    return config


def _is_code(text: object) -> bool:
    """Return True if this is `xid 63`, the spelling in which events are looked up (not `xid
    063`)."""
    kind, _, code = text.partition(" ") if isinstance(text, str) else ("", "", "")
    plain = 0 < len(code) < 10 and code.isdecimal() and str(int(code)) == code
    return kind in ("xid", "sxid") and plain


def _complete(given: Any, defaults: dict[str, Any], where: str, prefix: str) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise BadConfigError(f"{where}: {prefix.rstrip('.') or 'the file'} must be a JSON object")
    for key in given:
        if key not in defaults:
            known = ", ".join(defaults)
            raise BadConfigError(f"{where}: unknown key {prefix + key!r}; the keys are {known}")
    full: dict[str, Any] = dict(defaults, **given)
    for key, value in full.items():
        default = defaults[key]
        if type(value) is not type(default) and not (key in _FRACTIONS and type(value) is float):
            number = "a number" if key in _FRACTIONS else "a whole number"
            kind = _KINDS.get(type(default), number)
            raise BadConfigError(f"{where}: {prefix + key} is {value!r}; it must be {kind}")
        low, high, unit = _LIMITS.get(key, (None, None, None))
        if low is not None and not low <= value <= high:
            raise BadConfigError(
                f"{where}: {prefix + key} is {value!r}; it must be between {low} and {high} {unit}"
            )
    return full
