"""`./invoke preflight`: what it finds when a vendor does not publish what a bake fetches.

The vendors are a local HTTPS server (vendor_site.py). By default it has everything that the row
asks for; each test takes something away, as one of the first bakes would have met it.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest
import yaml
from vendor_site import Pkg, Signer, Site, deb_repository, rpm_repository, served

from kiln import facts
from kiln.base.errors import KilnError
from kiln.base.recipe import Recipe
from kiln.base.wanted_package import WantedPackage
from kiln.compat.published import judged_packages, unpublished_packages
from kiln.components.package_repositories import Repository
from kiln.facts.indexes import Judged, Published, index_file, indexes_folder
from kiln.matrix import load
from kiln.preflight import indexes as indexes_module
from kiln.preflight.answers import RowAnswer, State, rows_text
from kiln.preflight.ask import ask
from kiln.preflight.demand import demand
from kiln.preflight.fetch import Fetcher, NoAnswerError, mirrors
from kiln.preflight.record import record_worlds

UBUNTU = "ubuntu2404-580.178.04-open-cuda13.0-base-x86_64"
AL2023 = "al2023-580.178.04-open-cuda13.0-base-x86_64"

Edit = Callable[[Repository, list[Pkg]], list[Pkg]]


def row(name: str) -> Recipe:
    return next(recipe for recipe in load.load_recipes() if recipe.name == name)


class Vendors:
    """All hosts of a row on one server."""

    def __init__(self, site: Site, signer: Signer, patch: pytest.MonkeyPatch) -> None:
        self.site = site
        self._signer = signer
        self._patch = patch

    def publish(self, recipe: Recipe, edit: Edit = lambda _, packages: packages) -> None:
        """Serve everything that a bake of the recipe asks for, with `edit` applied to indexes."""
        asked = demand(recipe)
        urls = [file.url for file in asked.files]
        for repository in asked.repositories:
            self._serve(repository, edit(repository, _asked_of(repository, asked.packages)))
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

    def _serve(self, repository: Repository, packages: list[Pkg]) -> None:
        base = self.path(repository.url)
        if repository.kind == "apt":
            for suite in repository.suites:
                here = packages if suite == repository.suites[0] else []
                flat = suite == "/"
                made = deb_repository(
                    self._signer,
                    "amd64",
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
        self._add(base, rpm_repository(signer, "x86_64", packages))

    def _add(self, base: str, files: dict[str, bytes]) -> None:
        self.site.files |= {f"{base}/{path}": data for path, data in files.items()}


def _asked_of(repository: Repository, packages: tuple[WantedPackage, ...]) -> list[Pkg]:
    """The packages that this repository has: NVIDIA's own, or else the distribution's."""
    vendors = {
        "nvidia-container-toolkit": ("container-toolkit",),
        "nvidia-cuda": ("nvidia-driver", "cuda", "cudnn", "nccl", "dcgm", "nvidia-fabricmanager"),
    }
    of_vendors = [component for listed in vendors.values() for component in listed]
    listed = []
    for package in packages:
        there = package.component in vendors.get(repository.name, ())
        if there or (package.component not in of_vendors and repository.name not in vendors):
            listed.append(_published(package, repository))
    return list(dict.fromkeys(listed))


def _published(package: WantedPackage, repository: Repository) -> Pkg:
    built = f"+cuda{package.build.removeprefix('cuda')}" if package.build else ""
    driver = package.component == "nvidia-driver" and repository.kind == "rpm"
    return Pkg(
        package.name,
        f"{package.version or '1.0'}-1{built}",
        stream="nvidia-driver:580-open" if driver else "",
    )


@pytest.fixture(scope="module")
def signer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Signer]:
    made = Signer(tmp_path_factory.mktemp("signer") / "home")
    yield made
    made.close()


@pytest.fixture
def vendors(tmp_path: Path, signer: Signer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Vendors]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for key in facts.table("keys")["keys"].values():
        monkeypatch.setitem(key, "fingerprint", signer.fingerprint)
    for key in facts.table("archives")["keys"].values():
        monkeypatch.setitem(key, "fingerprints", [signer.fingerprint])
        monkeypatch.delitem(key, "file", raising=False)
    with served(tmp_path) as (site, certificate):
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate))
        yield Vendors(site, signer, monkeypatch)


def answers(*names: str, whole_files: bool = False) -> list[RowAnswer]:
    recipes = [row(name) for name in names]
    with tempfile.TemporaryDirectory() as folder:
        asked = ask(recipes, Path(folder), whole_files=whole_files, say=lambda _: None)
    return list(asked.rows)


def without(*names: str) -> Edit:
    return lambda _, packages: [p for p in packages if p.name not in names]


def at(name: str, version: str) -> Edit:
    return lambda _, packages: [
        dataclasses.replace(p, version=version) if p.name == name else p for p in packages
    ]


@pytest.mark.parametrize("name", [UBUNTU, AL2023])
def test_a_row_whose_vendors_have_everything_passes(vendors: Vendors, name: str) -> None:
    vendors.publish(row(name))
    (answer,) = answers(name)
    assert answer.problems() == []
    assert answer.silent_hosts() == {}
    assert answer.state is State.PUBLISHED
    assert len(answer.resolved[0].packages) == len({p.package.name for p in answer.packages})
    assert "1 of 1 rows: everything is published" in rows_text([answer])


# As in first bakes of real rows: NCCL without a build for the row's CUDA, a driver that is in no
# index, a package under the name of another branch, a repository without the package at all.
@pytest.mark.parametrize(
    ("name", "edit", "problem"),
    [
        (
            UBUNTU,
            at("libnccl2", "2.28.9-1+cuda12.9"),
            "libnccl2=2.28.9@cuda13.0: not at 2.28.9 built for cuda13.0; "
            "the nearest published is 2.28.9-1+cuda12.9",
        ),
        (
            UBUNTU,
            at("nvidia-open-580", "580.167.08-1"),
            "nvidia-open-580=580.178.04: not at 580.178.04; the nearest published is 580.167.08-1",
        ),
        (
            UBUNTU,
            lambda _, packages: [
                dataclasses.replace(p, name="nvidia-fabricmanager-580")
                if p.name == "nvidia-fabricmanager"
                else p
                for p in packages
            ],
            "nvidia-fabricmanager=580.178.04: no package of this name; "
            "published is nvidia-fabricmanager-580",
        ),
        (
            AL2023,
            without("libcudnn9-cuda-13"),
            "libcudnn9-cuda-13=9.24.1.1: no package of this name; "
            "published is libcudnn9-devel-cuda-13",
        ),
    ],
    ids=["nccl-for-another-cuda", "driver-not-in-the-index", "name-of-a-branch", "no-cudnn"],
)
def test_a_package_that_is_not_published_is_named_with_the_nearest(
    vendors: Vendors, name: str, edit: Edit, problem: str
) -> None:
    vendors.publish(row(name), edit)
    (answer,) = answers(name)
    assert problem in answer.problems()
    assert answer.state is State.MISSING


def test_a_dependency_that_nobody_has_is_found_by_apt(vendors: Vendors) -> None:
    def edit(_: Repository, packages: list[Pkg]) -> list[Pkg]:
        return [
            dataclasses.replace(p, requires=("libfabric-extra",))
            if p.name == "nvidia-open-580"
            else p
            for p in packages
        ]

    vendors.publish(row(UBUNTU), edit)
    (answer,) = answers(UBUNTU)
    assert "nvidia-open-580 : Depends: libfabric-extra but it is not installable" in str(
        answer.problems()
    )


def test_a_dependency_that_nobody_has_and_a_stream_without_the_driver_are_found_by_dnf(
    vendors: Vendors,
) -> None:
    def edit(_: Repository, packages: list[Pkg]) -> list[Pkg]:
        return [
            dataclasses.replace(p, requires=("kernel-modules-extra",))
            if p.name == "nvidia-driver-cuda"
            else p
            for p in packages
        ]

    vendors.publish(row(AL2023), edit)
    (answer,) = answers(AL2023)
    assert "nothing provides kernel-modules-extra" in str(answer.problems())


def test_metadata_by_another_key_than_the_pinned_one_is_refused(
    vendors: Vendors, tmp_path: Path
) -> None:
    vendors.publish(row(UBUNTU))
    stranger = Signer(tmp_path / "stranger")
    for path in [path for path in vendors.site.files if path.endswith("/x86_64/InRelease")]:
        vendors.site.files[path] = stranger.clear_signed("Suite: /\n")
    stranger.close()
    (answer,) = answers(UBUNTU)
    assert "repository nvidia-cuda" in str(answer.problems())
    assert "no valid signature by a pinned key" in str(answer.problems())


def test_a_key_file_without_the_pinned_key_is_refused(vendors: Vendors, tmp_path: Path) -> None:
    vendors.publish(row(UBUNTU))
    stranger = Signer(tmp_path / "stranger")
    key = next(path for path in vendors.site.files if path.endswith("/3bf863cc.pub"))
    vendors.site.files[key] = stranger.key_file
    stranger.close()
    (answer,) = answers(UBUNTU)
    assert f"the key file holds {stranger.fingerprint}; pinned:" in str(answer.problems())


def test_rpm_metadata_that_was_changed_after_it_was_signed_is_refused(vendors: Vendors) -> None:
    vendors.publish(row(AL2023))
    path = next(p for p in vendors.site.files if "nvidia.com" in p and p.endswith("repomd.xml"))
    vendors.site.files[path] += b"<!-- changed -->"
    (answer,) = answers(AL2023)
    assert "repository nvidia-cuda" in str(answer.problems())
    assert "BAD signature" in str(answer.problems())


def test_metadata_that_changes_after_its_signature_was_checked_is_not_used(
    vendors: Vendors, monkeypatch: pytest.MonkeyPatch
) -> None:
    vendors.publish(row(AL2023))
    checked = indexes_module.ask_repository

    def and_then_it_changes(*words: Any, **named: Any) -> Any:
        index = checked(*words, **named)
        for path in [path for path in vendors.site.files if path.endswith("/repomd.xml")]:
            vendors.site.files[path] += b"<!-- -->"
        return index

    monkeypatch.setattr("kiln.preflight.ask.ask_repository", and_then_it_changes)
    (answer,) = answers(AL2023)
    assert "changed while it was read" in str(answer.problems())


def test_asking_leaves_no_process_behind(vendors: Vendors, tmp_path: Path) -> None:
    vendors.publish(row(AL2023))
    assert answers(AL2023)[0].state is State.PUBLISHED
    processes = [process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"])]
    assert [words for words in processes if str(tmp_path / "cache") in " ".join(words)] == []


def test_a_file_that_the_vendor_does_not_have_is_named(vendors: Vendors) -> None:
    vendors.publish(row(UBUNTU))
    (gone,) = [path for path in vendors.site.files if path.endswith("installer-1.51.0.tar.gz")]
    del vendors.site.files[gone]
    (answer,) = answers(UBUNTU)
    assert answer.problems() == [f"{vendors.site.url}{gone}: HTTP status 404"]


def test_a_file_with_other_content_than_the_known_hash_is_named(vendors: Vendors) -> None:
    vendors.publish(row(UBUNTU))
    (answer,) = answers(UBUNTU, whole_files=True)
    assert "has sha256" in str(answer.problems())
    assert "expected" in str(answer.problems())


def test_a_host_that_does_not_answer_is_no_proof_that_something_is_missing(
    vendors: Vendors,
) -> None:
    vendors.publish(row(UBUNTU))
    silent = [path for path in vendors.site.files if path.startswith("/developer.download")]
    vendors.site.statuses |= dict.fromkeys(silent, 503)
    (answer,) = answers(UBUNTU)
    assert answer.problems() == []
    assert answer.state is State.SILENT
    assert set(answer.silent_hosts().values()) == {"HTTP status 503"}
    assert "1: not every host answered" in rows_text([answer])


def test_a_half_downloaded_file_is_never_taken_for_whole(vendors: Vendors, tmp_path: Path) -> None:
    site = vendors.site
    site.files["/file"] = b"0123456789" * 1000
    site.cut.add("/file")
    fetcher = Fetcher(tmp_path / "files")
    with pytest.raises(NoAnswerError, match=r"before the file did|ended after"):
        fetcher.get(f"{site.url}/file")
    assert list((tmp_path / "files").iterdir()) == []
    site.cut.clear()
    assert fetcher.get(f"{site.url}/file").size == 10_000


def test_a_copy_that_was_damaged_here_is_fetched_again(vendors: Vendors, tmp_path: Path) -> None:
    site = vendors.site
    site.files["/file"] = b"whole"
    fetcher = Fetcher(tmp_path / "files")
    fetcher.get(f"{site.url}/file").path.write_bytes(b"who")
    assert fetcher.get(f"{site.url}/file").path.read_bytes() == b"whole"


def test_what_has_not_changed_is_not_sent_again(vendors: Vendors) -> None:
    vendors.publish(row(UBUNTU))
    assert answers(UBUNTU)[0].state is State.PUBLISHED
    vendors.site.sent.clear()
    assert answers(UBUNTU)[0].state is State.PUBLISHED
    assert not [path for path in vendors.site.sent if path.endswith((".gz", ".pub"))]


def test_a_proxy_of_the_environment_is_used(
    vendors: Vendors, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    with pytest.raises(NoAnswerError, match="the proxy refuses"):
        Fetcher(tmp_path / "files").size("https://vendor.example/file")


def test_a_word_of_kiln_mirrors_that_is_no_pair_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KILN_MIRRORS", "https://mirror.example")
    with pytest.raises(KilnError, match="is not a pair of URLs"):
        mirrors()


def test_every_row_asks_the_distributions_own_repositories() -> None:
    for recipe in load.load_recipes():
        asked = demand(recipe)
        vendor = {entry["name"] for entry in facts.table("archives")["vendors"].values()}
        own = [entry for entry in asked.repositories if entry.name not in vendor]
        assert own, recipe.name
        assert asked.packages, recipe.name


def recorded(name: str, today: date) -> list[Path]:
    with tempfile.TemporaryDirectory() as folder:
        asked = ask([row(name)], Path(folder), whole_files=False, say=lambda _: None)
        return record_worlds(asked.worlds, today)


def states(name: str) -> dict[str, Judged]:
    return {str(package): judged for package, judged in judged_packages(row(name)).items()}


@pytest.fixture
def indexes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder of recorded indexes."""
    monkeypatch.setenv("KILN_INDEXES", str(tmp_path / "indexes"))
    return tmp_path / "indexes"


