"""The type of components, and the look-ups that they share.

Each component is a module beside this one: `nvidia_driver.py` for provisioners/nvidia-driver.sh. It
has `COMPONENT` at its end and up to three functions of a recipe:

    environment(recipe) → the script's variables; a value from a table of facts is a Fact
    downloads(recipe)   → the files that the script fetches
    files(recipe)       → path on the image → text, which kiln_install_files puts there
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kiln import facts
from kiln.base import versions
from kiln.base.errors import KilnError
from kiln.base.recipe import Recipe
from kiln.base.versions import WantedPackage, parse_package


@dataclass(frozen=True)
class Fact:
    """A value from a table of facts: its text, and the row of the table that it was made from."""

    text: str
    row: facts.UsedRow


# What a component gives to its script.
Environment = Mapping[str, str | Fact]


@dataclass(frozen=True)
class Download:
    """A file that the provisioner fetches: `<env>_URL` and `<env>_SHA256` in its environment.

    `version` is set if no field of the recipe names it; the script then gets `<env>_VERSION` too.
    The hash comes from amis.lock.yaml, by URL, since file names repeat. A file whose name is that
    of another one plus .sig is its detached signature, by one of the component's `keys`: the script
    checks it, so the lock file needs no hash of it. `row` is the
    row of facts that names the URL, if one does.
    """

    env: str
    url: str
    version: str = ""
    row: facts.UsedRow | None = None


def _no_variables(recipe: Recipe) -> Environment:
    del recipe
    return {}


def _no_files(recipe: Recipe) -> dict[str, str]:
    del recipe
    return {}


def _no_downloads(recipe: Recipe) -> tuple[Download, ...]:
    del recipe
    return ()


@dataclass(frozen=True)
class Component:
    """One provisioner: `provisioners/<name>.sh`, checked by `tests/ami/test_<name>.py`.

    `needs` names the recipe's field without which the component is not baked; `wanted` decides it
    from the row's GPU stack where several fields count. `version_field` names the recipe's field
    with the version of a component that every image has. `optional`: a row may leave it out.
    `reboots`: the build instance may reboot after it. `keys` maps a variable of the script to the
    name of a signing key in keys.yaml, whose fingerprint the script gets. `serves` says whether any
    instance type with a processor needs the component.

    Variables that end in `_PACKAGES` list packages from the vendor's repository, those that end in
    `_OS_PACKAGES` from the distribution's, in the format of kiln_install.
    """

    name: str
    what: str
    needs: str | None = None
    wanted: Callable[[Mapping[str, Any]], bool] | None = None
    serves: Callable[[str], bool] | None = None
    version_field: str | None = None
    optional: bool = True
    reboots: bool = False
    keys: Mapping[str, str] = field(default_factory=dict)
    environment: Callable[[Recipe], Environment] = _no_variables
    downloads: Callable[[Recipe], tuple[Download, ...]] = _no_downloads
    files: Callable[[Recipe], dict[str, str]] = _no_files

    @property
    def request_field(self) -> str | None:
        """The recipe's field that requests the component or has its version, if one does."""
        return self.needs or self.version_field

    @property
    def lacks(self) -> dict[str, str]:
        """Distributions that do not support the component → why. Their images are built without."""
        entries = facts.table("packages")["lacks"].get(self.name, {})
        return {distro: entry["why"] for distro, entry in entries.items()}

    def for_recipe(self, recipe: Recipe) -> Step:
        """What the component does for a recipe.

        Raises KilnError (exit status 2) if the recipe lacks a version that the component needs, or
        if its package names are unknown.
        """
        variables = self.environment(recipe)
        downloads = self.downloads(recipe)
        rows = [value.row for value in variables.values() if isinstance(value, Fact)]
        return Step(
            name=self.name,
            what=self.what,
            needs=self.needs,
            reboots=self.reboots,
            env={
                name: value.text if isinstance(value, Fact) else value
                for name, value in variables.items()
            },
            downloads=downloads,
            keys=dict(self.keys),
            files=self.files(recipe),
            rows=(*rows, *(download.row for download in downloads if download.row)),
        )


@dataclass(frozen=True)
class Step:
    """What a component does for one recipe: the script's environment, its downloads, the signing
    keys that it trusts (variable → name in keys.yaml), the files that it puts on the image, and
    the rows of facts that its variables and downloads were made from."""

    name: str
    what: str
    needs: str | None
    reboots: bool
    env: dict[str, str]
    downloads: tuple[Download, ...]
    keys: dict[str, str]
    files: dict[str, str]
    rows: tuple[facts.UsedRow, ...]

    @property
    def packages(self) -> dict[str, tuple[WantedPackage, ...]]:
        """The script's variables that list packages → the packages."""
        return {
            variable: tuple(parse_package(self.name, spec) for spec in value.split())
            for variable, value in self.env.items()
            if variable.endswith(("_PACKAGES", "_PACKAGE"))
        }


