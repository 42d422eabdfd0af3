"""Recipe → what the Packer templates are filled with: tags, environments, hashes, steps."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from kiln import components
from kiln.base import located, tags
from kiln.base.errors import KilnError
from kiln.base.paths import KNOWLEDGE, PROVISIONERS, ROOT, RUNTIME, RUNTIME_VARIANTS
from kiln.base.recipe import Recipe
from kiln.components import Step, environment
from kiln.packer import hcl, program


def values(recipe: Recipe, folder: Path) -> dict[str, Any]:
    """What the templates in templates/packer/ are filled with; they are rendered into `folder`.

    Raises KilnError when a component has no provisioner, gives its script other variables than
    the script declares, or names a key or a field that does not exist.
    """
    chosen = [components.get(name).for_recipe(recipe) for name in recipe.components]
    _require_provisioners(recipe, chosen)
    _require_environment(recipe, chosen)
    checkout = os.path.relpath(ROOT, folder.resolve())
    keys = {key for component in chosen for key in component.keys.values()}
    return {
        "recipe": recipe,
        "packer": program.facts(),
        "description": _description(recipe),
        "tags": _tags(recipe),
        "environment": _environment(recipe),
        "checkout": checkout,
        "uploads": _uploads(checkout),
        "components": _steps(chosen),
        "sha256": _hashes(chosen),
        "signing_keys": _fingerprints(keys),
    }


def _description(recipe: Recipe) -> str:
    parts = [recipe.distro.name, f"NVIDIA driver {recipe.driver} ({recipe.kernel_module})"]
    parts += [f"{n} {v}" for n, v in (("CUDA", recipe.cuda), ("NCCL", recipe.nccl)) if v]
    return ", ".join([*parts, f"flavour {recipe.flavor}"])


def _tags(recipe: Recipe) -> dict[str, str]:
    """What every resource of a run is tagged with; `none` says that a component is not there."""
    return {
        tags.RECIPE: recipe.name,
        tags.DISTRO: recipe.distro.id,
        tags.FLAVOR: recipe.flavor,
        tags.ARCH: recipe.arch,
        tags.DRIVER: recipe.driver,
        tags.KERNEL_MODULE: recipe.kernel_module,
        tags.CUDA: recipe.cuda or "none",
        tags.NCCL: recipe.nccl or "none",
        tags.EFA: recipe.efa or "none",
        tags.SOURCE_AMI: hcl.Expression("var.source_ami"),
        tags.GIT_COMMIT: hcl.Expression("var.git_commit"),
        tags.RECIPE_DIGEST: hcl.Expression("var.recipe_digest"),
        tags.RUN_ID: hcl.Expression("local.run_id"),
        tags.TARGET: hcl.Expression("var.target"),
    }


def _environment(recipe: Recipe) -> list[str]:
    fixed = {
        "KILN_DIR": "/var/tmp/kiln",  # noqa: S108 - on the build instance; survives its reboot
        "KILN_DISTRO": recipe.distro.id,
        "KILN_FAMILY": recipe.distro.family,
        "KILN_PACKAGE_MANAGER": recipe.distro.package_manager,
        "KILN_ARCH": recipe.arch,
        "KILN_FLAVOR": recipe.flavor,
    }
    per_run = ("var.source_ami", "var.git_commit", "var.recipe_digest", "local.run_id")
    return [f"{name}={value}" for name, value in fixed.items()] + [
        hcl.Expression(f'"KILN_{name.split(".")[1].upper()}=${{{name}}}"') for name in per_run
    ]


def _uploads(checkout: str) -> list[str]:
    """Folders that go to /var/tmp/kiln on the build instance, under their own names."""
    shared = [PROVISIONERS / "lib", RUNTIME, RUNTIME_VARIANTS]
    found = [path.relative_to(ROOT).as_posix() for path in shared if path.is_dir()]
    return [*(f"{checkout}/{path}" for path in found), "files"]


def _steps(chosen: list[Step]) -> list[dict[str, Any]]:
    steps = []
    rebooted = False
    for component in chosen:
        environment = [f"{name}={value}" for name, value in component.env.items()]
        for download in component.downloads:
            known = f'lookup(var.sha256, {hcl.string(download.url)}, "")'
            environment.append(f"{download.env}_URL={download.url}")
            environment.append(hcl.Expression(f'"{download.env}_SHA256=${{{known}}}"'))
            if download.version:
                environment.append(f"{download.env}_VERSION={download.version}")
        for name, key in component.keys.items():
            known = f'lookup(var.signing_keys, {hcl.string(key)}, "")'
            environment.append(hcl.Expression(f'"{name}=${{{known}}}"'))
        steps.append(
            {
                "name": component.name,
                "what": component.what,
                "environment": environment,
                "reboots": component.reboots,
                "after_reboot": rebooted,
            }
        )
        rebooted = component.reboots
    return steps


def _require_provisioners(recipe: Recipe, chosen: list[Step]) -> None:
    for component in chosen:
        path = PROVISIONERS / f"{component.name}.sh"
        if not path.is_file():
            raise KilnError(
                f"component {component.name!r} of {recipe.name} has no provisioner: "
                f"{path.relative_to(ROOT)} does not exist",
                hint=f"write it, or leave the component out: `without: [{component.name}]`",
            )


def _require_environment(recipe: Recipe, chosen: list[Step]) -> None:
    findings = [
        finding
        for component in chosen
        for finding in environment.problems(component.name, environment.given(component))
    ]
    if findings:
        lines = [f"{finding.file}:{finding.line}: {finding.message}" for finding in findings]
        raise KilnError(f"{recipe.name}: " + "\n".join(lines), hint=findings[0].hint)


def locked() -> dict[str, str]:
    """URL → SHA-256 of every download that `amis.lock.yaml` knows the hash of."""
    path = ROOT / "amis.lock.yaml"
    return _hashes_in(path, path.stat().st_mtime_ns) if path.is_file() else {}


@lru_cache(maxsize=1)
def _hashes_in(path: Path, changed: int) -> dict[str, str]:
    """The hashes of a lock file; `changed` is its time, so that a new file is read again."""
    artifacts = located.load(path).data.get("artifacts", [])
    return {item["url"]: item["sha256"] for item in artifacts if item.get("sha256")}


def _hashes(chosen: list[Step]) -> dict[str, str]:
    """URL → SHA-256, of the recipe's downloads whose hash is locked."""
    known = locked()
    urls = [download.url for component in chosen for download in component.downloads]
    return {url: known[url] for url in urls if url in known}


def _fingerprints(wanted: Iterable[str]) -> dict[str, str]:
    """Key name → fingerprint, from `knowledge/keys.yaml`."""
    path = KNOWLEDGE / "keys.yaml"
    known: Mapping[str, Any] = {}
    if path.is_file():
        known = (yaml.safe_load(path.read_text()) or {}).get("keys") or {}
    found = {}
    for name in sorted(wanted):
        if name not in known:
            raise KilnError(
                f"signing key {name!r} is not in kiln/facts/knowledge/keys.yaml",
                hint="add it with its fingerprint and its source",
            )
        found[name] = str(known[name]["fingerprint"])
    return found
