"""Command documents: what a document with parameters does on a platform.

A document of schema 2.2 has steps. The lab runs those of `aws:runShellScript`,
`aws:downloadContent` from S3 and `aws:configurePackage`; a document with others is refused when it
is sent, instead of a success that did nothing.

https://docs.aws.amazon.com/systems-manager/latest/userguide/documents-schemas-features.html
https://docs.aws.amazon.com/systems-manager/latest/userguide/documents-command-ssm-plugin-reference.html
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from moto.ssm.exceptions import SSMException

from kiln.base import yaml_files
from kiln.base.errors import KilnError

Content = Mapping[str, Any]
DEFAULT_TIMEOUT = 3600
SHELL, PACKAGE = "aws:runShellScript", "aws:configurePackage"
# As AWS documents it, without a working directory:
# https://docs.aws.amazon.com/systems-manager/latest/userguide/run-command.html
RUN_SHELL_SCRIPT: Content = {
    "schemaVersion": "2.2",
    "parameters": {
        "commands": {"type": "StringList", "minItems": 1},
        "executionTimeout": {"type": "String", "default": str(DEFAULT_TIMEOUT)},
    },
    "mainSteps": [
        {
            "action": SHELL,
            # Its one step has the name of its plugin, which invocations show.
            "name": SHELL,
            "inputs": {
                "runCommand": "{{ commands }}",
                "timeoutSeconds": "{{ executionTimeout }}",
            },
        }
    ],
}
_INSTALL = Path(__file__).parent / "scripts" / "configure-package.sh"
_REFERENCE = re.compile(r"\{\{\s*([A-Za-z0-9_]+)\s*\}\}")
Parameters = Mapping[str, "str | list[str]"]

_DOWNLOAD = "aws:downloadContent"
_SHELL_INPUTS = {"runCommand", "timeoutSeconds", "onFailure"}


@dataclass(frozen=True)
class Step:
    """A step of a document, ready to run. `runs` is False where its platform is another."""

    name: str
    script: str
    timeout: int
    runs: bool
    on_failure: str  # "", "exit"
    action: str = SHELL
    inputs: Mapping[str, Any] = field(default_factory=dict)


def parse(text: str) -> Content:
    """A document's content, JSON or YAML. Raises SSMException."""
    try:
        content = json.loads(text)
    except ValueError:
        try:
            content = yaml_files.parse_plain(text, "the document")
        except KilnError:
            content = None
    if not isinstance(content, dict):
        raise SSMException("InvalidDocumentContent", "The content of the document is not valid")
    return content


def values(content: Content, request: Mapping[str, list[str]]) -> dict[str, str | list[str]]:
    """The value of each parameter of a document. Raises SSMException for what it does not take."""
    declared = content.get("parameters") or {}
    unknown = sorted(set(request) - set(declared))
    if unknown:
        names = ", ".join(unknown)
        raise SSMException(
            "InvalidParameters", f"Parameters {{{names}}} are not defined in the document"
        )
    filled: dict[str, str | list[str]] = {}
    for name, of in declared.items():
        argument = request.get(name)
        if argument is None and "default" not in of:
            raise SSMException("InvalidParameters", f"Parameter {name} is required")
        filled[name] = _value(name, of, argument)
    return filled


def _value(name: str, of: Content, argument: list[str] | None) -> str | list[str]:
    kind = of.get("type", "String")
    if argument is None:
        default = of["default"]
        return [str(d) for d in default] if isinstance(default, list) else _text(default)
    if len(argument) < int(of.get("minItems", 0)):
        raise SSMException("InvalidParameters", f"Parameter {name} has too few items")
    if kind != "StringList" and len(argument) != 1:
        raise SSMException("InvalidParameters", f"Parameter {name} takes one value")
    for value in argument:
        if "allowedValues" in of and value not in map(_text, of["allowedValues"]):
            raise SSMException(
                "InvalidParameters", f"Parameter {name}: {value} is not an allowed value"
            )
        if "allowedPattern" in of and not re.fullmatch(of["allowedPattern"], value):
            raise SSMException(
                "InvalidParameters",
                f"Parameter {name} does not match the pattern {of['allowedPattern']}",
            )
    return list(argument) if kind == "StringList" else argument[0]


def steps(content: Content, parameters: Parameters) -> tuple[Step, ...]:
    """The steps of a document on Linux. Raises SSMException."""
    if content.get("schemaVersion") != "2.2":
        raise SSMException(
            "UnsupportedOperation",
            f"AMI Kiln lab: documents of schema {content.get('schemaVersion')} are not implemented",
        )
    return tuple(_step(step, parameters) for step in content.get("mainSteps", []))


def _step(step: Content, parameters: Parameters) -> Step:
    action, inputs = step.get("action", ""), step.get("inputs") or {}
    wanted = (step.get("precondition") or {}).get("StringEquals") or []
    filled = [_filled(value, parameters) for value in wanted]
    sides = ["Linux" if value == "platformType" else str(value) for value in filled]
    runs = len(set(sides)) <= 1
    if action not in (SHELL, PACKAGE, _DOWNLOAD):
        raise SSMException("UnsupportedOperation", f"AMI Kiln lab: {action} is not implemented")
    if action == SHELL and not set(inputs) <= _SHELL_INPUTS:
        others = ", ".join(sorted(set(inputs) - _SHELL_INPUTS))
        raise SSMException("UnsupportedOperation", f"AMI Kiln lab: {others} of {action}")
    step_inputs = {name: _filled(value, parameters) for name, value in inputs.items()}
    if action == _DOWNLOAD and step_inputs.get("sourceType") != "S3":
        source = step_inputs.get("sourceType")
        raise SSMException(
            "UnsupportedOperation", f"AMI Kiln lab: {action} from {source} is not implemented"
        )
    return Step(
        name=str(step.get("name", action)),
        script=_script(action, step_inputs),
        timeout=int(str(step_inputs.get("timeoutSeconds", "")) or DEFAULT_TIMEOUT),
        runs=runs,
        on_failure=str(inputs.get("onFailure", "")),
        action=action,
        inputs=step_inputs if action == _DOWNLOAD else {},
    )


def _script(action: str, inputs: Content) -> str:
    """The lines that a step runs; "" if it is not a script."""
    if action == PACKAGE:
        values = {
            "action": inputs.get("action", "Install"),
            "way": inputs.get("installationType", ""),
            "name": inputs.get("name", ""),
            "version": "" if inputs.get("version") == "latest" else inputs.get("version", ""),
        }
        set_before = [f"{name}={shlex.quote(str(value))}" for name, value in values.items()]
        return "\n".join([*set_before, _INSTALL.read_text(encoding="utf-8")])
    lines = inputs.get("runCommand", [])
    return "\n".join(lines) if isinstance(lines, list) else str(lines)


def _filled(value: Any, parameters: Parameters) -> Any:
    """A value of a document with its parameters in place; a list parameter alone becomes a list."""
    if isinstance(value, dict):
        return {name: _filled(item, parameters) for name, item in value.items()}
    if isinstance(value, list):
        parts: list[Any] = []
        for item in value:
            filled = _filled(item, parameters)
            parts += filled if isinstance(filled, list) else [filled]
        return parts
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
