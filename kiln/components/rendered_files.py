"""The files of an image that are rendered, whichever component gives them, and those of `runtime/`:
none may be in the place of another, but an overlay's `runtime/` over AMI Kiln's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path, PurePosixPath

from kiln.base import paths
from kiln.base.findings import Finding
from kiln.base.overlay import own_files, shown_path
from kiln.base.recipe import Recipe
from kiln.components.component import Step

RECIPE_JSON = "etc/kiln/recipe.json"
AGENT_ETC = "opt/aws/amazon-cloudwatch-agent/etc"
RULE = "rendered-files"


def installed_agent_files(recipe: Recipe) -> dict[str, str]:
    """The CloudWatch agent's configuration: path on the image → text."""
    if "cloudwatch-agent" not in recipe.components:
        return {}
    from kiln import telemetry

    settings = telemetry.Telemetry(**recipe.telemetry)
    texts = telemetry.agent_files(settings, recipe.driver, recipe.cloudwatch_agent)
    return {f"{AGENT_ETC}/{path}": text for path, text in texts.items()}


def name_problems(recipe: Recipe, steps: Sequence[Step]) -> Iterator[Finding]:
    """Errors where two give one file, or a component would write one outside of the image."""
    rendered = {RECIPE_JSON: "AMI Kiln"}
    rendered |= dict.fromkeys(installed_agent_files(recipe), "component cloudwatch-agent")
    ours = _shipped(paths.RUNTIME)
    for step in steps:
        for name in step.files:
            problem, hint = "", "give the file another name"
            if name.startswith("/") or ".." in PurePosixPath(name).parts:
                # Rendered files of that name would be written outside the folder of the HCL.
                problem = ": write it as below /, such as etc/acme/banner"
            elif name in rendered:
                problem = f", which {rendered[name]} renders already"
            elif name in ours:
                problem = ", which is a file of AMI Kiln's runtime/"
                hint = "put yours into runtime/ of the overlay: it takes that one's place"
            if problem:
                message = f"files(recipe) names {name!r}{problem}"
                yield Finding("error", RULE, message, hint, file=_source(step.name))
            rendered.setdefault(name, f"component {step.name}")
    for name, file in _overlay_files():
        problem, hint = "", "give the file another name"
        if name in rendered:
            problem = f", which {rendered[name]} renders already"
        if problem:
            message = f"on the image this is {name!r}{problem}"
            yield Finding("error", RULE, message, hint, file=shown_path(file))


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
    return [pair for top in own_files("runtime") for pair in _files_below(top).items()]


@cache
def _shipped(top: Path) -> Mapping[str, Path]:
    return _files_below(top)


def _files_below(top: Path) -> dict[str, Path]:
    """The files of a runtime/: path on the image → file."""
    return {
        path.relative_to(top).as_posix(): path
        for path in sorted(top.rglob("*"))
        if path.is_file() and not paths.is_compiled(path)
    }
