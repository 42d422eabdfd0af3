"""The recipe digest: what two builds that asked for the same have in common."""

from __future__ import annotations

from kiln.base.recipe import Recipe
from kiln.packer import render, template_values, uploads
from kiln.packer.layout import SHARED


def recipe_digest(recipe: Recipe) -> str:
    """The recipe digest, SHA-256 as hex: over the recipe, what is rendered for it and every file
    that is baked in.

    Two builds with one recipe digest asked for the same. The parent AMI and the packages of the
    distribution are not in it: see `kiln.pipeline.plan.input_digest`.
    """
    return recipe.digest(digested_files(recipe))


def digested_files(recipe: Recipe) -> dict[str, bytes]:
    """Path in the checkout → content of every file that the digest covers.

    Of `shared` only what this recipe uses: its provisioners, its hashes, its keys.
    """
    chosen = template_values.filled(recipe)
    hashes = template_values.locked()
    urls = [download.url for component in chosen for download in component.downloads]
    own = render.shared_by(
        render.CHECKOUT,
        chosen,
        {url: hashes[url] for url in urls if url in hashes},
        template_values.fingerprints(chosen),
        apart=False,
    )
    return {
        **{f"packer/{SHARED}/{path}": text.encode() for path, text in own.items()},
        **{
            f"packer/{recipe.line}/{path}": text.encode()
            for path, text in render.render_files(recipe).items()
        },
        **{path: file.read_bytes() for path, file in uploads.uploaded_files(recipe).items()},
    }


def identity_variables(
    *, run_id: str, git_commit: str, target: str, recipe_digest: str, input_digest: str
) -> dict[str, str]:
    """The HCL variables that say which run this is; AMI tags and the manifest carry them."""
    return {
        "run_id": run_id,
        "git_commit": git_commit,
        "recipe_digest": recipe_digest,
        "input_digest": input_digest,
        "target": target,
    }
