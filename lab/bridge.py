"""What the pipeline needs to aim Packer at the lab: one variable file, one environment.

These are the only things that differ from a build in AWS; HCL and provisioners are the same.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

from kiln import components
from kiln.base.recipe import Recipe
from kiln.cloud.parents import Source
from lab import bases, control, images, mirror
from lab.settings import current


def prepare(recipe: Recipe, say: Callable[[str], None] = lambda line: None) -> None:
    """Bring the lab up, and make the recipe's base and what it will download, ahead of the bake."""
    control.up()
    bases.ensure(recipe.distro.id, recipe.arch, progress=say)
    hashes(recipe)


def source_of_a_lab_to_come(recipe: Recipe) -> Source | None:
    """The stand-in for a recipe's parent image in a lab that is down; None when one is up: ask it.

    So a plan can be shown without starting anything.
    """
    if control.status():
        return None
    (image,) = images.public_images([recipe])
    return Source(image.id, image.name, images.PUBLIC_SINCE, str(recipe.source_ami))


def hashes(recipe: Recipe) -> dict[str, str]:
    """SHA-256 of each file the bake downloads, as the lab's mirror serves it, by URL."""
    return {
        download.url: mirror.sha256(download.url)
        for name in recipe.components
        for download in components.get(name).for_recipe(recipe).downloads
    }


def write_variables(folder: Path, recipe: Recipe) -> Path:
    """Packer's variable file for the lab, as JSON; its path."""
    path = folder / "lab.pkrvars.json"
    path.write_text(
        json.dumps(
            {
                "custom_endpoint_ec2": current().endpoint,
                "skip_metadata_api_check": True,
                "skip_region_validation": True,
                "skip_credential_validation": True,
                "poll_seconds": 1,
                # By then a guest is up again; whom Packer finds down it asks two seconds later.
                "reboot_pause": "2s",
                "sha256": hashes(recipe),
                "signing_keys": mirror.key_fingerprints(),
            },
            indent=2,
        )
        + "\n"
    )
    return path


def packer_environment() -> dict[str, str]:
    """The environment of a Packer that talks to the lab: its keys, and none of the user's."""
    mine = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    return {**mine, **control.environment(current())}
