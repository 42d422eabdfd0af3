"""The vendors of a row on a local HTTPS server (vendor_site.py), for tests of preflight.

By default they have everything that the row asks for; a test edits what they publish.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from kiln import facts
from kiln.base.paths import ROOT
from kiln.base.recipe import Recipe
from kiln.base.versions import WantedPackage
from kiln.components.package_repositories import Repository
from kiln.preflight.answers import RowAnswer
from kiln.preflight.ask import ask, demand
from tests.unit import rows
from tests.unit.preflight.vendor_site import (
    Pkg,
    Signer,
    Site,
    deb_repository,
    rpm_repository,
    served,
)

# A matrix of their own: the versions that tests name are what a vendor has or lacks.
MATRIX = ROOT / "tests" / "data" / "preflight" / "amis.yaml"
UBUNTU = "ubuntu2404/lts/base/x86_64"
AL2023 = "al2023/lts/base/x86_64"

Edit = Callable[[Repository, list[Pkg]], list[Pkg]]


def row(line: str) -> Recipe:
    return rows.row(line, MATRIX)


class Vendors:
    """All hosts of a row on one server."""

    def __init__(self, site: Site, signer: Signer, patch: pytest.MonkeyPatch) -> None:
        self.site = site
        self._signer = signer
        self._patch = patch

    def publish(self, recipe: Recipe, *edits: Edit) -> None:
        """Serve everything that a bake of the recipe asks for, with `edits` applied to indexes."""
        asked = demand(recipe)
        names = [repository.name for repository in asked.repositories]
        processor = facts.table("downloads")["processors"][recipe.arch]
        urls = [file.url for file in asked.files]
        for repository in asked.repositories:
            here = _asked_of(repository, names, asked.packages)
            for edit in edits:
                here = edit(repository, here)
            self._serve(repository, here, processor)
            urls += [repository.url, repository.key_url]
        for url in urls:
            if url:
                self.site.files.setdefault(self.path(url), b"a file")
                if url.endswith((".pub", "gpgkey", ".deb", ".asc")):
                    self.site.files[self.path(url)] = self._signer.key_file
        hosts = {f"{urlsplit(url).scheme}://{urlsplit(url).netloc}" for url in urls if url}
        pairs = [f"{host}={self.site.url}/{urlsplit(host).netloc}" for host in sorted(hosts)]
        self._patch.setenv("KILN_MIRRORS", " ".join(pairs))

    def path(self, url: str) -> str:
        parts = urlsplit(url)
        query = f"?{parts.query}" if parts.query else ""
        return f"/{parts.netloc}{parts.path}{query}"

    def _serve(
        self, repository: Repository, packages: list[Pkg], processor: dict[str, str]
    ) -> None:
        base = self.path(repository.url)
        if repository.kind == "apt":
            for suite in repository.suites:
                here = packages if suite == repository.suites[0] else []
                flat = suite == "/"
                made = deb_repository(
                    self._signer,
                    processor["deb"],
                    here,
                    suite="" if flat else suite,
                    parts=repository.components,
                )
                self._add(base, made)
            return
        if repository.mirror_list:
            self.site.files[base] = f"{repository.url}/mirror\n".encode()
            base = self.path(f"{repository.url}/mirror")
        signer = self._signer if repository.signed else None
        self._add(base, rpm_repository(signer, processor["uname"], packages))

    def _add(self, base: str, files: dict[str, bytes]) -> None:
        self.site.files |= {f"{base}/{path}": data for path, data in files.items()}


# The components whose packages are in a vendor's repository.
_NVIDIAS = ("nvidia-driver", "cuda", "dcgm", "nvidia-fabricmanager", "nvidia-imex")
_LIBRARIES = ("cudnn", "nccl")


def _asked_of(
    repository: Repository, names: list[str], packages: tuple[WantedPackage, ...]
) -> list[Pkg]:
    """The packages that this one of the row's repositories has."""
    apart = "nvidia-cuda-libraries" in names
    home = {
        **dict.fromkeys(_NVIDIAS, "nvidia-cuda"),
        **dict.fromkeys(_LIBRARIES, "nvidia-cuda-libraries" if apart else "nvidia-cuda"),
        "container-toolkit": "nvidia-container-toolkit",
    }
    here = [p for p in packages if home.get(p.component, names[0]) == repository.name]
    return list(dict.fromkeys(_published(package, repository) for package in here))


def _published(package: WantedPackage, repository: Repository) -> Pkg:
    built = f"+cuda{package.build.removeprefix('cuda')}" if package.build else ""
    driver = package.component == "nvidia-driver" and repository.kind == "rpm"
    return Pkg(
        package.name,
        f"{package.version or '1.0'}-1{built}",
        stream=f"nvidia-driver:{package.version.partition('.')[0]}-open" if driver else "",
    )


@contextmanager
def serving(folder: Path, signer: Signer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Vendors]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    # The server is in this process, and a busy machine may leave it no time for a minute. A host
    # that is silent is one that answers 503 here.
    monkeypatch.setattr("kiln.preflight.indexes.TIMEOUT", (600, 600))
    monkeypatch.setattr("kiln.preflight.packages.TIMEOUT", 600)
    for key in facts.table("keys")["keys"].values():
        monkeypatch.setitem(key, "fingerprint", signer.fingerprint)
    for key in facts.table("archives")["keys"].values():
        monkeypatch.setitem(key, "fingerprints", [signer.fingerprint])
        monkeypatch.delitem(key, "file", raising=False)
    with served(folder) as (site, certificate):
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate))
        yield Vendors(site, signer, monkeypatch)


def answers(*lines: str, whole_files: bool = False) -> list[RowAnswer]:
    recipes = [row(line) for line in lines]
    with tempfile.TemporaryDirectory() as folder:
        return ask(recipes, Path(folder), whole_files=whole_files, say=lambda _: None)


def without(*names: str) -> Edit:
    return lambda _, packages: [p for p in packages if p.name not in names]


def at(name: str, version: str) -> Edit:
    return lambda _, packages: [
        replace(p, version=version) if p.name == name else p for p in packages
    ]
