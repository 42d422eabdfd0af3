"""The vendors' hosts as a guest sees them: real TLS, real package tools, 404 as the vendors."""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import shutil
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from kiln import components
from kiln.base.errors import KilnError
from kiln.base.paths import PROVISIONERS
from kiln.base.recipe import Recipe
from kiln.matrix import load
from lab.base import settings
from lab.rootfs import bases
from lab.vendors import mirror
from lab.vendors.mirror import amazon, ca, cuda_repository, debian, keys, nvidia_toolkit, repos
from lab.vendors.packages import driver, model
from lab.vendors.packages.model import File, Package

RUN = "https://us.download.nvidia.com/tesla/{0}/NVIDIA-Linux-x86_64-{0}.run"
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="guests' root filesystems are made by root")


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
        assert "catalogue.yaml" in raised.value.hint

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

    def test_so_can_packages_that_no_row_needs(self) -> None:
        rows = [row for row in load.load_recipes() if row.stack == "lts"]
        assert {row.distro.family for row in rows} == {"al", "debian"}
        for row in rows:
            asked = row.changed(
                dcgm_exporter="4.8.3",
                components=("dcgm-exporter",),
            )
            self.test_everything_a_row_downloads_is_there(asked)
            self.test_every_package_a_row_names_is_in_a_repository(asked)


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


@pytest.fixture
def guest(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A throw-away copy of a base, as a mounted overlay."""
    base = bases.ensure(request.param)
    for name in ("upper", "work", "root"):
        (tmp_path / name).mkdir()
    options = f"lowerdir={base},upperdir={tmp_path}/upper,workdir={tmp_path}/work"
    command = ["mount", "-t", "overlay", "kiln-test", "-o", options, str(tmp_path / "root")]
    subprocess.run(command, check=True)
    yield tmp_path / "root"
    subprocess.run(["umount", "--lazy", tmp_path / "root"], check=True)


def inside(root: Path, script: str) -> subprocess.CompletedProcess[str]:
    """Run a script in a guest's files, with the /proc that DKMS needs."""
    enter = 'mount -t proc proc "$0/proc" && exec chroot "$0" /bin/bash -euc "$1"'
    command = ["unshare", "--mount", "sh", "-c", enter, root, script]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def bring(root: Path, repo: repos.Repo | None, *wanted: str) -> None:
    """Copy packages of a repository into a guest's /tmp."""
    assert repo is not None
    folder = repos.ensure(repo, settings.current().shared / "mirror" / "repos", keys.ensure())
    for name in wanted:
        (file,) = folder.glob(f"{name}.rpm")
        (root / "tmp" / file.name).write_bytes(file.read_bytes())


@AS_ROOT
@pytest.mark.parametrize("guest", ["al2"], indirect=True)
class TestRunFile:
    KERNEL = "5.10.227-219.884.amzn2.x86_64"

    @pytest.fixture
    def ready(self, guest: Path) -> Path:
        """A guest with kernel headers, compiler, DKMS and the .run file in /tmp."""
        core = amazon.repository("2", "core", "x86_64")
        kernel = amazon.repository("2", "kernel-5.10", "x86_64")
        epel = amazon.repository("2", "epel", "x86_64")
        bring(guest, core, "gcc-7*", "gcc10-10*", "make-*")
        bring(guest, kernel, "kernel-5.10.227*", "kernel-devel-5.10.227*")
        bring(guest, epel, "dkms-*")
        file = mirror.find(RUN.format("510.47.03"))
        assert file is not None
        (guest / "tmp/driver.run").write_bytes(file.read_bytes())
        return guest

    def install(self, guest: Path, *options: str) -> subprocess.CompletedProcess[str]:
        return inside(
            guest, f"sh /tmp/driver.run --silent --kernel-name={self.KERNEL} {' '.join(options)}"
        )

    def tell_dkms(self, guest: Path) -> None:
        """Make DKMS use the kernel's own compiler, as a provisioner does."""
        skip = shutil.ignore_patterns("__pycache__")
        shutil.copytree(PROVISIONERS / "lib", guest / "tmp/lib", ignore=skip, dirs_exist_ok=True)
        given = "KILN_DIR=/tmp KILN_ETC=/tmp/etc KILN_DISTRO=al2 KILN_FAMILY=al"
        given += " KILN_PACKAGE_MANAGER=yum KILN_COMPONENT=nvidia-driver"
        done = inside(
            guest, f"export {given}; . /tmp/lib/kiln.sh; kiln_dkms_compiler {self.KERNEL} nvidia"
        )
        assert done.returncode == 0, done.stderr

    def test_packages_carry_the_signature_that_the_base_trusts(self, ready: Path) -> None:
        checked = inside(ready, "rpmkeys --checksig --define '_pkgverify_level all' /tmp/*.rpm")
        assert checked.returncode == 0, checked.stdout + checked.stderr

    def test_the_module_is_built_for_the_kernel_that_was_named(self, ready: Path) -> None:
        assert inside(ready, "rpm -i --nodeps /tmp/*.rpm").returncode == 0
        self.tell_dkms(ready)
        done = self.install(ready, "--dkms", "--no-questions", "--ui=none")
        assert done.returncode == 0, done.stderr
        message = inside(ready, f"modinfo -k {self.KERNEL} nvidia").stdout
        assert "version:        510.47.03" in message
        assert "license:        NVIDIA" in message
        assert f"vermagic:       {self.KERNEL} " in message
        status = inside(ready, "dkms status").stdout
        assert f"nvidia/510.47.03, {self.KERNEL}, x86_64: installed" in status
        assert "libcuda.so.1" in inside(ready, "ldconfig -p").stdout
        state = json.loads((ready / "var/lib/kiln-lab/driver.json").read_text())
        assert state == {"version": "510.47.03", "kernel_module": "proprietary", "cuda": "11.6"}

    def test_the_kernels_own_compiler_is_asked_for(self, ready: Path) -> None:
        inside(ready, "rpm -i --nodeps /tmp/*.rpm")
        done = self.install(ready)
        assert done.returncode == 1
        assert "Compiler version check failed: the kernel was built with gcc10-gcc" in done.stderr
        again = inside(
            ready, f"CC=gcc10-gcc sh /tmp/driver.run --silent --kernel-name={self.KERNEL}"
        )
        assert again.returncode == 0, again.stderr


def test_known_compile_failure_fails_in_the_lab(tmp_path: Path) -> None:
    (tmp_path / "refuses").write_text("6.8.0-1069-aws the kernel changed `children`\n")
    source = driver.source("580.178.04", "open")
    for path, file in source.items():
        if not path.endswith("/refuses"):
            (tmp_path / Path(path).name).write_bytes(file.content)
    tree = tmp_path / "tree/include/generated"
    tree.mkdir(parents=True)

    def build(kernel: str) -> subprocess.CompletedProcess[str]:
        (tree / "utsrelease.h").write_text(f'#define UTS_RELEASE "{kernel}"\n')
        command = ["make", "-C", tmp_path, f"KERNEL_UNAME={kernel}", f"SYSSRC={tmp_path}/tree"]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    assert "error: the kernel changed `children`" in build("6.8.0-1069-aws").stderr
    assert build("6.8.0-1070-aws").returncode == 0
    assert driver.refusals("580.105.08") and not driver.refusals("580.126.09")
    assert driver.refusals("580.95.05")[0].startswith("6.8.0-1069-aws ")