@pytest.mark.parametrize("name", [UBUNTU, AL2023])
def test_what_was_recorded_is_known_to_check(vendors: Vendors, indexes: Path, name: str) -> None:
    assert {judged.state for judged in states(name).values()} == {Published.UNKNOWN}
    vendors.publish(row(name))
    assert len(recorded(name, date(2026, 11, 23))) == len(demand(row(name)).repositories)
    assert {judged.state for judged in states(name).values()} == {Published.YES}
    assert unpublished_packages(row(name)) == []


def test_a_record_of_which_only_the_date_would_change_is_left_alone(
    vendors: Vendors, indexes: Path
) -> None:
    vendors.publish(row(UBUNTU))
    assert recorded(UBUNTU, date(2026, 11, 23))
    assert recorded(UBUNTU, date(2026, 11, 24)) == []


def test_check_refuses_a_version_that_is_recorded_as_not_published(
    vendors: Vendors, indexes: Path
) -> None:
    vendors.publish(row(UBUNTU), at("nvidia-open-580", "580.167.08-1"))
    recorded(UBUNTU, date(2026, 11, 23))
    (finding,) = unpublished_packages(row(UBUNTU))
    assert finding.level == "error"
    assert finding.rule == "PKG-NOT-PUBLISHED"
    assert "nvidia-open-580=580.178.04, which was not published for ubuntu2404" in finding.message
    assert "on 2026-11-23: the nearest is 580.167.08-1" in finding.message
    assert finding.path == "stacks.lts.driver"


