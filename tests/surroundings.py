"""The environment of the tests: the same for everybody who calls them.

Imported by the conftest of tests/unit and of tests/lab, not by that of a parent folder: the checks
of tests/ami run in the product's environment.
"""

from __future__ import annotations

import os
import re
import tempfile
import time
from datetime import date
from pathlib import Path

# Where programs, caches, certificates and the user manager are, which lab and which tests are run.
_KEPT = re.compile(
    r"(PATH|USER|LOGNAME|TMPDIR|PYENV_ROOT|PYENV_VERSION|PACKER_PLUGIN_PATH|XDG_RUNTIME_DIR)"
    r"|(SSL|REQUESTS|CURL|PIP|UV|PYTEST)_\w+"
    r"|\w+_(proxy|PROXY)"
    r"|KILN_(?!AWS_|BUILD_DIR|CWD|EXPECT|INDEXES|LAB_PORT|LAB_VENDORS|LOCK|MATRIX|MIRRORS|OVERLAY"
    r"|PACKER_DIR|RUN_ID|SSH_TIMEOUT)\w+"
)
TODAY = date(2026, 11, 21)
_HOME = tempfile.TemporaryDirectory(prefix="kiln-home-", ignore_cleanup_errors=True)

# Variables of callers, by whom or what sets them. None decides about a verdict, a list or a test.
CALLERS = {
    "dumb-terminal": {"TERM": "dumb", "FORCE_COLOR": "1"},
    "narrow-terminal": {"COLUMNS": "40", "LINES": "10"},
    "forced-colors": {"FORCE_COLOR": "1", "PY_COLORS": "1"},
    "no-colors": {"NO_COLOR": "1"},
    "ci": {"CI": "true", "GITHUB_ACTIONS": "true"},
    "unknown-profile": {"AWS_PROFILE": "nosuch", "AWS_DEFAULT_PROFILE": "nosuch"},
    "region": {"AWS_REGION": "eu-west-1"},
    "fips": {"AWS_USE_FIPS_ENDPOINT": "true", "AWS_CA_BUNDLE": "/nonexistent"},
    "proxies": dict.fromkeys(
        ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY"),
        "http://127.0.0.1:9",
    ),
    "turkish": {"LANG": "tr_TR.UTF-8", "LC_ALL": "tr_TR.UTF-8", "LANGUAGE": "tr"},
    "time-zone": {"TZ": "Asia/Kolkata"},
    "pytest-options": {"PYTEST_ADDOPTS": "-k is_enabled -x"},
    "python-options": {"PYTHONOPTIMIZE": "1"},
}
# A caller with all of them but those that choose the target or its region, or make bash complain.
ODD = {
    name: text
    for caller, variables in CALLERS.items()
    if caller not in ("unknown-profile", "region", "turkish")
    for name, text in variables.items()
}


def pythons() -> dict[str, str]:
    """The interpreters that pyenv has here and this user may run, by version: 3.7, 3.8, …"""
    versions = Path(os.environ.get("PYENV_ROOT", "/root/.pyenv"), "versions")
    if not os.access(versions, os.R_OK | os.X_OK):
        return {}
    found = {f"3.{minor}": versions.glob(f"3.{minor}.*/bin/python3") for minor in range(7, 15)}
    return {version: str(path) for version, paths in found.items() for path in paths}


def replace() -> None:
    """Replace the caller's environment; workers of xdist inherit that of their controller."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        kept = {name: text for name, text in os.environ.items() if _KEPT.fullmatch(name)}
        own = {"HOME": _HOME.name, "LC_ALL": "C.UTF-8", "TERM": "xterm-256color", "TZ": "UTC"}
        for name in ("no_proxy", "NO_PROXY"):
            own[name] = ",".join(filter(None, [kept.get(name), "127.0.0.1"]))
        os.environ.clear()
        os.environ.update(kept | own)
    time.tzset()
    os.umask(0o022)
