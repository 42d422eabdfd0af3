"""Recipes → `packer/`: one folder per AMI that Packer alone can build, and what all of them share.

`packer/shared/` holds how an AMI is baked; an AMI's folder holds its recipe, the list of its
components with their environment and the files rendered for its image, and links to the rest. All
of it is committed, so that a change to the matrix is reviewed as a change of HCL.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from kiln import components
from kiln.base.paths import ROOT, TEMPLATES, packer_dir
from kiln.base.recipe import Recipe
from kiln.components import Component, Step
from kiln.packer import hcl, program, settings, template_values, uploads
from kiln.packer.part import Builder, Part
from kiln.packer.tree import Link, Tree, is_there, write_tree

if TYPE_CHECKING:
    from jinja2 import Environment

SHARED = "shared"
HERE = ".."  # the checkout, from packer/ in it
RECIPE = "recipe.pkr.hcl"
RECIPE_JSON = "files/etc/kiln/recipe.json"
SETTINGS = "settings.auto.pkrvars.hcl"
AGENT_ETC = "files/opt/aws/amazon-cloudwatch-agent/etc"
OLD = program.FOLDER_1_6


LINKS = {
    "variables.pkr.hcl": Link(f"../{SHARED}/variables.pkr.hcl"),
    "source.pkr.hcl": Link(f"../{SHARED}/source.pkr.hcl"),
    "build.pkr.hcl": Link(f"../{SHARED}/build.pkr.hcl"),
    "plugins.pkr.hcl": Link(f"../{SHARED}/plugins.pkr.hcl"),
    f"{OLD}/{RECIPE}": Link(f"../{RECIPE}"),
    f"{OLD}/variables.pkr.hcl": Link(f"../../{SHARED}/variables.pkr.hcl"),
    f"{OLD}/source.pkr.hcl": Link(f"../../{SHARED}/{OLD}/source.pkr.hcl"),
    f"{OLD}/build.pkr.hcl": Link(f"../../{SHARED}/build.pkr.hcl"),
}
"""What an AMI's folder takes from `packer/shared`: the same for every AMI."""

MINE = (RECIPE, *LINKS, "files", SETTINGS, f"{OLD}/{SETTINGS}")
"""What render writes into an AMI's folder; anything else there is left alone."""


def render_files(recipe: Recipe, part: Part | None = None) -> dict[str, str]:
    """Path in the recipe's folder → text: what is this recipe's alone.

    Of a `part`, only its components are provisioned; the files are those of the whole recipe.
    Raises KilnError when a component has no provisioner or names an unknown field.
    """
    values = template_values.recipe_values(recipe, part.components if part else None)
    return {
        RECIPE: hcl_templates().get_template("recipe.pkr.hcl.j2").render(values),
        RECIPE_JSON: _recipe_json(recipe),
        **_component_files(recipe),
        **_agent_files(recipe),
    }


def shared(checkout: str = HERE, *, apart: bool = True, part: Part | None = None) -> dict[str, str]:
    """Path in `packer/shared` → text: what is the same for all recipes.

    `checkout`: where the provisioners are, relative to `packer/`. `apart`: see `uploads`.
    `part`: on what it bakes, if not on a fresh instance of the parent AMI.
    Raises KilnError when a component names an unknown signing key.
    """
    known = components.everything()
    keys = template_values.fingerprints(known)
    return _shared(checkout, known, template_values.locked(), keys, apart=apart, part=part)


def write_folders(recipes: Sequence[Recipe], root: Path | None = None) -> dict[str, Path]:
    """Bring the recipes' folders and `shared` in `root` up to date; a recipe's name → folder.

    `root` is `packer/`, or a folder that stands for it anywhere on this machine.
    """
    root = root or packer_dir()
    lines = [recipe.line for recipe in recipes]
    write_tree(root, _tree(recipes, _checkout(root)), _present(root, [SHARED, *lines]))
    return {recipe.name: root / recipe.line for recipe in recipes}


def write_all(recipes: Iterable[Recipe]) -> list[str]:
    """Render every recipe and remove the folders of rows that are gone.

    Returns a line for each folder that was written, moved or removed.
    """
    chosen = list(recipes)
    root = packer_dir()
    gone = _orphans(root, chosen)
    present = _present(root, [SHARED, *(recipe.line for recipe in chosen), *gone])
    tree = _tree(chosen, _checkout(root))
    lines = _done(root, tree, present, _moved(root, chosen, gone), gone)
    write_tree(root, tree, present)
    return lines


