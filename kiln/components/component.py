"""The type of components, and the look-ups that they share.

A component is one table entry: `NVIDIA_DRIVER` in stack.py for provisioners/nvidia-driver.sh. What
its script gets is looked up in tables of facts: its version, packages (packages.yaml), URLs
(downloads.yaml). What depends on more of a recipe is a function:

    environment(recipe) → the script's further variables
    downloads(recipe)   → further files that the script fetches
    files(recipe)       → path on the image → text, which kiln_install_files puts there
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from kiln import facts
from kiln.base import versions
from kiln.base.errors import KilnError
from kiln.base.recipe import Recipe
from kiln.base.versions import WantedPackage, parse_package


class Fact(str):
    """A text with the row of facts that it was made from; a `Step` holds plain texts."""

    __slots__ = ("row",)
    row: facts.UsedRow

    def __new__(cls, text: str, row: facts.UsedRow) -> Fact:
        fact = super().__new__(cls, text)
        fact.row = row
        return fact


@dataclass(frozen=True)
class Download:
    """A file that the provisioner fetches: `<env>_URL` and `<env>_SHA256` in its environment.

    `version` is set if no field of the recipe names it; the script then gets `<env>_VERSION` too.
    The hash comes from amis.lock.yaml, by URL, since file names repeat. A file whose name is that
    of another one plus .sig is its detached signature, by one of the component's `keys`: the script
    checks it, so the lock file needs no hash of it.
    """

    env: str
    url: str
    version: str = ""


@dataclass(frozen=True)
class Component:
    """One provisioner: `provisioners/<name>.sh`, checked by `tests/ami/test_<name>.py`.

    `needs` names the recipe's field without which the component is not baked; `wanted` decides it
    from the row's GPU stack where several fields count, and `serves` whether any instance type with
    a processor needs it. `version_field` names the recipe's field with the version of a component
    that every image has. `built_for`: the field, cuda, whose version it is built for. `optional`: a
    row may leave it out. `reboots`: the build instance may reboot after it.

    `version` is the script's variable with the version. `packages` maps variables to entries of
    packages.yaml: those that end in `_PACKAGES` come from the vendor's repository, in
    `_OS_PACKAGES` from the distribution's, in the format of kiln_install. `urls` are entries of
    downloads.yaml. `keys` maps a variable to the name of a signing key in keys.yaml, whose
    fingerprint the script gets.
    """

    name: str
    what: str
    needs: str | None = None
    wanted: Callable[[Mapping[str, Any]], bool] | None = None
    serves: Callable[[str], bool] | None = None
    version_field: str | None = None
    built_for: str | None = None
    optional: bool = True
    reboots: bool = False
    version: str | None = None
    packages: Mapping[str, str] = field(default_factory=dict)
    urls: tuple[str, ...] = ()
    keys: Mapping[str, str] = field(default_factory=dict)
    environment: Callable[[Recipe], Mapping[str, str]] | None = None
    downloads: Callable[[Recipe], Iterable[Download]] | None = None
    files: Callable[[Recipe], Mapping[str, str]] | None = None

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
        """Return the component's step for a recipe. A recipe that lacks a version that the
        component needs, or has unknown package names, is an error (exit status 2)."""
        for each in (self.request_field, self.built_for):
            if each and getattr(recipe, each) is None:
                raise KilnError(
                    f"{recipe.name} has no {each}, and component {self.name} depends on it",
                    hint=f"set a version of {each}, or remove what depends on it",
                )
        version = str(getattr(recipe, self.request_field)) if self.request_field else "0"
        variables = {self.version: version} if self.version else {}
        variables.update(self.environment(recipe) if self.environment else {})
        for variable, entry in self.packages.items():
            variables[variable] = packages(recipe, entry, version)
        fetched = list(self.downloads(recipe) if self.downloads else ())
        fetched += [each for env in self.urls for each in download(recipe, env, version)]
        texts = (*variables.values(), *(each.url for each in fetched))
        return Step(
            name=self.name,
            what=self.what,
            needs=self.needs,
            reboots=self.reboots,
            env={name: str(text) for name, text in variables.items()},
            downloads=tuple(replace(each, url=str(each.url)) for each in fetched),
            keys=dict(self.keys),
            files=dict(self.files(recipe)) if self.files else {},
            rows=tuple(text.row for text in texts if isinstance(text, Fact)),
        )


@dataclass(frozen=True)
class Step:
    """The work of a component for one recipe: the script's environment, its downloads, the signing
    keys that it trusts (variable → name in keys.yaml), the files that it puts on the image, and the
    rows of facts that its variables and URLs were made from."""

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


def packages(recipe: Recipe, entry: str, version: str = "0", **more: str) -> Fact:
    """An entry of packages.yaml in the format of kiln_install: `name=version`, with `@cuda…` if the
    revision names a CUDA. `more` are fields of packages.yaml that a recipe does not have. An
    archive that is not known to have them is an error (exit status 2)."""
    found = facts.archive_packages(entry, version, **{**_stack_fields(recipe), **more})
    if found is None:
        raise KilnError(
            f"{recipe.name}: no package of {entry} {version} is known for {recipe.distro.id} with "
            f"driver_source {recipe.driver_source}",
            hint="choose another driver_source, or add its name to "
            "kiln/facts/knowledge/packages.yaml",
        )
    build = f"@cuda{found.built_for}" if found.built_for else ""
    named = [f"{name}={version}{build}" for name in found.names]
    return Fact(" ".join([*named, *found.unversioned]), found.row)


def repository(recipe: Recipe, env: str) -> str:
    """The URL of a vendor's repository; empty if there is none for the distribution."""
    row = _row(recipe, "repositories", env, "0")
    return _url(recipe, env, row, "0") if row else ""


