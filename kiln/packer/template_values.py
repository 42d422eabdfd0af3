"""The values for the templates in templates/packer/."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kiln import components
from kiln.base import tags
from kiln.base.errors import KilnError
from kiln.base.findings import errors
from kiln.base.hcl import Expression
from kiln.base.overlay import provisioner_file, shown_path
from kiln.base.recipe import Recipe
from kiln.components import Component, Step, environment, rendered_files
from kiln.facts import lock_file, table
from kiln.packer import program, uploads

# The tags of everything that a run creates: those that the recipe's JSON has at a path, those that
# are `none` where the component is not on the image, and those of the run's variables.
_OF_RECIPE = {
    tags.RECIPE: "name",
    tags.DISTRO: "distro.id",
    tags.FLAVOR: "flavor",
    tags.ARCH: "arch",
    tags.DRIVER: "driver",
    tags.KERNEL_MODULE: "kernel_module",
}
_IF_ON_IT = {tags.CUDA: "cuda", tags.NCCL: "nccl", tags.EFA: "efa"}
_OF_RUN = {
    tags.SOURCE_AMI: "source_ami",
    tags.GIT_COMMIT: "git_commit",
    tags.RECIPE_DIGEST: "recipe_digest",
    tags.INPUT_DIGEST: "input_digest",
    tags.RUN_ID: "run_id",
    tags.TARGET: "target",
}
_TAGS = {
    **{key: Expression(f"local.recipe.{path}") for key, path in _OF_RECIPE.items()},
    **{key: Expression(f'coalesce(local.recipe.{at}, "none")') for key, at in _IF_ON_IT.items()},
    **{key: Expression(f"var.{name}") for key, name in _OF_RUN.items()},
    # Has a default that is made of the time.
    tags.RUN_ID: Expression("local.run_id"),
}


def tags_of(recipe: Recipe, variables: Mapping[str, Any]) -> dict[str, str]:
    """The tags that Packer gives an AMI of the recipe with these variables."""
    data = recipe.as_json()
    return {
        **{key: _at(data, path) for key, path in _OF_RECIPE.items()},
        **{key: _at(data, path) or "none" for key, path in _IF_ON_IT.items()},
        **{key: str(variables[name]) for key, name in _OF_RUN.items()},
    }


def _at(data: Mapping[str, Any], path: str) -> str:
    for name in path.split("."):
        data = data[name]
    return str(data or "")


def recipe_values(recipe: Recipe) -> dict[str, Any]:
    """What is in the folder of this recipe alone: its components, each with its own part.

    Raises KilnError when a component has no provisioner, or gives its script other variables than
    the script declares.
    """
    chosen = filled(recipe)
    _require_provisioners(recipe, chosen)
    _require_environment(recipe, chosen)
    return {"recipe": recipe, "components": {step.name: _component(step) for step in chosen}}


def of_all(
    all_components: Iterable[Component | Step],
    sha256: dict[str, str],
    signing_keys: dict[str, str],
    *,
    apart: bool,
) -> dict[str, Any]:
    """What is in packer/shared: a provisioner per component, hashes by URL, keys by name.

    `apart`: the overlays' files are where they are, not among the checkout's as in a run's folder.
    """
    chosen = list(all_components)
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

    Raises KilnError for a name that `kiln/facts/knowledge/keys.yaml` does not have.
    """
    keys = table("keys")["keys"]
    prints = {}
    for name in sorted({key for component in chosen for key in component.keys.values()}):
        if name not in keys:
            raise KilnError(
                f"signing key {name!r} is not in kiln/facts/knowledge/keys.yaml",
                hint="add it with its fingerprint and its source",
            )
        prints[name] = str(keys[name]["fingerprint"])
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
    steps = tuple(chosen)
    of_steps = (finding for step in steps for finding in environment.environment_problems(step))
    findings = errors((*of_steps, *rendered_files.name_problems(recipe, steps)))
    if findings:
        lines = [f"{finding.place}: {finding.message}" for finding in findings]
        hints = dict.fromkeys(finding.hint for finding in findings if finding.hint)
        raise KilnError(f"{recipe.name}: " + "\n".join(lines), hint="\n  ".join(hints))
