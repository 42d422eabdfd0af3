"""A plugin of pytest: the checks of tests/ami look at a machine on which everything is empty.

KILN_EMPTY names a file with {"machine": …, "own": …}: what the collector says of a machine that has
none of the programs. Of what it says, only the names are kept. Every check runs, whether it belongs
to the image or not.
"""

from __future__ import annotations

import json
import os
import sys
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kiln import components
from kiln.base.paths import AMI_TESTS

sys.path.insert(0, str(AMI_TESTS))


class Record(dict[str, Any]):
    """What a provisioner recorded: empty lists."""

    def __missing__(self, name: str) -> list[Any]:
        return []


def emptied(value: dict[str, Any]) -> dict[str, Any]:
    """The same names with empty values of the same types."""
    return {name: type(item)() for name, item in value.items()}


def machine(found: dict[str, Any]) -> dict[str, Any]:
    """What the collector would say."""
    return {
        **emptied(found),
        "now": {**emptied(found["now"]), "kernel": {"running": ""}},
        "boot": emptied(found["boot"]),
        "files": dict.fromkeys(found["files"]),
        "text": dict.fromkeys(found["text"]),
        "commands": {name: {"rc": 127, "out": ""} for name in found["commands"]},
        "units": defaultdict(lambda: defaultdict(str)),
        "baked": {
            "kernel": {"boots": "", "running": ""},
            "components": {name: Record(component=name) for name in components.names()},
            **dict.fromkeys(("packages", "modules", "runfiles", "downloads", "held"), ()),
        },
    }


class Host:
    """Runs nothing; sudo works, and the boot is over."""

    def run(self, command: str, *_: str) -> SimpleNamespace:
        return SimpleNamespace(rc=127 * (not command.startswith("sudo")), stdout="", stderr="")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Put the empty machine in place of that which ssh would reach."""
    import harness

    found = json.loads(Path(os.environ["KILN_EMPTY"]).read_text())

    def run_python(host: Host, program: str, **arguments: str) -> dict[str, Any]:
        if "own_kernel" in arguments:
            return emptied(found["own"])
        return {"found": [], "seconds": 0} if arguments else machine(found["machine"])

    harness.run_python = run_python
    harness.testinfra = SimpleNamespace(get_host=lambda *_, **__: Host())


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    """Every check belongs to this image."""
    import applies

    applies.belongs = lambda *_: True
