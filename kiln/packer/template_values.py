"""The values for the templates in templates/packer/."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kiln import components
from kiln.base import tags
from kiln.base.errors import KilnError
from kiln.base.overlay import provisioner_file, shown_path
from kiln.base.recipe import Recipe
from kiln.components import Component, Step, environment
from kiln.facts import lock_file, table
from kiln.packer import program, uploads
from kiln.packer.hcl import Expression

# The tags of everything that a run creates; `none` means that a component is not on the image.
_TAGS = {
    tags.RECIPE: Expression("local.recipe.name"),
    tags.DISTRO: Expression("local.recipe.distro.id"),
    tags.FLAVOR: Expression("local.recipe.flavor"),
    tags.ARCH: Expression("local.recipe.arch"),
    tags.DRIVER: Expression("local.recipe.driver"),
    tags.KERNEL_MODULE: Expression("local.recipe.kernel_module"),
    tags.CUDA: Expression('coalesce(local.recipe.cuda, "none")'),
    tags.NCCL: Expression('coalesce(local.recipe.nccl, "none")'),
    tags.EFA: Expression('coalesce(local.recipe.efa, "none")'),
    tags.SOURCE_AMI: Expression("var.source_ami"),
    tags.GIT_COMMIT: Expression("var.git_commit"),
    tags.RECIPE_DIGEST: Expression("var.recipe_digest"),
    tags.INPUT_DIGEST: Expression("var.input_digest"),
    tags.RUN_ID: Expression("local.run_id"),
    tags.TARGET: Expression("var.target"),
}


def recipe_values(recipe: Recipe) -> dict[str, Any]:
    """What stands in the folder of this recipe alone: its components, each with its own part.

    Raises KilnError when a component has no provisioner, or gives its script other variables than
    the script declares.
    """
    chosen = filled(recipe)
    _require_provisioners(recipe, chosen)
    _require_environment(recipe, chosen)
    return {"recipe": recipe, "components": {step.name: _component(step) for step in chosen}}


def of_all(
    known: Iterable[Component | Step],
    sha256: dict[str, str],
    signing_keys: dict[str, str],
    *,
    apart: bool,
) -> dict[str, Any]:
    """What stands in packer/shared: a provisioner per component, hashes by URL, keys by name.

    `apart`: the overlays' files are where they are, not among the checkout's as in a run's folder.
    """
    chosen = list(known)
    return {
        "packer": program.packer_facts(),
        "tags": _TAGS,
        "uploads": uploads.upload_folders(apart=apart),
        "scripts": {step.name: uploads.script_path(step.name, apart=apart) for step in chosen},
        "components": chosen,
        "sha256": sha256,
        "signing_keys": signing_keys,
    }


def filled(recipe: Recipe) -> list[Step]:
    """What the recipe's components do for it, in bake order."""
    return [components.get(name).for_recipe(recipe) for name in recipe.components]


def locked() -> dict[str, str]:
    """URL → SHA-256 of every download that `amis.lock.yaml` knows the hash of."""
    return dict(lock_file.locked_hashes())


def fingerprints(chosen: Iterable[Component | Step]) -> dict[str, str]:
    """Name → fingerprint of the signing keys that these components name.

    Raises KilnError for a name that `knowledge/keys.yaml` does not have.
    """
    known = table("keys")["keys"]
    prints = {}
    for name in sorted({key for component in chosen for key in component.keys.values()}):
        if name not in known:
            raise KilnError(
                f"signing key {name!r} is not in kiln/facts/knowledge/keys.yaml",
                hint="add it with its fingerprint and its source",
            )
        prints[name] = str(known[name]["fingerprint"])
    return prints


def _component(step: Step) -> dict[str, dict[str, str]]:
    """A component as the recipe's HCL holds it; what is empty is left out."""
    variables = dict(step.env)
    for download in step.downloads:
        if download.version:
            variables[f"{download.env}_VERSION"] = download.version
    parts = {
        "env": variables,
        "downloads": {download.env: download.url for download in step.downloads},
        "keys": step.keys,
    }
    return {name: part for name, part in parts.items() if part}


def _require_provisioners(recipe: Recipe, chosen: Iterable[Step]) -> None:
    for step in chosen:
        path = provisioner_file(step.name)
        if not path.is_file():
            raise KilnError(
                f"component {step.name!r} of {recipe.name} has no provisioner: "
                f"{shown_path(path)} does not exist",
                hint=f"write it, or leave the component out: `without: [{step.name}]`",
            )


def _require_environment(recipe: Recipe, chosen: Iterable[Step]) -> None:
    findings = [
        finding
        for step in chosen
        for finding in environment.environment_problems(step.name, environment.given(step))
    ]
    if findings:
        lines = [f"{finding.file}:{finding.line}: {finding.message}" for finding in findings]
        raise KilnError(f"{recipe.name}: " + "\n".join(lines), hint=findings[0].hint)
