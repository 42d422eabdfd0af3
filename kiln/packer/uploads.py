"""The files that Packer uploads to the build instance: one list for HCL, digest and run folders."""

from __future__ import annotations

from pathlib import Path

from kiln.base.paths import ROOT
from kiln.base.recipe import Recipe

# Each is uploaded to /var/tmp/kiln under its base name, beside the recipe's `files`.
FOLDERS = ("provisioners/lib", "runtime", "runtime-variants")


def provisioner_script(component: str) -> str:
    """A component's provisioner, relative to the checkout."""
    return f"provisioners/{component}.sh"


def uploaded_files(recipe: Recipe) -> dict[str, Path]:
    """Path relative to the checkout → file: the recipe's provisioners and all in `FOLDERS`."""
    chosen = [ROOT / provisioner_script(name) for name in recipe.components]
    for folder in FOLDERS:
        chosen += [
            path
            for path in sorted((ROOT / folder).rglob("*"))
            if path.is_file() and "__pycache__" not in path.parts
        ]
    return {path.relative_to(ROOT).as_posix(): path for path in chosen}