def _done(
    root: Path, tree: Tree, present: Iterable[str], moved: Mapping[str, str], gone: Iterable[str]
) -> list[str]:
    """What `write_tree` is about to do, a line for each folder; `moved` maps new folders to old."""
    files: dict[str, list[str]] = {}
    for path in sorted({*tree, *present}):
        folder, _, rest = path.partition("/")
        if path not in tree:
            files.setdefault(folder, []).append(f"without {rest}")
        elif not is_there(root / path, tree[path]):
            files.setdefault(folder, []).append(rest)
    lines = []
    for folder, paths in files.items():
        if folder in gone:
            continue
        what = ", ".join(paths) if len(paths) <= _FEW else f"{len(paths)} files"
        if folder in moved:
            lines.append(f"moved    packer/{moved[folder]} → packer/{folder}")
        else:
            lines.append(f"wrote    packer/{folder}: {what}")
    return lines + [f"removed  packer/{name}" for name in gone if name not in moved.values()]


# Files of a folder that are named in a line.
_FEW = 5


def _moved(root: Path, recipes: Iterable[Recipe], gone: Iterable[str]) -> dict[str, str]:
    """New folder → the folder in which the same AMI was, by its name."""
    names = {}
    for folder in gone:
        with contextlib.suppress(OSError, ValueError):
            names[json.loads((root / folder / RECIPE_JSON).read_text())["name"]] = folder
    return {
        recipe.line: names[recipe.name]
        for recipe in recipes
        if recipe.name in names and not (root / recipe.line).exists()
    }


def write_inputs(recipe: Recipe, folder: Path, part: Part | None = None) -> Path:
    """Copy into `folder`, laid out as in a checkout, all that a bake of the recipe, or of a part of
    it, reads: its rendered HCL and files, and what these name. Returns the recipe's folder in it.
    """
    for path, file in uploads.uploaded_files(recipe).items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, folder / path)
    root = folder / "packer"
    write_tree(root, _tree([recipe], HERE, apart=False, part=part), [])
    return root / recipe.line


def stale(recipes: Iterable[Recipe], *, orphans: bool = True) -> list[str]:
    """One line per committed file that differs from what the matrix says now; none when fresh.

    `orphans`: the recipes are the whole matrix, and folders of others are stale too.
    """
    chosen = list(recipes)
    root = packer_dir()
    tree = _tree(chosen, _checkout(root))
    present = set(_present(root, [SHARED, *(recipe.line for recipe in chosen)]))
    lines = []
    for path in sorted({*tree, *present}):
        if path not in tree:
            lines.append(f"packer/{path}: not rendered any more")
        elif path not in present:
            lines.append(f"packer/{path}: missing")
        elif not is_there(root / path, tree[path]):
            lines.append(f"packer/{path}: differs from the matrix")
    gone = _orphans(root, chosen) if orphans else []
    return lines + [f"packer/{name}: no row of the matrix makes it" for name in gone]


def digest(recipe: Recipe) -> str:
    """The recipe digest, SHA-256 as hex: over the recipe, what is rendered for it and every file
    that is baked in.

    Two builds with one recipe digest asked for the same. The parent AMI and the packages of the
    distribution are not in it: see `kiln.pipeline.plan.input_digest`.
    """
    return recipe.digest(digested(recipe))


def digested(recipe: Recipe) -> dict[str, bytes]:
    """Path in the checkout → content of every file that the digest covers.

    Of `shared` only what this recipe uses: its provisioners, its hashes, its keys.
    """
    chosen = template_values.filled(recipe)
    known = template_values.locked()
    urls = [download.url for component in chosen for download in component.downloads]
    own = _shared(
        HERE,
        chosen,
        {url: known[url] for url in urls if url in known},
        template_values.fingerprints(chosen),
        apart=False,
    )
    return {
        **{f"packer/{SHARED}/{path}": text.encode() for path, text in own.items()},
        **{
            f"packer/{recipe.line}/{path}": text.encode()
            for path, text in render_files(recipe).items()
        },
        **{path: file.read_bytes() for path, file in uploads.uploaded_files(recipe).items()},
    }


def variables(
    recipe: Recipe, *, run_id: str, git_commit: str, target: str, input_digest: str
) -> dict[str, str]:
    """The HCL variables that say which run this is; AMI tags and the manifest carry them."""
    return {
        "run_id": run_id,
        "git_commit": git_commit,
        "recipe_digest": digest(recipe),
        "input_digest": input_digest,
        "target": target,
    }


