"""Warnings about unconfirmed keys, hashes and other facts that a row rests on.

A key needs two independent sources, a hash needs one that shows it; otherwise keys.yaml and
checksums.yaml have `confirmed: false`. The bake enforces unconfirmed keys and hashes as well. The
other facts are names of packages, URLs of downloads and repositories, and the kernel that the
parent AMI boots; what the rules use is in `used_facts`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kiln import components, facts
from kiln.base import overlay, paths
from kiln.base.errors import KilnError
from kiln.base.findings import Finding
from kiln.base.recipe import Recipe
from kiln.compat.rules.combination import Kernel
from kiln.compat.used_facts import RULE, shown_source
from kiln.facts import lock_file

_WHAT = {
    "packages.yaml": "installs packages whose names are not confirmed",
    "downloads.yaml": "downloads from a URL that is not confirmed",
}


def findings(recipe: Recipe, kernel: Kernel | None = None) -> list[Finding]:
    """A warning for each unconfirmed key, hash, package name and URL of the recipe's components, in
    bake order, and for `kernel`, which the image boots, if it is not confirmed."""
    warnings = [
        finding.at(recipe.row.place_of(*_fields(name))) for name, finding in _findings(recipe)
    ]
    if kernel is not None and not kernel.confirmed:
        warnings.append(_kernel_finding(recipe, kernel).at(recipe.row.place_of("kernel", "distro")))
    return warnings


def _kernel_finding(recipe: Recipe, kernel: Kernel) -> Finding:
    distro = recipe.distro.id
    return Finding(
        "warning",
        RULE,
        f"{distro} boots kernel {kernel.name} ({kernel}) as far as known, which is not confirmed",
        why="no source shows it, and the rules about kernels rest on it",
        hint=f"compare it with `uname -r` on the parent AMI and give the entry under {distro} in "
        "kiln/facts/knowledge/distros.yaml a source, or pin another kernel",
        source=shown_source(
            facts.full_source(kernel.source, facts.table("distros")["sources"]), "distros.yaml"
        ),
    )


def _fact_finding(component: str, row: facts.UsedRow) -> Finding:
    return Finding(
        "warning",
        RULE,
        f"{component} {_WHAT[row.file]}: {row.key} in kiln/facts/knowledge/{row.file}",
        why="they were not compared with the vendor's own index, so the bake may not find them",
        hint="compare the entry with the vendor's own index and give it a source, or leave "
        f"{component} out",
        source=shown_source(row.source, row.file),
        component=component,
    )


def _fields(component: str) -> tuple[str, ...]:
    """The recipe's field that requests the component or has its version; none if no field does."""
    field = components.get(component).request_field
    return (field,) if field else ()


def _findings(recipe: Recipe) -> Iterator[tuple[str, Finding]]:
    for name in recipe.components:
        try:
            component = components.get(name).for_recipe(recipe)
        except KilnError:  # the row lacks something that the component needs: a rule reports that
            continue
        for row in component.rows:
            if not row.confirmed:
                yield name, _fact_finding(name, row)
        for key in _used_keys(component, recipe):
            if not key.confirmed:
                finding = Finding(
                    "warning",
                    "KEY-UNCONFIRMED",
                    f"{name} trusts a signing key that is not confirmed: {key.fingerprint}",
                    why=f"fewer than two independent sources show it; it signs {key.signs}",
                    hint=f"compare it with the vendor's own statement and name two sources under "
                    f"{key.name} in kiln/facts/knowledge/keys.yaml, or leave {name} out",
                    source="; ".join(key.sources),
                    component=name,
                )
                yield name, finding
        for download in component.downloads:
            source = _unconfirmed_hash(download.url)
            if source is not None:
                finding = Finding(
                    "warning",
                    "HASH-UNCONFIRMED",
                    f"{name} downloads {download.url.split('/')[-1]}, whose locked hash is not "
                    "confirmed",
                    why=f"the hash of {download.url} was not compared with the vendor's file",
                    hint=f"compare {overlay.shown_path(paths.lock_file())} with the source; a bake "
                    "on AWS that downloads the file confirms it too",
                    source=source,
                    component=name,
                )
                yield name, finding


def _unconfirmed_hash(url: str) -> str | None:
    """The source of the hash that a bake enforces, if that hash is unconfirmed; otherwise None.

    The lock file goes first: a bake may have confirmed a hash that checksums.yaml does not.
    """
    entry = locked_entries().get(url)
    if entry:
        return str(entry["source"]) if not facts.confirmed(entry) else None
    published = facts.known_sha256(url)
    return published.source if published and not published.confirmed else None


def locked_entries() -> dict[str, dict[str, Any]]:
    """The entries of amis.lock.yaml that have a hash, by URL."""
    return {
        item["url"]: item for item in lock_file.read_lock_file()["artifacts"] if item.get("sha256")
    }


def _used_keys(component: components.Step, recipe: Recipe) -> Iterator[facts.SigningKey]:
    """The keys that the component uses for a recipe: none if the recipe downloads no key file, and
    of NVIDIA's repository keys only that of the distribution's package format."""
    if not any(download.env.endswith("_KEY") for download in component.downloads):
        return
    family = {"al": "rpm", "debian": "deb"}[recipe.distro.family]
    for name in component.keys.values():
        if not name.startswith("nvidia-cuda-") or name == f"nvidia-cuda-{family}":
            yield facts.signing_keys()[name]
