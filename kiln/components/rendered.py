"""Rendered parts of a component: the variables of its script, and files of the image.

A script declares its variables in its header, the leading comment block, in `#@` lines:

    #@ env      NAME  required|optional  description
    #@ download NAME  required|optional  description

`env` declares one variable. `download` declares NAME_URL, required or optional as written, and
NAME_SHA256, which is optional: the lock file may not know the hash yet. A required variable must
be given and must not be empty. provisioners/lib/kiln.sh (`kiln_env`) reads the same lines on the
build instance.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath

from kiln.base import paths
from kiln.base.errors import Finding, KilnError
from kiln.base.overlay import own_files, provisioner_file, shown_path
from kiln.base.paths import PROVISIONERS
from kiln.base.recipe import Recipe
from kiln.components.component import Step

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
def declared(script: Path) -> dict[str, Variable]:
    """The variables in a script's header by name. A `#@` line that is invalid, names a variable for
    the second time or stands below the header is an error at that line, and so is no script."""
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
        match = _LINE.fullmatch(line) if in_header else None
        found = _variables(match, number) if match else []
        if not found or any(variable.name in variables for variable in found):
            place = f"{shown_path(script)}:{number}"
            hint = f"each is declared once, in the comment block at the top: {_FORM}"
            raise KilnError(f"{place}: not a declaration: {line}", hint=hint)
        variables |= {variable.name: variable for variable in found}
    return variables


def _variables(match: re.Match[str], line: int) -> list[Variable]:
    name, required, text = match["name"], match["need"] == "required", match["text"].strip()
    if match["kind"] == "env":
        return [Variable(name, required, text, line)]
    return [
        Variable(f"{name}_URL", required, text, line),
        Variable(f"{name}_SHA256", False, f"its SHA-256, when it is known: {text}", line),
    ]


def common() -> dict[str, Variable]:
    """The variables that every script gets; the header of provisioners/lib/kiln.sh."""
    return declared(PROVISIONERS / "lib" / "kiln.sh")


def component_variables(step: Step) -> dict[str, str]:
    """The variables that a component gives its script for a recipe, apart from the common ones:
    name → value. A hash is empty, since it comes from the lock file; the value of a fingerprint is
    the name of its key."""
    variables = dict(step.env)
    for download in step.downloads:
        variables[f"{download.env}_URL"] = download.url
        variables[f"{download.env}_SHA256"] = ""
        if download.version:
            variables[f"{download.env}_VERSION"] = download.version
    return {**variables, **step.keys}


def environment_problems(step: Step) -> list[Finding]:
    """Errors where a component gives other variables than its script declares: those that the
    script does not declare, at its first line, and required ones that are missing or empty."""
    script, given = provisioner_file(step.name), component_variables(step)
    variables = declared(script)
    problems = [
        (1, f"gives {name}, which the script does not declare", f"add to its header: {_FORM}")
        for name in given
        if name not in variables
    ]
    problems += [
        (each.line, f"does not give {each.name}, which the script requires", each.description)
        for each in variables.values()
        if each.required and not given.get(each.name)
    ]
    file = shown_path(script)
    return [
        Finding("error", RULE, f"component {step.name} {what}", hint, file=file, line=line)
        for line, what, hint in problems
    ]


RECIPE_JSON = "etc/kiln/recipe.json"
AGENT_ETC = "opt/aws/amazon-cloudwatch-agent/etc"
_FILES_RULE = "rendered-files"


def installed_agent_files(recipe: Recipe) -> dict[str, str]:
    """The CloudWatch agent's configuration: path on the image → text."""
    if "cloudwatch-agent" not in recipe.components:
        return {}
    from kiln.telemetry.agent import agent_files
    from kiln.telemetry.settings import Telemetry

    settings = Telemetry(**recipe.telemetry)
    texts = agent_files(settings, recipe.driver, recipe.cloudwatch_agent)
    return {f"{AGENT_ETC}/{path}": text for path, text in texts.items()}


def name_problems(recipe: Recipe, steps: Sequence[Step]) -> Iterator[Finding]:
    """Errors where two give one file, or a component would write one outside of the image."""
    rendered = {RECIPE_JSON: "AMI Kiln"}
    rendered |= dict.fromkeys(installed_agent_files(recipe), "component cloudwatch-agent")
    ours = _shipped(paths.RUNTIME)
    for step in steps:
        for name in step.files:
            if name.startswith("/") or ".." in PurePosixPath(name).parts:
                # Rendered files of that name would be written outside the folder of the HCL.
                problem, hint = "", "write it as below /, such as etc/acme/banner"
            elif name in rendered:
                problem, hint = f", which {rendered[name]} renders already", "give it another name"
            elif name in ours:
                problem = ", which is a file of AMI Kiln's runtime/"
                hint = "put yours into runtime/ of the overlay: it takes that one's place"
            else:
                rendered[name] = f"component {step.name}"
                continue
            message = f"files(recipe) names {name!r}{problem}"
            yield Finding("error", _FILES_RULE, message, hint, file=_source(step.name))
    for name, file in _overlay_files():
        if name in rendered:
            message = f"on the image this is {name!r}, which {rendered[name]} renders already"
            hint = "give it another name"
            yield Finding("error", _FILES_RULE, message, hint, file=shown_path(file))


def _source(component: str) -> str:
    """The file of an overlay's component; the folder of AMI Kiln's own."""
    own = [path for path in own_files("components/*") if path.stem.replace("_", "-") == component]
    return shown_path(own[-1]) if own else "kiln/components"


def replaced_files() -> dict[str, str]:
    """Each file of AMI Kiln's runtime/ that an overlay's takes the place of → that one, as messages
    name them."""
    ours = _shipped(paths.RUNTIME)
    return {
        shown_path(ours[name]): shown_path(file) for name, file in _overlay_files() if name in ours
    }


def _overlay_files() -> list[tuple[str, Path]]:
    return [pair for top in own_files("runtime") for pair in paths.files_below(top).items()]


@cache
def _shipped(top: Path) -> Mapping[str, Path]:
    return paths.files_below(top)