def download(recipe: Recipe, env: str, version: str = "0", **more: str) -> tuple[Download, ...]:
    """The download of a script's variable at the component's version; empty if there is none for
    the distribution. `more` are fields of downloads.yaml that a recipe lacks."""
    row = _row(recipe, "downloads", env, version)
    if row is None:
        return ()
    pinned = row.get("version", "")
    return (Download(env, _url(recipe, env, row, pinned or version, **more), pinned),)


def _row(recipe: Recipe, block: str, env: str, version: str) -> dict[str, Any] | None:
    rows = facts.table("downloads")[block][env]
    return facts.first_match(rows, version, _fields(recipe))


def _url(recipe: Recipe, env: str, row: dict[str, Any], version: str, **more: str) -> Fact:
    text = facts.fill(env, row["url"], version, {**_fields(recipe), **more})
    return Fact(text, facts.used_row("downloads.yaml", env, row))


def written_download(recipe: Recipe, env: str, url: str) -> Download:
    """The download of an overlay's component, whose URL has placeholders."""
    return Download(env, facts.fill(env, url, "", _fields(recipe)))


def operating_system(recipe: Recipe) -> str:
    """The vendor of the distribution's packages: amazon, ubuntu or debian."""
    if recipe.distro.family == "al":
        return "amazon"
    return "ubuntu" if facts.distro(recipe.distro.id)["vendor"] == "canonical" else "debian"


def _fields(recipe: Recipe) -> dict[str, str]:
    """The fields that conditions and placeholders of downloads.yaml use. `archive` is the origin of
    packages at the driver's version: rpm and deb mean NVIDIA's repositories; amazon, ubuntu and
    debian the distribution's own, for `driver_source: distro`."""
    system = operating_system(recipe)
    nvidia = "rpm" if system == "amazon" else "deb"
    return {
        "distro": recipe.distro.id,
        "family": recipe.distro.family,
        "os": system,
        "archive": system if recipe.driver_source == "distro" else nvidia,
        "arch": recipe.arch,
        "repo": recipe.distro.cuda_repo,
        **facts.table("downloads")["processors"][recipe.arch],
    }


def _stack_fields(recipe: Recipe) -> dict[str, str]:
    """The fields that packages.yaml uses: also those of the GPU stack."""
    fields = {**_fields(recipe), "driver_cuda": facts.driver_cuda(recipe.driver)}
    if recipe.cuda:
        series = versions.series(recipe.cuda)
        fields["cuda_major"] = versions.major(recipe.cuda)
        fields |= {"cuda_series": series, "cuda_package": series.replace(".", "-")}
    return fields
