"""`packer/`: what is in it, what a bake of a recipe reads, and writing both.

`shared` is how every AMI is baked. A row's own folder holds what is baked into its AMI: its recipe,
its components with their environment, and the files rendered for its image; it links to the rest.
All of it is committed, so that a change to the matrix is reviewed as a change of HCL. Render leaves
other files in `packer/` alone.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from kiln import components
from kiln.base import overlay, tags, templates
from kiln.base.account import Account
from kiln.base.errors import KilnError, refuse_errors
from kiln.base.paths import ROOT, files_below, matrix_file, packer_dir
from kiln.base.recipe import Recipe
from kiln.base.yaml_files import read_plain
from kiln.components import Component, Step, rendered
from kiln.facts import packages, table
from kiln.packer.program import FOLDER_1_6

# Path in a folder → its text, or the target of a symbolic link.
Tree = Mapping[str, str | Path]

SHARED = "shared"
RECIPE = "recipe.pkr.hcl"
RECIPE_JSON = f"files/{rendered.RECIPE_JSON}"
_SHARED_FILES = ("variables", "source", "build", "plugins")
LINKS = {
    **{f"{name}.pkr.hcl": Path(f"../{SHARED}/{name}.pkr.hcl") for name in _SHARED_FILES},
    f"{FOLDER_1_6}/{RECIPE}": Path(f"../{RECIPE}"),
    f"{FOLDER_1_6}/variables.pkr.hcl": Path(f"../../{SHARED}/variables.pkr.hcl"),
    f"{FOLDER_1_6}/source.pkr.hcl": Path(f"../../{SHARED}/{FOLDER_1_6}/source.pkr.hcl"),
    f"{FOLDER_1_6}/build.pkr.hcl": Path(f"../../{SHARED}/build.pkr.hcl"),
}
"""The files that a row's folder takes from `packer/shared`."""

# What render writes into a row's folder.
_OF_A_ROW = (RECIPE, *LINKS, "files")
# Files of a folder that are named in a line.
_FEW = 5

# Packer uploads these to /var/tmp/kiln, beside the recipe's `files`.
_UPLOADED = ("provisioners/lib", "runtime")

# The tags of everything that a bake creates.
BAKE_TAGS = {
    tags.RECIPE: "local.recipe.name",
    tags.DISTRO: "local.recipe.distro.id",
    tags.FLAVOR: "local.recipe.flavor",
    tags.ARCH: "local.recipe.arch",
    tags.DRIVER: "local.recipe.driver",
    tags.KERNEL_MODULE: "local.recipe.kernel_module",
    tags.CUDA: 'coalesce(local.recipe.cuda, "none")',
    tags.NCCL: 'coalesce(local.recipe.nccl, "none")',
    tags.EFA: 'coalesce(local.recipe.efa, "none")',
    tags.SOURCE_AMI: "var.source_ami",
    tags.GIT_COMMIT: "var.git_commit",
    tags.RECIPE_DIGEST: "var.recipe_digest",
    tags.INPUT_DIGEST: "var.input_digest",
    tags.RUN_ID: "local.run_id",  # has a default that is made of the time
    tags.TARGET: "var.target",
}


@dataclass(frozen=True)
class Rendered:
    """A recipe with what is rendered for it alone (`own`: path in the row's folder → text)."""

    recipe: Recipe
    own: Mapping[str, str]

    @cached_property
    def inputs(self) -> Mapping[str, bytes]:
        """All files that a bake of the recipe reads: path as in a checkout → content.

        Of `shared` there is only what this recipe uses: its provisioners, its hashes, its keys.
        """
        steps = components.steps(self.recipe)
        hashes = packages.locked_hashes()
        urls = [download.url for step in steps for download in step.downloads]
        shared = shared_files(
            steps,
            sha256={url: hashes[url] for url in urls if url in hashes},
            overlay_in_place=False,
        )
        line = self.recipe.line
        return {
            **{f"packer/{SHARED}/{path}": text.encode() for path, text in shared.items()},
            **{f"packer/{line}/{path}": text.encode() for path, text in self.own.items()},
            **dict(_as_shipped(*pair) for pair in uploaded_files(self.recipe).items()),
        }

    @cached_property
    def digest(self) -> str:
        """The recipe digest (SHA-256, hex): over the recipe and all files that its bake reads.

        Two builds with one recipe digest asked for the same. The parent AMI and the packages of the
        distribution are not in it.
        """
        return self.recipe.digest(dict(self.inputs))