def needed(version: str | None, field_name: str, recipe: Recipe) -> str:
    """A version that a component needs.

    Raises KilnError (exit status 2) if the recipe does not name it.
    """
    if version is None:
        raise KilnError(
            f"{recipe.name} has no {field_name}, and one of its components depends on it",
            hint=f"set a version of {field_name}, or remove what depends on it",
        )
    return version


def of_cuda(recipe: Recipe) -> dict[str, str]:
    """The fields of packages.yaml that depend on the recipe's CUDA.

    Raises KilnError (exit status 2) if the recipe has no CUDA.
    """
    cuda = needed(recipe.cuda, "cuda", recipe)
    series = versions.series(cuda)
    return {
        "cuda_major": versions.major(cuda),
        "cuda_series": series,
        "cuda_package": series.replace(".", "-"),
    }


def operating_system(recipe: Recipe) -> str:
    """The vendor of the distribution's packages: amazon, ubuntu or debian."""
    return system_of(recipe.distro.id, recipe.distro.family)


def system_of(distro_id: str, family: str) -> str:
    """The same of a distribution by its id and family (al or debian)."""
    if family == "al":
        return "amazon"
    return "ubuntu" if facts.distro(distro_id)["vendor"] == "canonical" else "debian"


def archive(recipe: Recipe) -> str:
    """The origin of packages at the driver's version: rpm and deb mean NVIDIA's repositories;
    amazon, ubuntu and debian the distribution's own, for `driver_source: distro`."""
    system = operating_system(recipe)
    if recipe.driver_source == "distro":
        return system
    return "rpm" if system == "amazon" else "deb"


def packages(recipe: Recipe, component: str, version: str = "0", **more: str) -> Fact:
    """A component's packages in the format of kiln_install: `name=version`, with `@cuda…` if the
    revision names a CUDA. `more` are fields of packages.yaml that a recipe does not have.

    Raises KilnError (exit status 2) if the recipe's archive is not known to have them.
    """
    entry = facts.archive_packages(component, version, **{**_fields(recipe), **more})
    if entry is None:
        raise KilnError(
            f"{recipe.name}: no package of {component} {version} is known for "
            f"{recipe.distro.id} with driver_source {recipe.driver_source}",
            hint="choose another driver_source, or add its name to "
            "kiln/facts/knowledge/packages.yaml",
        )
    build = f"@cuda{entry.built_for}" if entry.built_for else ""
    named = [
        *(f"{name}={version}{build}" for name in entry.names),
        *entry.unversioned,
    ]
    return Fact(" ".join(named), entry.row)


def packaged(recipe: Recipe, component: str, version: str, **more: str) -> bool:
    """Is the recipe's archive known to have packages of the component?"""
    return facts.archive_packages(component, version, **{**_fields(recipe), **more}) is not None


def repository(recipe: Recipe, env: str) -> str | Fact:
    """The URL of a vendor's repository; empty if there is none for the distribution."""
    rows = facts.table("downloads")["repositories"][env]
    row = facts.first_match("downloads.yaml", env, rows, "0", _fields(recipe))
    if row is None:
        return ""
    url = facts.fill("downloads.yaml", env, row["url"], "0", _fields(recipe))
    return Fact(url, facts.used_row("downloads.yaml", env, row))


def download(recipe: Recipe, env: str, version: str = "0", **more: str) -> tuple[Download, ...]:
    """The download of a script's variable at the component's version; empty if there is none for
    the distribution. `more` are fields of downloads.yaml that a recipe lacks."""
    rows = facts.table("downloads")["downloads"][env]
    fields = {**_fields(recipe), **more}
    row = facts.first_match("downloads.yaml", env, rows, version, fields)
    if row is None:
        return ()
    pinned = row.get("version", "")
    url = facts.fill("downloads.yaml", env, row["url"], pinned or version, fields)
    return (Download(env, url, pinned, facts.used_row("downloads.yaml", env, row)),)


def written_download(recipe: Recipe, env: str, url: str, file: Path) -> Download:
    """The download of an overlay's component, whose `file` holds the URL with its placeholders."""
    return Download(env, facts.fill(file, env, url, "", _fields(recipe)))


def _fields(recipe: Recipe) -> dict[str, str]:
    """The fields that conditions and placeholders of packages.yaml and downloads.yaml use."""
    return {
        "distro": recipe.distro.id,
        "family": recipe.distro.family,
        "os": operating_system(recipe),
        "archive": archive(recipe),
        "arch": recipe.arch,
        "repo": recipe.distro.cuda_repo,
        **facts.table("downloads")["processors"][recipe.arch],
    }
