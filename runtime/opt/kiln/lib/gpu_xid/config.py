"""The configuration: JSON, because every Python has a reader for it. See docs/telemetry-xid.md."""

from . import lean
from .catalogue import SEVERITIES

PATH = "/etc/kiln/gpu-xid.json"

DEFAULTS = {
    "log": "/var/log/gpuevent.log",
    "format": "json",
    "max_bytes": 10485760,
    "keep": 5,
    "queue_lines": 4096,
    "fold_window_s": 1,
    "previous_boot_lines": 0,
    "severity": {},
    "hooks": {},
}
HOOK_DEFAULTS = {
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
}


_FRACTIONS = ("fold_window_s", "timeout_s")


class BadConfigError(ValueError):
    """One sentence: file, key, what is wrong, what would be right."""


def load(path=PATH, missing_ok=True, **overrides):
    """The configuration as a dict with all keys. Raises BadConfigError."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except FileNotFoundError:
        if not missing_ok:
            raise BadConfigError("%s: no such file" % path) from None
        text = "{}"
    except (OSError, ValueError) as error:
        raise BadConfigError("%s: %s" % (path, error)) from None
    try:
        given = lean.loads(text)
    except ValueError:
        raise BadConfigError("%s: not valid JSON: %s" % (path, _json_trouble(text))) from None
    given = check(given, path)
    given.update({key: value for key, value in overrides.items() if value is not None})
    return check(given, "command line")


def _json_trouble(text):
    """What is wrong and where. Only now is `json` worth its memory."""
    import json

    try:
        json.loads(text)
    except ValueError as error:
        return str(error)
    return "cannot be read"


def check(given, where):
    """`given` completed with the defaults. Raises BadConfigError."""
    config = _complete(given, DEFAULTS, where, "")
    config["hooks"] = _complete(config["hooks"], HOOK_DEFAULTS, where, "hooks.")
    if config["format"] not in ("json", "raw"):
        raise BadConfigError(
            '%s: format is %r; it is "json" (one object a line) or "raw" (the kernel line)'
            % (where, config["format"])
        )
    if not config["log"].startswith("/"):
        raise BadConfigError("%s: log is %r; give an absolute path" % (where, config["log"]))
    for key, severity in config["severity"].items():
        if not _is_code(key):
            raise BadConfigError('%s: severity has %r; a key looks like "xid 63"' % (where, key))
        _known_severity(severity, where, "severity.%s" % key)
    hooks = config["hooks"]
    for severity in hooks["severity"]:
        _known_severity(severity, where, "hooks.severity")
    for code in hooks["codes"]:
        if not _is_code(code):
            raise BadConfigError(
                '%s: hooks.codes has %r; a code looks like "xid 63"' % (where, code)
            )
    if not hooks["dir"].startswith("/"):
        raise BadConfigError("%s: hooks.dir is %r; give an absolute path" % (where, hooks["dir"]))
    return config


def _is_code(text):
    """`xid 63`, as events are looked up: no other spelling of the number would ever match."""
    kind, _, code = text.partition(" ") if isinstance(text, str) else ("", "", "")
    plain = 0 < len(code) < 10 and code.isdigit() and str(int(code)) == code
    return kind in ("xid", "sxid") and plain


def _known_severity(severity, where, key):
    if severity not in SEVERITIES:
        raise BadConfigError(
            "%s: %s is %r; the severities are %s" % (where, key, severity, ", ".join(SEVERITIES))
        )


def _complete(given, defaults, where, prefix):
    if not isinstance(given, dict):
        raise BadConfigError(
            "%s: %s must be a JSON object" % (where, prefix.rstrip(".") or "the file")
        )
    for key in given:
        if key not in defaults:
            raise BadConfigError(
                "%s: unknown key %r; the keys are %s" % (where, prefix + key, ", ".join(defaults))
            )
    full = dict(defaults, **given)
    for key, value in full.items():
        low, high, unit = _LIMITS.get(key, (None, None, None))
        default = defaults[key]
        right = type(value) is type(default) or (key in _FRACTIONS and type(value) is float)
        if not right:
            kind = {dict: "an object", list: "a list", str: "a text", bool: "true or false"}
            number = "a number" if key in _FRACTIONS else "a whole number"
            raise BadConfigError(
                "%s: %s is %r; it must be %s"
                % (where, prefix + key, value, kind.get(type(default), number))
            )
        if low is not None and not low <= value <= high:
            raise BadConfigError(
                "%s: %s is %r; it lies between %s and %s %s"
                % (where, prefix + key, value, low, high, unit)
            )
    return full