def render(recipe: Recipe) -> Rendered:
    """Render what is the recipe's alone.

    Refuses a component without provisioner, or with other variables than its script declares.
    """
    steps = components.steps(recipe)
    for step in steps:
        path = overlay.provisioner_file(step.name)
        if not path.is_file():
            raise KilnError(
                f"component {step.name!r} of {recipe.name} has no provisioner: "
                f"{overlay.shown_path(path)} does not exist",
                hint=f"write it, or leave the component out: `without: [{step.name}]`",
            )
    findings = list(rendered.name_problems(recipe, tuple(steps)))
    for step in steps:
        findings += rendered.environment_problems(step)
    refuse_errors(findings)
    parts = {step.name: _component(step) for step in steps}
    data = recipe.to_dict()
    del data["row"]
    files = {
        path: text
        for each in (*(step.files for step in steps), rendered.installed_agent_files(recipe))
        for path, text in each.items()
    }
    own = {
        RECIPE: templates.render("packer/recipe.pkr.hcl.j2", recipe=recipe, components=parts),
        # As HCL, the machine and its checks read it: /etc/kiln/recipe.json on the AMI.
        RECIPE_JSON: json.dumps(data, indent=2, sort_keys=True) + "\n",
        **{f"files/{path}": text for path, text in files.items()},
    }
    return Rendered(recipe, own)


def recipe_digest(recipe: Recipe) -> str:
    """Return the recipe's digest: see `Rendered.digest`."""
    return render(recipe).digest


def packer_tree(rows: Iterable[Rendered], root: Path) -> Tree:
    """Return what `packer/`, which `KILN_PACKER_DIR` may have moved to `root`, holds."""
    checkout = Path(os.path.relpath(ROOT, root.resolve())).as_posix()
    shared = shared_files(components.everything(), checkout=checkout)
    tree: dict[str, str | Path] = {f"{SHARED}/{path}": text for path, text in shared.items()}
    for row in rows:
        line = row.recipe.line
        tree |= {f"{line}/{path}": link for path, link in LINKS.items()}
        tree |= {f"{line}/{path}": text for path, text in row.own.items()}
    return tree


def shared_files(
    steps: Iterable[Component | Step],
    *,
    checkout: str = "..",
    sha256: Mapping[str, str] | None = None,
    overlay_in_place: bool = True,
) -> dict[str, str]:
    """Return `packer/shared` for these components: path → text.

    `checkout`: where the provisioners are, relative to `packer/`. `sha256`: URL → hash, otherwise
    that of the lock file. `overlay_in_place`: an overlay's files are in the overlay, not copied
    among the checkout's as in a run's folder.
    """
    steps = list(steps)
    uploads, scripts = list(_UPLOADED), {step.name: _script(step.name) for step in steps}
    if overlay_in_place:
        uploads += map(_from_root, overlay.own_files("runtime"))
        scripts = {name: _from_root(overlay.provisioner_file(name)) for name in scripts}
    keys = table("keys")["keys"]
    used = sorted({key for step in steps for key in step.keys.values()})
    values = {
        "checkout": checkout,
        "packer": table("packer"),
        "tags": {key: templates.Expression(value) for key, value in BAKE_TAGS.items()},
        "uploads": uploads,
        "scripts": scripts,
        "components": steps,
        "sha256": dict(packages.locked_hashes() if sha256 is None else sha256),
        "signing_keys": {name: str(keys[name]["fingerprint"]) for name in used},
    }
    texts = {
        f"{name}.pkr.hcl": templates.render(f"packer/{name}.pkr.hcl.j2", plugin=True, **values)
        for name in _SHARED_FILES
    }
    old = templates.render("packer/source.pkr.hcl.j2", plugin=False, **values)
    return {**texts, f"{FOLDER_1_6}/source.pkr.hcl": old}