def test_a_name_that_no_repository_has_is_recorded_as_not_published(
    vendors: Vendors, indexes: Path
) -> None:
    vendors.publish(row(UBUNTU), without("libnccl2"))
    recorded(UBUNTU, date(2026, 11, 23))
    (finding,) = unpublished_packages(row(UBUNTU))
    assert "no version of it is" in finding.message


def test_a_repository_that_is_silent_keeps_its_record(vendors: Vendors, indexes: Path) -> None:
    vendors.publish(row(UBUNTU))
    recorded(UBUNTU, date(2026, 11, 23))
    silent = [path for path in vendors.site.files if path.startswith("/developer.download")]
    vendors.site.statuses |= dict.fromkeys(silent, 503)
    recorded(UBUNTU, date(2026, 11, 24))
    assert states(UBUNTU)["nvidia-open-580=580.178.04"].state is Published.YES


def test_without_the_record_of_one_repository_a_missing_package_is_not_recorded(
    vendors: Vendors, indexes: Path
) -> None:
    vendors.publish(row(UBUNTU), without("libnccl2"))
    recorded(UBUNTU, date(2026, 11, 23))
    (indexes / "ubuntu2404-x86_64-nvidia-container-toolkit.yaml").unlink()
    assert states(UBUNTU)["libnccl2=2.28.9@cuda13.0"].state is Published.UNKNOWN


def test_requirements_are_recorded_in_the_tools_own_words(vendors: Vendors, indexes: Path) -> None:
    def edit(_: Repository, packages: list[Pkg]) -> list[Pkg]:
        return [
            dataclasses.replace(p, requires=("libnccl2 (= 2.28.9-1+cuda13.0)",))
            if p.name == "libnccl-dev"
            else p
            for p in packages
        ]

    vendors.publish(row(UBUNTU), edit)
    recorded(UBUNTU, date(2026, 11, 23))
    data = yaml.safe_load((indexes / "ubuntu2404-x86_64-nvidia-cuda.yaml").read_text())
    (entry,) = data["packages"]["libnccl-dev"]
    assert entry["requires"] == ["libnccl2 (= 2.28.9-1+cuda13.0)"]
    assert data["signed"] is True


def test_every_committed_index_is_one_that_a_row_may_ask() -> None:
    known = {
        index_file(recipe.distro.id, recipe.arch, entry.name).name
        for recipe in load.load_recipes()
        for entry in demand(recipe).repositories
    }
    committed = sorted(path.name for path in indexes_folder().iterdir())
    assert committed
    assert set(committed) <= known
