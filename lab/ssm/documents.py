"""Command documents: what a document with parameters does on a platform.

A document of schema 2.2 has steps. The lab runs those of `aws:runShellScript`; a document with
others is refused when it is sent, instead of a success that did nothing.

https://docs.aws.amazon.com/systems-manager/latest/userguide/documents-schemas-features.html
https://docs.aws.amazon.com/systems-manager/latest/userguide/documents-command-ssm-plugin-reference.html
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kiln.base import plain_yaml
from kiln.base.errors import KilnError
from lab.ssm.errors import SsmError

DEFAULT_TIMEOUT = 3600
_SHELL = "aws:runShellScript"
_REFERENCE = re.compile(r"\{\{\s*([A-Za-z0-9_]+)\s*\}\}")
Content = Mapping[str, Any]
Parameters = Mapping[str, "str | list[str]"]

# Parameters as AWS documents them; `aws ssm get-document --name AWS-RunShellScript` shows them.
# https://docs.aws.amazon.com/systems-manager/latest/userguide/run-command.html
OF_AWS: dict[str, Content] = {
    # Its one step has the name of its plugin: invocations show PluginName aws:runShellScript.
    "AWS-RunShellScript": {
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
                "action": _SHELL,
                "name": _SHELL,
                "inputs": {
                    "runCommand": "{{ commands }}",
                    "workingDirectory": "{{ workingDirectory }}",
                    "timeoutSeconds": "{{ executionTimeout }}",
                },
            }
        ],
    },
}


@dataclass(frozen=True)
class Step:
    """A step of a document, ready to run. `runs` is False where its platform is another."""

    name: str
    script: str
    folder: str
    timeout: int
    runs: bool
    on_failure: str  # "", "exit", "successAndExit"
    always: bool  # finallyStep: it runs after a failure too


def parse(text: str) -> Content:
    """A document's content, JSON or YAML. Raises SsmError."""
    try:
        content = json.loads(text)
    except ValueError:
        try:
            content = plain_yaml.parse_plain(text, "the document")
        except KilnError:
            content = None
    if not isinstance(content, dict):
        raise SsmError("InvalidDocumentContent", "The content of the document is not valid")
    return content


def values(content: Content, asked: Mapping[str, list[str]]) -> dict[str, str | list[str]]:
    """The value of each parameter of a document. Raises SsmError for what it does not take."""
    declared = content.get("parameters") or {}
    unknown = sorted(set(asked) - set(declared))
    if unknown:
        names = ", ".join(unknown)
        raise SsmError(
            "InvalidParameters", f"Parameters {{{names}}} are not defined in the document"
        )
    found: dict[str, str | list[str]] = {}
    for name, of in declared.items():
        given = asked.get(name)
        if given is None and "default" not in of:
            raise SsmError("InvalidParameters", f"Parameter {name} is required")
        found[name] = _value(name, of, given)
    return found


def _value(name: str, of: Content, given: list[str] | None) -> str | list[str]:
    kind = of.get("type", "String")
    if given is None:
        default = of["default"]
        return [str(d) for d in default] if isinstance(default, list) else _text(default)
    if len(given) < int(of.get("minItems", 0)):
        raise SsmError("InvalidParameters", f"Parameter {name} has too few items")
    if kind != "StringList" and len(given) != 1:
        raise SsmError("InvalidParameters", f"Parameter {name} takes one value")
    for value in given:
        if "allowedValues" in of and value not in map(_text, of["allowedValues"]):
            raise SsmError(
                "InvalidParameters", f"Parameter {name}: {value} is not an allowed value"
            )
        if "allowedPattern" in of and not re.fullmatch(of["allowedPattern"], value):
            raise SsmError(
                "InvalidParameters",
                f"Parameter {name} does not match the pattern {of['allowedPattern']}",
            )
    return list(given) if kind == "StringList" else given[0]


def steps(content: Content, parameters: Parameters, platform: str) -> tuple[Step, ...]:
    """The steps of a document on a platform (`Linux`). Raises SsmError."""
    if content.get("schemaVersion") != "2.2":
        raise SsmError(
            "UnsupportedOperation",
            f"AMI Kiln lab: documents of schema {content.get('schemaVersion')} are not implemented",
        )
    return tuple(_step(step, parameters, platform) for step in content.get("mainSteps", []))


def _step(step: Content, parameters: Parameters, platform: str) -> Step:
    action, inputs = step.get("action", ""), step.get("inputs") or {}
    if action != _SHELL:
        raise SsmError("UnsupportedOperation", f"AMI Kiln lab: {action} is not implemented")
    lines = _filled(inputs.get("runCommand", []), parameters)
    wanted = (step.get("precondition") or {}).get("StringEquals") or []
    filled = [_filled(value, parameters) for value in wanted]
    sides = [platform if value == "platformType" else value for value in filled]
    timeout = _filled(inputs.get("timeoutSeconds", DEFAULT_TIMEOUT), parameters)
    return Step(
        name=str(step.get("name", action)),
        script="\n".join(lines) if isinstance(lines, list) else str(lines),
        folder=str(_filled(inputs.get("workingDirectory", ""), parameters)),
        timeout=int(str(timeout) or DEFAULT_TIMEOUT),
        runs=len(set(map(str, sides))) <= 1,
        on_failure=str(inputs.get("onFailure", "")),
        always=str(inputs.get("finallyStep", "")).lower() == "true",
    )


def _filled(value: Any, parameters: Parameters) -> Any:
    """A value of a document with its parameters in place; a list parameter alone becomes a list."""
    if isinstance(value, list):
        found: list[Any] = []
        for item in value:
            filled = _filled(item, parameters)
            found += filled if isinstance(filled, list) else [filled]
        return found
    if not isinstance(value, str):
        return value
    whole = _REFERENCE.fullmatch(value)
    if whole and whole[1] in parameters:
        return parameters[whole[1]]

    def put(reference: re.Match[str]) -> str:
        filled = parameters.get(reference[1], reference[0])
        return filled if isinstance(filled, str) else json.dumps(filled)

    return _REFERENCE.sub(put, value)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