def uploaded_files(recipe: Recipe) -> dict[str, Path]:
    """Map the path as in a checkout to the file, for all that Packer uploads for the recipe."""
    chosen = {_script(name): overlay.provisioner_file(name) for name in recipe.components}
    tops = [(ROOT, folder) for folder in _UPLOADED]
    tops += [(top, "runtime") for top in overlay.overlays()]  # their files replace ours
    for top, folder in tops:
        files = files_below(top / folder)
        chosen |= {f"{folder}/{name}": path for name, path in files.items()}
    return chosen


def _as_shipped(path: str, file: Path) -> tuple[str, bytes]:
    """Return a file as it is uploaded: gpu-mig reads JSON, an overlay's layouts may be YAML."""
    if not path.startswith("runtime/etc/kiln/mig-config") or file.suffix not in (".yaml", ".yml"):
        return path, file.read_bytes()
    from kiln.mig.check import labels_with

    labels_with(str(file))  # an error is found here, not at the first boot
    return str(Path(path).with_suffix(".json")), json.dumps(read_plain(file), indent=1).encode()


def account_variables(account: Account) -> dict[str, Any]:
    """Return the HCL variables that an account's settings alone decide."""
    return {
        "tags": dict(account.tags),
        "kms_key_id": account.kms_key_id or "",
        "iam_instance_profile": account.iam_instance_profile or "",
        "spot_price": "auto" if account.spot else "",
        "proxy": account.proxy or "",
        "no_proxy": list(account.no_proxy),
        "mirrors": dict(account.mirrors),
        "time_limits": dict(account.time_limits),
    }


def time_limit(account: Account, component: str) -> float:
    """Return how long the component's provisioner may take, in seconds."""
    limits = account.time_limits
    limit = limits.get(component) or limits.get("all") or table("packer")["time_limit"]
    return float(limit[:-1]) * {"s": 1, "m": 60, "h": 3600}[limit[-1]]


def _script(component: str) -> str:
    """Return a component's provisioner as in a checkout."""
    return f"provisioners/{component}.sh"


def _from_root(path: Path) -> str:
    return Path(os.path.relpath(path, ROOT)).as_posix()


def _component(step: Step) -> dict[str, dict[str, str]]:
    """Return a component as the recipe's HCL holds it; what is empty is left out."""
    versions = {f"{d.env}_VERSION": d.version for d in step.downloads if d.version}
    parts = {
        "env": {**step.env, **versions},
        "downloads": {download.env: download.url for download in step.downloads},
        "keys": step.keys,
    }
    return {name: part for name, part in parts.items() if part}


# -------------------------------------------------------------------------------- on the disk


def shown_packer() -> str:
    """Return the folder of rendered HCL for messages: `packer`, or where KILN_PACKER_DIR has it."""
    return overlay.shown_path(packer_dir())


def renewal() -> str:
    """Return the command that brings `packer/` up to date.

    From the matrix of the checkout more is generated than packer/, such as docs/test-status.md.
    """
    own = matrix_file() == ROOT / "amis.yaml" and packer_dir() == ROOT / "packer"
    return "./invoke generate" if own and not overlay.overlays() else "./invoke render"


def stale_files(recipes: Iterable[Recipe], *, whole: bool = True) -> list[str]:
    """Return a line per committed file that differs from what these rows, or the `whole` matrix,
    say now."""
    return stale_rows(map(render, recipes), whole=whole)


def stale_rows(rows: Iterable[Rendered], *, whole: bool = False) -> list[str]:
    """Return a line per committed file of these rows that differs from what is rendered."""
    changes = _changes(packer_dir(), packer_tree(rows, packer_dir()), whole=whole)
    return [f"{shown_packer()}/{path}: {why}" for path, why in changes.items()]


