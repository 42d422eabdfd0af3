"""The vendors' hosts as a guest sees them: real TLS, real package tools, 404 as the vendors."""

from __future__ import annotations

import hashlib
import http.client
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from kiln import components
from kiln.base.errors import KilnError
from kiln.base.recipe import Recipe
from kiln.matrix import load
from lab.vendors import mirror
from lab.vendors.mirror import amazon, ca, cuda_repository, debian, keys, nvidia_toolkit, repos
from lab.vendors.packages import model
from lab.vendors.packages.model import File, Package

RUN = "https://us.download.nvidia.com/tesla/{0}/NVIDIA-Linux-x86_64-{0}.run"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, int, Path]]:
    """A running mirror: its HTTPS port, its HTTP port, its log."""
    log = tmp_path_factory.mktemp("mirror") / "mirror.log"
    running = mirror.serve("127.0.0.1", 0, 0, log=log)
    yield running.ports[0], running.ports[1], log
    running.close()


def fetch(port: int, url: str, method: str = "GET", **headers: str) -> tuple[int, bytes]:
    """Status and body."""
    answer = asked(port, url, method, **headers)
    return answer.status, answer.read()


def asked(port: int, url: str, method: str = "GET", **headers: str) -> http.client.HTTPResponse:
    """The answer, over TLS that trusts only the lab's CA, with SNI and Host."""
    host, path = url.removeprefix("https://").split("/", 1)
    context = ssl.create_default_context(cafile=str(ca.ensure().certificate))

    class Here(http.client.HTTPSConnection):
        def connect(self) -> None:
            import socket

            plain = socket.create_connection(("127.0.0.1", port), timeout=60)
            self.sock = context.wrap_socket(plain, server_hostname=host)

    connection = Here(host, context=context)
    connection.request(method, f"/{path}", headers={"Host": host, **headers})
    return connection.getresponse()


class TestServer:
    def test_every_vendor_host_answers_under_its_own_name(
        self, served: tuple[int, int, Path]
    ) -> None:
        for host in mirror.vendor_hosts():
            assert fetch(served[0], f"https://{host}/nothing-here")[0] == 404

    def test_a_host_that_is_not_a_vendors_is_not_impersonated(
        self, served: tuple[int, int, Path]
    ) -> None:
        with pytest.raises(ssl.SSLCertVerificationError):
            fetch(served[0], "https://example.com/")

    def test_what_is_served_has_the_hash_the_build_is_told(
        self, served: tuple[int, int, Path]
    ) -> None:
        url = RUN.format("510.47.03")
        status, content = fetch(served[0], url)
        assert status == 200
        assert hashlib.sha256(content).hexdigest() == mirror.sha256(url)

    def test_a_driver_that_was_never_published_is_the_vendors_404(
        self, served: tuple[int, int, Path]
    ) -> None:
        assert fetch(served[0], RUN.format("510.47.04"))[0] == 404
        with pytest.raises(KilnError, match=r"has no https://us\.download") as raised:
            mirror.sha256(RUN.format("510.47.04"))
        assert "catalog.yaml" in raised.value.hint

    def test_nothing_outside_a_repository_can_be_asked_for(
        self, served: tuple[int, int, Path]
    ) -> None:
        base = "https://cdn.amazonlinux.com/kiln-lab/2/core/x86_64"
        assert fetch(served[0], f"{base}/repodata/repomd.xml")[0] == 200
        for path in ("../../../keys/efa.fpr", "%2e%2e/%2e%2e/%2e%2e/keys/efa.fpr"):
            assert fetch(served[0], f"{base}/{path}")[0] == 404


@pytest.fixture(params=load.load_recipes(), ids=lambda recipe: recipe.name)
def recipe(request: pytest.FixtureRequest) -> Recipe:
    result: Recipe = request.param
    return result


class TestTheMatrixCanBeBaked:
    def test_everything_a_row_downloads_is_there(self, recipe: Recipe) -> None:
        for name in recipe.components:
            for download in components.get(name).for_recipe(recipe).downloads:
                assert len(mirror.sha256(download.url)) == 64, download.url

    def test_every_package_a_row_names_is_in_a_repository(self, recipe: Recipe) -> None:
        known = {(package.name, package.version) for package in packages_for(recipe)}
        names = {name for name, _ in known}
        for component in recipe.components:
            for variable, value in components.get(component).for_recipe(recipe).env.items():
                if not variable.endswith("_PACKAGES"):
                    continue
                for word in value.split():
                    name, _, version = word.partition("=")
                    version = version.partition("@")[0]
                    if recipe.driver_source == "distro" and name not in names:
                        continue  # from the distribution's real archive
                    if version:
                        assert (name, version) in known, f"{component} asks for {word}"


def packages_for(recipe: Recipe) -> list[Package]:
    """All packages that the lab has for a row's distribution."""
    arch = "x86_64" if recipe.arch == "x86_64" else "aarch64"
    format_ = "rpm" if recipe.distro.family == "al" else "deb"
    machine = "x86_64" if recipe.arch == "x86_64" else "sbsa"
    result = [
        cuda_repository.repository(recipe.distro.cuda_repo, machine),
        # For cuDNN and NCCL: downloads.yaml.
        cuda_repository.repository("rhel9", machine) if recipe.distro.id == "al2023" else None,
        nvidia_toolkit.repository(format_, arch),
        debian.repository(recipe.distro.id, arch),
        amazon.repository("2" if recipe.distro.id == "al2" else recipe.distro.id, "core", arch),
    ]
    return [package for repo in result if repo for package in repo.packages]


def a_package(**changes: object) -> Package:
    plain = {
        "name": "one",
        "version": "1.2",
        "release": "3",
        "arch": "noarch",
        "summary": f"{model.STAND_IN}: one",
        "files": {"/usr/share/one": File(b"1\n"), "/usr/bin/one": File(link="/usr/share/one")},
        "scripts": {"post": "echo installed 100%\n"},
    }
    return Package(**{**plain, **changes})  # type: ignore[arg-type]


class TestPackages:
    def test_a_deb_repository_is_signed_by_its_key_alone(self, tmp_path: Path) -> None:
        keyring = keys.ensure()
        folder = repos.ensure(repos.Repo("r", "deb", "efa", (a_package(),)), tmp_path, keyring)
        for name, good in (("efa", True), ("ubuntu", False)):
            asked = ["gpgv", "--keyring", keyring.home / f"{name}.gpg", folder / "InRelease"]
            assert (subprocess.run(asked, capture_output=True, check=False).returncode == 0) is good
