"""Recipe → the folder that Packer builds from: HCL and the files rendered for this image.

What is rendered is committed, so that a change to the matrix is reviewed as a change of HCL.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from kiln import components
from kiln.base.paths import PROVISIONERS, ROOT, RUNTIME, RUNTIME_VARIANTS, TEMPLATES
from kiln.base.paths import packer_dir as default_folder
from kiln.base.recipe import Recipe
from kiln.packer import hcl, program, template_values

if TYPE_CHECKING:
    from jinja2 import Environment

BUILD = "build.pkr.hcl"
PLUGINS = "plugins.pkr.hcl"
AGENT_ETC = "files/opt/aws/amazon-cloudwatch-agent/etc"
MINE = ("build.pkr.hcl", "plugins.pkr.hcl", "packer-1.6", "files")
"""What render writes into a recipe's folder; anything else there is not its business."""


def render(recipe: Recipe, folder: Path | None = None) -> dict[str, str]:
    """Path in `folder` (`packer/<recipe.name>/` when None) → text.

    Raises KilnError when a component has no provisioner or names an unknown key or field.
    """
    values = template_values.values(recipe, folder or ROOT / "packer" / recipe.name)
    build = _templates().get_template("build.pkr.hcl.j2")
    plugins = _templates().get_template("plugins.pkr.hcl.j2")
    return {
        BUILD: build.render(values, plugin=True),
        program.BUILD_1_6: build.render(values, plugin=False),
        PLUGINS: plugins.render(values),
        "files/etc/kiln/recipe.json": _recipe_json(recipe),
        **_component_files(recipe),
        **_agent_files(recipe),
    }


def write(recipe: Recipe, folder: Path | None = None) -> Path:
    """Render into `folder` (`packer/<recipe.name>/` when None) and return it."""
    folder = folder or default_folder() / recipe.name
    files = render(recipe, folder)
    for path in sorted(set(_present(folder)) - set(files)):
        (folder / path).unlink()
    for path, text in files.items():
        target = folder / path
        if not target.is_file() or target.read_text(encoding="utf-8") != text:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")
    return folder


def write_all(recipes: Iterable[Recipe]) -> list[str]:
    """Render every recipe, remove the folders of rows that are gone, and say what changed."""
    chosen = list(recipes)
    changed = stale(chosen)
    for recipe in chosen:
        write(recipe)
    for name in _orphans(chosen):
        for mine in MINE:
            path = default_folder() / name / mine
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        folder = default_folder() / name
        if not any(folder.iterdir()):
            folder.rmdir()
    return changed


def stale(recipes: Iterable[Recipe]) -> list[str]:
    """One line per committed file that differs from what the matrix says now. Empty: all fresh."""
    chosen = list(recipes)
    lines = []
    for recipe in chosen:
        folder = default_folder() / recipe.name
        files = render(recipe, folder)
        present = _present(folder)
        for path in sorted(set(files) | set(present)):
            shown = f"packer/{recipe.name}/{path}"
            if path not in files:
                lines.append(f"{shown}: not rendered any more")
            elif path not in present:
                lines.append(f"{shown}: missing")
            elif (folder / path).read_text(encoding="utf-8") != files[path]:
                lines.append(f"{shown}: differs from the matrix")
    return lines + [f"packer/{name}: no row of the matrix makes it" for name in _orphans(chosen)]


def digest(recipe: Recipe) -> str:
    """SHA-256 (hex) over the recipe, what is rendered for it and every file that is baked in.

    It names the image's content: two recipes with one digest make the same AMI.
    """
    files = {f"packer/{path}": text.encode() for path, text in render(recipe).items()}
    scripts = [PROVISIONERS / f"{name}.sh" for name in recipe.components]
    for path in [*scripts, *_baked_files()]:
        files[path.relative_to(ROOT).as_posix()] = path.read_bytes()
    return recipe.digest(files)


def variables(recipe: Recipe, *, run_id: str, git_commit: str, target: str) -> dict[str, str]:
    """The HCL variables that say which run this is; AMI tags and the manifest carry them."""
    return {
        "run_id": run_id,
        "git_commit": git_commit,
        "recipe_digest": digest(recipe),
        "target": target,
    }


def _recipe_json(recipe: Recipe) -> str:
    """The recipe as the machine and its checks read it, in /etc/kiln/recipe.json."""
    data = recipe.as_json()
    del data["row"]
    return json.dumps(data, indent=2, sort_keys=True) + "\n"


def _component_files(recipe: Recipe) -> dict[str, str]:
    return {
        f"files/{path}": text
        for name in recipe.components
        for path, text in components.get(name).for_recipe(recipe).files.items()
    }


def _agent_files(recipe: Recipe) -> dict[str, str]:
    if "cloudwatch-agent" not in recipe.components:
        return {}
    from kiln.telemetry import Telemetry, agent_files

    settings = Telemetry(**recipe.telemetry)
    texts = agent_files(settings, recipe.driver, recipe.cloudwatch_agent)
    return {f"{AGENT_ETC}/{path}": text for path, text in texts.items()}


def _baked_files() -> list[Path]:
    folders = (PROVISIONERS / "lib", RUNTIME, RUNTIME_VARIANTS)
    return [
        path
        for folder in folders
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    ]


def _present(folder: Path) -> list[str]:
    """The files in a recipe's folder that render wrote."""
    found = []
    for mine in MINE:
        path = folder / mine
        paths = path.rglob("*") if path.is_dir() else [path]
        found += [p.relative_to(folder).as_posix() for p in paths if p.is_file()]
    return found


def _orphans(recipes: Iterable[Recipe]) -> list[str]:
    names = {recipe.name for recipe in recipes}
    root = default_folder()
    folders = sorted(path for path in root.iterdir() if path.is_dir()) if root.is_dir() else []
    return [path.name for path in folders if path.name not in names and _present(path)]


@cache
def _templates() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    # HCL, not HTML: kiln.packer.hcl quotes.
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES / "packer"),
        undefined=StrictUndefined,
        autoescape=False,  # noqa: S701
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["hcl"] = hcl.string
    environment.filters["hcl_map"] = hcl.mapping
    environment.filters["hcl_list"] = hcl.sequence
    return environment
