"""The Command document of AWS that the lab runs: its parameters as AWS documents them.

https://docs.aws.amazon.com/systems-manager/latest/userguide/run-command.html
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

Content = Mapping[str, Any]
DEFAULT_TIMEOUT = 3600
SHELL, PACKAGE = "aws:runShellScript", "aws:configurePackage"
_SCRIPTS = Path(__file__).with_name("scripts")


def script(name: str) -> str:
    """A script of this folder."""
    return (_SCRIPTS / name).read_text(encoding="utf-8")


_RUN_SHELL_SCRIPT: Content = {
    "schemaVersion": "2.2",
    "parameters": {
        "commands": {"type": "StringList", "minItems": 1},
        "workingDirectory": {"type": "String", "default": ""},
        "executionTimeout": {
            "type": "String",
            "default": str(DEFAULT_TIMEOUT),
            "allowedPattern": "([1-9][0-9]{0,4})|(1[0-6][0-9]{4})|(17[0-1][0-9]{3})"
            "|(172[0-7][0-9]{2})|(172800)",
        },
    },
    "mainSteps": [
        {
            "action": SHELL,
            # Its one step has the name of its plugin: invocations show PluginName
            # aws:runShellScript.
            "name": SHELL,
            "inputs": {
                "runCommand": "{{ commands }}",
                "workingDirectory": "{{ workingDirectory }}",
                "timeoutSeconds": "{{ executionTimeout }}",
            },
        }
    ],
}
DOCUMENTS: dict[str, Content] = {"AWS-RunShellScript": _RUN_SHELL_SCRIPT}
