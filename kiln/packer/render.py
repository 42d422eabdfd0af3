"""The texts of a recipe: what its folder in `packer/` holds, and what `packer/shared` does.

`shared` is how an AMI is baked; an AMI's own are its recipe, the list of its components with their
environment, and the files rendered for its image. `layout` says where they lie.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from kiln import components
from kiln.base.recipe import Recipe
from kiln.base.templates import render
from kiln.components import Component, Step, rendered_files
from kiln.packer import program, template_values

CHECKOUT = ".."  # from packer/ in it
RECIPE = "recipe.pkr.hcl"
RECIPE_JSON = f"files/{rendered_files.RECIPE_JSON}"
OLD = program.FOLDER_1_6


def render_files(recipe: Recipe) -> dict[str, str]:
    """Path in the recipe's folder → text: what is this recipe's alone.

    Raises KilnError when a component has no provisioner or names an unknown field.
    """
    values = template_values.recipe_values(recipe)
    return {
        RECIPE: render("packer/recipe.pkr.hcl.j2", **values),
        RECIPE_JSON: _recipe_json(recipe),
        **_image_files(recipe),
    }


def shared(checkout: str = CHECKOUT, *, apart: bool = True) -> dict[str, str]:
    """Path in `packer/shared` → text: what is the same for all recipes.

    `checkout`: where the provisioners are, relative to `packer/`. `apart`: see `uploads`.
    Raises KilnError when a component names an unknown signing key.
    """
    all_components = components.everything()
    keys = template_values.fingerprints(all_components)
    return shared_by(checkout, all_components, template_values.locked(), keys, apart=apart)


def shared_by(
    checkout: str,
    all_components: Iterable[Component | Step],
    sha256: dict[str, str],
    signing_keys: dict[str, str],
    *,
    apart: bool,
) -> dict[str, str]:
    """As `shared`, for these components, hashes of downloads by URL, and signing keys by name."""
    values = {
        "checkout": checkout,
        **template_values.of_all(all_components, sha256, signing_keys, apart=apart),
    }

    def filled(name: str, **more: bool) -> str:
        return render(f"packer/{name}.pkr.hcl.j2", **values, **more)

    return {
        "variables.pkr.hcl": filled("variables"),
        "build.pkr.hcl": filled("build"),
        "plugins.pkr.hcl": filled("plugins"),
        "source.pkr.hcl": filled("source", plugin=True),
        f"{OLD}/source.pkr.hcl": filled("source", plugin=False),
    }


def _recipe_json(recipe: Recipe) -> str:
    """The recipe as HCL, the machine and its checks read it: /etc/kiln/recipe.json on the AMI."""
    data = recipe.as_json()
    del data["row"]
    return json.dumps(data, indent=2, sort_keys=True) + "\n"


def _image_files(recipe: Recipe) -> dict[str, str]:
    of_components = [step.files for step in template_values.filled(recipe)]
    return {
        f"files/{path}": text
        for files in (*of_components, rendered_files.installed_agent_files(recipe))
        for path, text in files.items()
    }
