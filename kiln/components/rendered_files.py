"""The files of an image that are rendered, whichever component gives them, and those of `runtime/`:
none may be in the place of another, but an overlay's `runtime/` over AMI Kiln's."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path, PurePosixPath

from kiln.base import paths
from kiln.base.findings import Finding
from kiln.base.overlay import component_files, own_files, shown_path
from kiln.base.recipe import Recipe
from kiln.components.component import Step

RECIPE_JSON = "etc/kiln/recipe.json"
AGENT_ETC = "opt/aws/amazon-cloudwatch-agent/etc"
RULE = "rendered-files"
_OTHER_NAME = "give the file another name"
_KILN = paths.ROOT / "kiln"


def installed_agent_files(recipe: Recipe) -> dict[str, str]:
    """The CloudWatch agent's configuration: path on the image → text."""
    if "cloudwatch-agent" not in recipe.components:
        return {}
    from kiln import telemetry

    settings = telemetry.Telemetry(**recipe.telemetry)
    texts = telemetry.agent_files(settings, recipe.driver, recipe.cloudwatch_agent)
    return {f"{AGENT_ETC}/{path}": text for path, text in texts.items()}


def name_problems(recipe: Recipe, steps: Sequence[Step]) -> Iterator[Finding]:
    """Files of an overlay in the place of a file, or of a folder, that the image has already; of
    any component, files in the place of a folder."""
    by_name, ours = _givers(recipe, steps), _ours()
    of_overlays = [pair for top in own_files("runtime") for pair in _shipped(top).items()]
    every = {*by_name, *ours, *(name for name, _ in of_overlays)}
    files = {step.name: component_files(step.name)[-1] for step in steps}
    overlays = {name for name, file in files.items() if not file.is_relative_to(_KILN)}
    fixed = {*ours, *(name for name, who in by_name.items() if not overlays.issuperset(who))}
    for step in steps:
        for name in step.files:
            problem, hint = _needed_as_folder(name, every), _OTHER_NAME
            if name.startswith("/") or ".." in PurePosixPath(name).parts:
                # Rendered files of that name would be written outside the folder of the HCL.
                problem = ": write it as below /, such as etc/acme/banner"
            if not problem and step.name in overlays:
                others = [giver for giver in by_name[name] if giver != step.name]
                problem = _below_a_file(name, fixed) or _taken(others)
                if not problem and name in ours:
                    problem = ", which is a file of AMI Kiln's runtime/"
                    hint = "put yours into runtime/ of the overlay: it takes that one's place"
            if problem:
                yield _finding(files[step.name], f"files(recipe) names {name!r}{problem}", hint)
    for name, file in of_overlays:
        problem = _needed_as_folder(name, every) or _below_a_file(name, fixed)
        problem, hint = problem or _taken(by_name.get(name, [])), _OTHER_NAME
        if problem:
            yield _finding(file, f"on the image this is {name!r}{problem}", hint)


def replaced_files() -> dict[str, str]:
    """Each file of AMI Kiln's runtime/ that an overlay's takes the place of → that one, as messages
    name them."""
    ours = _ours()
    return {
        shown_path(ours[name]): shown_path(file)
        for top in own_files("runtime")
        for name, file in _shipped(top).items()
        if name in ours
    }


def _givers(recipe: Recipe, steps: Iterable[Step]) -> dict[str, list[str]]:
    """Each rendered file's name → who gives it: components, or "" for AMI Kiln itself."""
    by_name: dict[str, list[str]] = {RECIPE_JSON: [""]}
    for name in installed_agent_files(recipe):
        by_name.setdefault(name, []).append("cloudwatch-agent")
    for step in steps:
        for name in step.files:
            by_name.setdefault(name, []).append(step.name)
    return by_name


def _needed_as_folder(name: str, others: Iterable[str]) -> str:
    """Why a file cannot have this name: another one is in a folder of that name; or empty."""
    inside = min((other for other in others if other.startswith(f"{name}/")), default="")
    return f", a folder that {inside} needs" if inside else ""


def _below_a_file(name: str, others: Collection[str]) -> str:
    """Why a file cannot have this name: another one has that of its folder; or empty."""
    above = [str(path) for path in PurePosixPath(name).parents if str(path) in others]
    return f", and {above[0]} is a file" if above else ""


def _taken(givers: Sequence[str]) -> str:
    """Why a file cannot have this name: it is rendered already; empty if nobody gives it."""
    if not givers:
        return ""
    return f", which {f'component {givers[0]}' if givers[0] else 'AMI Kiln'} renders already"


@cache
def _ours() -> Mapping[str, Path]:
    return _shipped(paths.RUNTIME)


def _shipped(top: Path) -> Mapping[str, Path]:
    """The files of a runtime/: path on the image → file."""
    return {
        path.relative_to(top).as_posix(): path
        for path in sorted(top.rglob("*"))
        if path.is_file() and not paths.is_compiled(path)
    }


def _finding(file: Path, message: str, hint: str) -> Finding:
    return Finding("error", RULE, message, hint, file=shown_path(file))