def _shared(
    checkout: str,
    known: Iterable[Component | Step],
    sha256: dict[str, str],
    signing_keys: dict[str, str],
    *,
    apart: bool,
    part: Part | None = None,
) -> dict[str, str]:
    builder: Builder = part.builder if part else "amazon-ebs"
    source = "machine" if builder == "null" else "source"
    values = {
        "checkout": checkout,
        "builder": builder,
        "again": bool(part and part.again),
        **template_values.of_all(known, sha256, signing_keys, apart=apart),
    }

    def filled(name: str, **more: bool) -> str:
        return hcl_templates().get_template(f"{name}.pkr.hcl.j2").render(values, **more)

    return {
        "variables.pkr.hcl": filled("variables"),
        "build.pkr.hcl": filled("build"),
        "plugins.pkr.hcl": filled("plugins"),
        "source.pkr.hcl": filled(source, plugin=True),
        f"{OLD}/source.pkr.hcl": filled(source, plugin=False),
    }


def _settings(recipe: Recipe) -> str:
    """The row's `aws` settings as a file of variables that Packer reads by itself; empty without.

    They belong to no image, so they are not in the digest.
    """
    account = recipe.row.account
    by_pipeline = ["subnet_filter"] if account.subnet_filter else []
    values = settings.by_hand(account)
    if not values and not by_pipeline:
        return ""
    template = hcl_templates().get_template("settings.pkrvars.hcl.j2")
    return template.render(values=values, by_pipeline=by_pipeline)


def _checkout(root: Path) -> str:
    """The way from `packer/`, which `KILN_PACKER_DIR` may have moved, to the checkout."""
    return Path(os.path.relpath(ROOT, root.resolve())).as_posix()


def _tree(
    recipes: Iterable[Recipe], checkout: str, *, apart: bool = True, part: Part | None = None
) -> dict[str, str | Link]:
    """Path in `packer/` → what is to be there."""
    tree: dict[str, str | Link] = {
        f"{SHARED}/{path}": text for path, text in shared(checkout, apart=apart, part=part).items()
    }
    for recipe in recipes:
        tree |= {f"{recipe.line}/{path}": link for path, link in LINKS.items()}
        given = _settings(recipe) if apart else ""  # a run gives Packer its own
        if given:
            tree[f"{recipe.line}/{SETTINGS}"] = given
            tree[f"{recipe.line}/{OLD}/{SETTINGS}"] = Link(f"../{SETTINGS}")
        tree |= {f"{recipe.line}/{path}": text for path, text in render_files(recipe, part).items()}
    return tree


def _present(root: Path, folders: Iterable[str]) -> list[str]:
    """The files and links in these folders of `root` that render wrote, relative to `root`."""
    present = []
    for name in folders:
        mine = [root / name] if name == SHARED else [root / name / path for path in MINE]
        for path in mine:
            paths = path.rglob("*") if path.is_dir() and not path.is_symlink() else [path]
            present += [p for p in paths if p.is_file() or p.is_symlink()]
    return [path.relative_to(root).as_posix() for path in present]


def _orphans(root: Path, recipes: Iterable[Recipe]) -> list[str]:
    """The folders that render wrote for a recipe which is gone."""
    lines = {SHARED, *(recipe.line for recipe in recipes)}
    folders = sorted(path for path in root.iterdir() if path.is_dir()) if root.is_dir() else []
    names = [path.name for path in folders if path.name not in lines]
    return [name for name in names if _present(root, [name])]


def _recipe_json(recipe: Recipe) -> str:
    """The recipe as HCL, the machine and its checks read it: /etc/kiln/recipe.json on the AMI."""
    data = recipe.as_json()
    del data["row"]
    return json.dumps(data, indent=2, sort_keys=True) + "\n"


def _component_files(recipe: Recipe) -> dict[str, str]:
    return {
        f"files/{path}": text
        for component in template_values.filled(recipe)
        for path, text in component.files.items()
    }


def _agent_files(recipe: Recipe) -> dict[str, str]:
    if "cloudwatch-agent" not in recipe.components:
        return {}
    from kiln.telemetry import Telemetry, agent_files

    settings = Telemetry(**recipe.telemetry)
    texts = agent_files(settings, recipe.driver, recipe.cloudwatch_agent)
    return {f"{AGENT_ETC}/{path}": text for path, text in texts.items()}


@cache
def hcl_templates(folder: str = "packer") -> Environment:
    """The templates of HCL in a folder of templates/, whose expressions end in a filter."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    # HCL, not HTML: kiln.packer.hcl quotes.
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES / folder),
        undefined=StrictUndefined,
        finalize=hcl.require_safe,
        autoescape=False,  # noqa: S701
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"hcl": hcl.value, "inside": hcl.inside, "comment": hcl.comment}
    return environment
