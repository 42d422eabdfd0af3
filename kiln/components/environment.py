"""The environment that a provisioner declares in its header, and whether a component gives it.

A header is the leading comment block of a script; its `#@` lines declare variables:

    #@ env      NAME  required|optional  description
    #@ download NAME  required|optional  description

`env` declares one variable. `download` declares NAME_URL, required or optional as written, and
NAME_SHA256, which is optional: the lock file may not know the hash yet. A required variable must
be given and must not be empty. provisioners/lib/kiln.sh (`kiln_env`) reads the same lines on the
build instance.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from kiln.base.errors import KilnError, nearest
from kiln.base.findings import Finding
from kiln.base.overlay import component_files, provisioner_file, shown_path
from kiln.base.paths import PROVISIONERS
from kiln.components.component import Step

LIBRARY = PROVISIONERS / "lib" / "kiln.sh"
RULE = "environment"
_FORM = "#@ env|download NAME required|optional description"
_LINE = re.compile(
    r"#@ +(?P<kind>env|download) +(?P<name>[A-Z][A-Z0-9_]*)"
    r" +(?P<need>required|optional) +(?P<text>\S.*)"
)


@dataclass(frozen=True)
class Variable:
    """One variable of a script's header: `required` means given and not empty; `line` from 1."""

    name: str
    required: bool
    description: str
    line: int


@cache
def declared(script: Path) -> tuple[Variable, ...]:
    """The variables in a script's header, in its order.

    Raises KilnError (exit status 2) with file and line for an invalid line, a name declared twice
    and a `#@` line below the header, and if there is no script.
    """
    if not script.is_file():
        raise KilnError(
            f"{shown_path(script)} does not exist",
            hint="each component has a provisioner of its name",
        )
    variables: dict[str, Variable] = {}
    in_header = True
    for number, line in enumerate(script.read_text("utf-8", "replace").splitlines(), 1):
        in_header = in_header and line.startswith("#")
        if not line.startswith("#@"):
            continue
        place = f"{shown_path(script)}:{number}"
        if not in_header:
            raise KilnError(
                f"{place}: `#@` is below the header, where nothing reads it",
                hint="move the line into the comment block at the top of the script",
            )
        match = _LINE.fullmatch(line)
        if match is None:
            raise KilnError(f"{place}: not a declaration: {line}", hint=f"expected: {_FORM}")
        for variable in _variables(match, number):
            if variable.name in variables:
                first = variables[variable.name].line
                raise KilnError(
                    f"{place}: {variable.name} is declared twice, first in line {first}",
                    hint="remove one of the two lines",
                )
            variables[variable.name] = variable
    return tuple(variables.values())


def common() -> tuple[Variable, ...]:
    """The variables that every script gets; the header of provisioners/lib/kiln.sh."""
    return declared(LIBRARY)


def component_variables(step: Step) -> dict[str, str]:
    """The variables that a component gives its script for a recipe, apart from the common ones:
    name → value. A hash is empty, since it comes from the lock file; the value of a fingerprint is
    the name of its key.
    """
    variables = dict(step.env)
    for download in step.downloads:
        variables[f"{download.env}_URL"] = download.url
        variables[f"{download.env}_SHA256"] = ""
        if download.version:
            variables[f"{download.env}_VERSION"] = download.version
    return {**variables, **step.keys}


def environment_problems(component: str, values: Mapping[str, str]) -> list[Finding]:
    """Findings where a component gives other variables than its script declares.

    `values`: name → value of what the component gives, without the common variables. A variable
    given and not declared is an error, and so is a required one that is missing or empty; an
    optional one that the component never gives is a warning. Each names the script and a line.
    Raises KilnError for a header that cannot be read.
    """
    script = provisioner_file(component)
    variables = {variable.name: variable for variable in declared(script)}
    common_names = {variable.name for variable in common()}
    findings = []
    # Variable that is not declared → the declared one that was meant.
    unknown = {name: nearest(name, variables) for name in values if name not in variables}
    for name in [name for name in unknown if name in common_names]:
        del unknown[name]
        message = f"component {component} gives {name}, which every script gets already"
        findings.append(_finding(script, 1, message, f"remove {name} from the component"))
    meant = [[name] for name, close in unknown.items() if close]
    # Those without a likely meaning are one message.
    for names in (*meant, [name for name, close in unknown.items() if not close]):
        if names:
            message = f"component {component} gives {' and '.join(names)}, which the script does"
            hint = f"did you mean {close}? " if (close := unknown[names[0]]) else ""
            hint += f"A new variable needs a line in the script's header: {_FORM}"
            findings.append(_finding(script, 1, f"{message} not declare", hint))
    for variable in variables.values():
        if variable.required and not values.get(variable.name):
            state = "gives an empty" if variable.name in values else "does not give"
            message = f"component {component} {state} {variable.name}, which the script requires"
            hint = f"{variable.name}: {variable.description}"
            findings.append(_finding(script, variable.line, message, hint))
    own = [variable for variable in variables.values() if variable.name not in common_names]
    return [
        *findings,
        *_never(component, own, values),
    ]


def _never(
    component: str, variables: Iterable[Variable], values: Mapping[str, str]
) -> Iterator[Finding]:
    """Warnings for optional variables that no row gets: the component's file does not name them."""
    missing = [entry for entry in variables if not (entry.required or entry.name in values)]
    # Few components leave one out, and their files are read for each row.
    files = component_files(component) if missing else []
    text = "".join(path.read_text(encoding="utf-8") for path in files)
    for variable in missing:
        download = re.sub("_(URL|SHA256|VERSION)$", "", variable.name)
        if any(name in text for name in (variable.name, f'"{download}"')):
            continue
        yield Finding(
            "warning",
            RULE,
            f"component {component} never gives {variable.name}, which its script declares",
            f"remove the line, or let the component give it: {variable.description}",
            file=shown_path(provisioner_file(component)),
            line=variable.line,
        )


def _variables(match: re.Match[str], line: int) -> list[Variable]:
    name, required, text = match["name"], match["need"] == "required", match["text"].strip()
    if match["kind"] == "env":
        return [Variable(name, required, text, line)]
    return [
        Variable(f"{name}_URL", required, text, line),
        Variable(f"{name}_SHA256", False, f"its SHA-256, when it is known: {text}", line),
    ]


def _finding(script: Path, line: int, message: str, hint: str) -> Finding:
    return Finding("error", RULE, message, hint, file=shown_path(script), line=line)
