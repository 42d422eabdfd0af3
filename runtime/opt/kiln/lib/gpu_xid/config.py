"""The configuration: JSON, because Python has no YAML reader. See docs/telemetry-xid.md."""

from __future__ import annotations

import json
import os

from .catalogue import SEVERITIES

TYPE_CHECKING = False  # the module typing would cost the daemon 0.7 MiB
if TYPE_CHECKING:
    from typing import Any

PATH = "/etc/kiln/gpu-xid.json"

DEFAULTS: dict[str, Any] = {
    "log": "/var/log/gpuevent.log",
    "format": "json",
    "max_bytes": 10485760,
    "keep": 5,
    "queue_lines": 4096,
    "fold_window_s": 1,
    "previous_boot_lines": 0,
    "severity": {},
    "restarts": {},
    "hooks": {},
}
RESTART_DEFAULTS: dict[str, Any] = {"replace_after": 2, "window_h": 72}
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
    "keep": (0, 100, "files"),
    "queue_lines": (1, 1000000, "lines"),
    "fold_window_s": (0, 3600, "seconds (0: off)"),
    "previous_boot_lines": (0, 100000, "journal lines (0: off)"),
    "timeout_s": (1, 3600, "seconds"),
    "replace_after": (1, 100, "restarts"),
    "window_h": (1, 8760, "hours"),
}


_FRACTIONS = ("fold_window_s", "timeout_s")


class BadConfigError(ValueError):
    """One sentence: file, key, what is wrong, what is valid."""


def load(path: str = PATH, missing_ok: bool = True, **overrides: str | None) -> dict[str, Any]:
    """The configuration as a dict with all keys; `overrides` that are not None replace its values.

    missing_ok: a file that does not exist counts as empty. Raises BadConfigError.
    """
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except FileNotFoundError:
        if not missing_ok:
            raise BadConfigError(f"{path}: no such file") from None
        text = "{}"
    except (OSError, ValueError) as error:
        raise BadConfigError(f"{path}: {error}") from None
    try:
        given = json.loads(text)
    except ValueError as error:
        raise BadConfigError(f"{path}: not valid JSON: {error}") from None
    except RecursionError:
        raise BadConfigError(f"{path}: not valid JSON: nested too deeply") from None
    given = check(given, path)
    given.update({key: value for key, value in overrides.items() if value is not None})
    return check(given, "command line")


def remember(conf: dict[str, Any], path: str) -> None:
    """Keep a valid configuration for a start with an invalid one; a full disk is not an error."""
    text = json.dumps(conf)
    try:
        with open(path, encoding="utf-8") as file:
            if file.read() == text:
                return
    except (OSError, ValueError):
        pass
    try:
        with open(path + ".new", "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(path + ".new", path)
    except OSError:
        pass


def check(given: Any, where: str) -> dict[str, Any]:
    """`given` completed with the defaults; `where` is named in errors. Raises BadConfigError."""
    config = _complete(given, DEFAULTS, where, "")
    config["restarts"] = _complete(config["restarts"], RESTART_DEFAULTS, where, "restarts.")
    config["hooks"] = _complete(config["hooks"], HOOK_DEFAULTS, where, "hooks.")
    if config["format"] not in ("json", "raw"):
        raise BadConfigError(
            '{}: format is {!r}; it must be "json" (one object per line) or "raw" (the kernel '
            "line)".format(where, config["format"])
        )
    if not _is_absolute(config["log"]):
        raise BadConfigError(
            "{}: log is {!r}; it must be an absolute path".format(where, config["log"])
        )
    for key, severity in config["severity"].items():
        if not _is_code(key):
            raise BadConfigError(f'{where}: severity has {key!r}; a key looks like "xid 63"')
        _known_severity(severity, where, f"severity.{key}")
    hooks = config["hooks"]
    for severity in hooks["severity"]:
        _known_severity(severity, where, "hooks.severity")
    for code in hooks["codes"]:
        if not _is_code(code):
            raise BadConfigError(f'{where}: hooks.codes has {code!r}; a code looks like "xid 63"')
    if not _is_absolute(hooks["dir"]):
        raise BadConfigError(
            "{}: hooks.dir is {!r}; it must be an absolute path".format(where, hooks["dir"])
        )
    return config


def _is_absolute(path: str) -> bool:
    """Whether this is an absolute path that a file can have: without NUL and halves of characters,
    which JSON can write."""
    try:
        name = os.fsencode(path)
    except ValueError:
        return False
    return name.startswith(b"/") and b"\0" not in name


def _is_code(text: object) -> bool:
    """Whether this is `xid 63`, the spelling in which events are looked up (not `xid 063`)."""
    kind, _, code = text.partition(" ") if isinstance(text, str) else ("", "", "")
    # isdecimal: int() refuses other digits, such as a superscript two.
    plain = 0 < len(code) < 10 and code.isdecimal() and str(int(code)) == code
    return kind in ("xid", "sxid") and plain


def _known_severity(severity: object, where: str, key: str) -> None:
    if severity not in SEVERITIES:
        raise BadConfigError(
            "{}: {} is {!r}; the severities are {}".format(
                where, key, severity, ", ".join(SEVERITIES)
            )
        )


def _complete(given: Any, defaults: dict[str, Any], where: str, prefix: str) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise BadConfigError(
            "{}: {} must be a JSON object".format(where, prefix.rstrip(".") or "the file")
        )
    for key in given:
        if key not in defaults:
            raise BadConfigError(
                "{}: unknown key {!r}; the keys are {}".format(
                    where, prefix + key, ", ".join(defaults)
                )
            )
    full: dict[str, Any] = dict(defaults, **given)
    for key, value in full.items():
        low, high, unit = _LIMITS.get(key, (None, None, None))
        default = defaults[key]
        valid = type(value) is type(default) or (key in _FRACTIONS and type(value) is float)
        if not valid:
            kind = {dict: "an object", list: "a list", str: "a string", bool: "true or false"}
            number = "a number" if key in _FRACTIONS else "a whole number"
            raise BadConfigError(
                f"{where}: {prefix + key} is {value!r}; it must be "
                f"{kind.get(type(default), number)}"
            )
        if low is not None and not low <= value <= high:
            raise BadConfigError(
                f"{where}: {prefix + key} is {value!r}; it must be between {low} and {high} {unit}"
            )
    return full