def write_folders(recipes: Sequence[Recipe], root: Path) -> dict[str, Path]:
    """Bring the recipes' folders and `shared` in `root` up to date, which stands for `packer/`
    anywhere on this machine. Returns a recipe's name → its folder."""
    _write(root, map(render, recipes), whole=False)
    return {recipe.name: root / recipe.line for recipe in recipes}


def write_all(recipes: Iterable[Recipe], *, whole: bool = True) -> list[str]:
    """Render every recipe; if these are the `whole` matrix, remove the folders of rows that are
    gone.

    Returns a line for each folder that was written or removed.
    """
    root = packer_dir()
    files: dict[str, list[str]] = {}
    for path in _write(root, map(render, recipes), whole=whole):
        folder, _, rest = path.partition("/")
        files.setdefault(folder, []).append(rest)
    lines = []
    for folder, names in files.items():
        what = ", ".join(names) if len(names) <= _FEW else f"{len(names)} files"
        # The folder of a row that is gone is a path itself.
        wrote, removed = (
            f"wrote    {shown_packer()}/{folder}: ",
            f"removed  {shown_packer()}/{folder}",
        )
        lines.append(wrote + what if what else removed)
    return lines


def write_inputs(rendered: Rendered, folder: Path) -> Path:
    """Write into `folder`, laid out as a checkout, all that a bake reads. Returns the recipe's
    folder in it: what is written is what was digested, whatever was edited since.
    """
    for path, content in rendered.inputs.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    for path, file in uploaded_files(rendered.recipe).items():
        if path in rendered.inputs:
            shutil.copymode(file, folder / path)
    row = folder / "packer" / rendered.recipe.line
    for path, link in LINKS.items():
        _put(row / path, link)
    return row


def _write(root: Path, rows: Iterable[Rendered], *, whole: bool) -> list[str]:
    """Make `root` hold these rows; return the paths that were not as they should be."""
    tree = packer_tree(rows, root)
    changes = _changes(root, tree, whole=whole)
    for path in changes:
        if path in tree:
            _put(root / path, tree[path])
            continue
        for file in _rendered_files(root, path) if (root / path).is_dir() else [root / path]:
            file.unlink()
            for folder in file.parents:
                if folder == root or any(folder.iterdir()):
                    break
                folder.rmdir()
    return list(changes)


def _changes(root: Path, tree: Tree, *, whole: bool) -> dict[str, str]:
    """Map each path in `root` that is not as in the tree to why; of an orphan its folder's."""
    folders = {path.partition("/")[0] for path in tree}
    changes = {}
    for folder in folders:
        for file in _rendered_files(root, folder):
            changes[file.relative_to(root).as_posix()] = "not rendered any more"
    for path, content in tree.items():
        changes[path] = "differs from the matrix" if path in changes else "missing"
        if _is_there(root / path, content):
            del changes[path]
    for other in root.iterdir() if whole and root.is_dir() else ():
        if other.is_dir() and other.name not in folders and _rendered_files(root, other.name):
            changes[other.name] = "no row of the matrix makes it"
    return dict(sorted(changes.items()))


def _rendered_files(root: Path, folder: str) -> list[Path]:
    """Return the files and links in a folder of `root` that render wrote."""
    mine = [root / folder] if folder == SHARED else [root / folder / path for path in _OF_A_ROW]
    present = [
        file
        for path in mine
        for file in (path.rglob("*") if path.is_dir() and not path.is_symlink() else [path])
    ]
    return [file for file in present if file.is_file() or file.is_symlink()]


def _put(path: Path, content: str | Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)  # writing to a link would change what it leads to
    if isinstance(content, Path):
        path.symlink_to(content)
    else:
        path.write_text(content, encoding="utf-8")


def _is_there(path: Path, content: str | Path) -> bool:
    if isinstance(content, Path) or path.is_symlink():
        return path.is_symlink() and path.readlink() == content
    return path.is_file() and path.read_bytes() == content.encode()
