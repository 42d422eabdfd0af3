"""The vendors' hosts as a guest sees them: real TLS, real package tools, 404 as the vendors."""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import re
import shutil
import ssl
import struct
import subprocess
import urllib.request
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
from lab.vendors.mirror import (
    amazon,
    ca,
    catalogue,
    cuda_repository,
    debian,
    efa,
    fsx,
    keys,
    nvidia_toolkit,
    repos,
)
from lab.vendors.packages import deb, driver, elf, model, rpm
from lab.vendors.packages.model import File, Package

RUN = "https://us.download.nvidia.com/tesla/{0}/NVIDIA-Linux-x86_64-{0}.run"
pytestmark = pytest.mark.beside
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

    def test_an_unchanged_file_is_not_sent_again(self, served: tuple[int, int, Path]) -> None:
        url = "https://cdn.amazonlinux.com/2/core/latest/x86_64/mirror.list"
        tag = asked(served[0], url).headers["ETag"]
        assert fetch(served[0], url, **{"If-None-Match": tag})[0] == 304

    def test_this_machine_reaches_a_host_below_the_mirrors_address(
        self, served: tuple[int, int, Path]
    ) -> None:
        ((there, here),) = [
            pair for pair in mirror.reached("127.0.0.1") if "amazonlinux" in pair[0]
        ]
        path = "/2/core/latest/x86_64/mirror.list"
        url = f"{here}{path}".replace("127.0.0.1", f"127.0.0.1:{served[1]}")
        with urllib.request.urlopen(url) as answer:
            assert answer.read() == fetch(served[0], f"{there}{path}")[1]

    def test_each_request_is_in_the_log(self, served: tuple[int, int, Path]) -> None:
        fetch(served[0], "https://nvidia.github.io/libnvidia-container/gone", method="HEAD")
        last = served[2].read_text().splitlines()[-1]
        assert "HEAD https://nvidia.github.io/libnvidia-container/gone 404 0" in last

    def test_no_request_forges_a_line_of_the_log(self, served: tuple[int, int, Path]) -> None:
        before = len(served[2].read_text().splitlines())
        fetch(served[0], "https://nvidia.github.io/gone%0a2026-01-01T00:00:00%20GET%20forged")
        assert len(served[2].read_text().splitlines()) == before + 1


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


def test_the_vendors_keys_are_replaced_one_for_one() -> None:
    import yaml

    from kiln.base.paths import KNOWLEDGE

    known = yaml.safe_load((KNOWLEDGE / "keys.yaml").read_text())["keys"]
    result = mirror.key_fingerprints()
    assert set(result) == set(known)
    assert not {entry["fingerprint"] for entry in known.values()} & set(result.values())


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
    def test_an_rpm_says_what_it_is(self, tmp_path: Path) -> None:
        (file,) = rpm.build([a_package(epoch=3, requires=("dkms",), arch="x86_64")], tmp_path)
        query = "%{NAME} %{EPOCH} %{VERSION}-%{RELEASE}.%{ARCH} %{SUMMARY}"
        asked = ["rpm", "-qp", "--qf", query, str(file)]
        output = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
        assert output == "one 3 1.2-3.x86_64 AMI Kiln lab stand-in: one"

    def test_many_rpms_of_one_name_are_built_in_separate_runs(self) -> None:
        result = rpm.batches([a_package(), a_package(version="2"), a_package(name="two")])
        assert [[p.name for p in batch] for batch in result] == [["one", "two"], ["one"]]

    def test_two_packages_with_another_content_for_one_path_are_kept_apart(self) -> None:
        other = a_package(name="two", files={"/usr/share/one": File(b"2\n")})
        assert len(rpm.batches([a_package(), other])) == 2

    @pytest.mark.parametrize("build", [rpm.build, deb.build])
    def test_the_same_package_is_the_same_bytes(self, tmp_path: Path, build: object) -> None:
        content = []
        for name in ("a", "b"):
            (file,) = build([a_package()], tmp_path / name)  # type: ignore[operator]
            content.append(file.read_bytes())
        assert content[0] == content[1]

    def test_a_debian_package_is_read_by_dpkg(self, tmp_path: Path) -> None:
        (file,) = deb.build(
            [a_package(arch="x86_64", epoch=1, config=("/usr/share/one",))], tmp_path
        )
        asked = ["dpkg-deb", "--field", str(file), "Package", "Version", "Architecture"]
        output = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
        assert output == "Package: one\nVersion: 1:1.2-3\nArchitecture: amd64\n"
        listing = subprocess.run(
            ["dpkg-deb", "--contents", str(file)], capture_output=True, text=True, check=True
        ).stdout
        assert "./usr/bin/one -> /usr/share/one" in listing

    def test_a_repository_is_made_anew_when_a_package_changes(self, tmp_path: Path) -> None:
        keyring = keys.ensure()
        first = repos.Repo("r", "deb", "ubuntu", (a_package(),))
        second = repos.Repo("r", "deb", "ubuntu", (a_package(version="2"),))
        folder = repos.ensure(first, tmp_path, keyring)
        assert repos.ensure(first, tmp_path, keyring) == folder
        assert repos.ensure(second, tmp_path, keyring) != folder

    def test_a_deb_repository_is_signed_by_its_key_alone(self, tmp_path: Path) -> None:
        keyring = keys.ensure()
        folder = repos.ensure(repos.Repo("r", "deb", "efa", (a_package(),)), tmp_path, keyring)
        for name, good in (("efa", True), ("ubuntu", False)):
            asked = ["gpgv", "--keyring", keyring.home / f"{name}.gpg", folder / "InRelease"]
            assert (subprocess.run(asked, capture_output=True, check=False).returncode == 0) is good

    def test_a_deb_repository_with_a_suite_is_laid_out_as_apt_asks_for_it(
        self, tmp_path: Path
    ) -> None:
        keyring = keys.ensure()
        made = repos.Repo("r", "deb", "fsx-lustre", (a_package(arch="x86_64"),), suite="jammy")
        folder = repos.ensure(made, tmp_path, keyring)
        signed = folder / "dists/jammy/InRelease"
        asked = ["gpgv", "--keyring", keyring.home / "fsx-lustre.gpg", signed]
        assert subprocess.run(asked, capture_output=True, check=False).returncode == 0
        assert "main/binary-amd64/Packages.gz" in signed.read_text()
        text = (folder / "dists/jammy/main/binary-amd64/Packages").read_text()
        (name,) = [line for line in text.splitlines() if line.startswith("Filename: ")]
        assert name == "Filename: pool/jammy/one_1.2-3_amd64.deb"
        assert (folder / name.removeprefix("Filename: ")).is_file()

    def test_a_recipe_that_names_a_missing_tree_is_found_out(self) -> None:
        with pytest.raises(
            FileNotFoundError, match="a package template names a tree that does not exist"
        ):
            model.tree("no-such-tree", {})


def test_a_stub_library_is_one_to_the_loader(tmp_path: Path) -> None:
    import ctypes

    content = elf.shared_library("libcuda.so.1", os.uname().machine)
    (tmp_path / "libcuda.so.510.47.03").write_bytes(content)
    subprocess.run(["ldconfig", "-n", tmp_path], check=True)
    assert (tmp_path / "libcuda.so.1").readlink() == Path("libcuda.so.510.47.03")
    library = ctypes.CDLL(str(tmp_path / "libcuda.so.1"))
    with pytest.raises(AttributeError, match="undefined symbol: cuInit"):
        _ = library.cuInit


@pytest.mark.skipif(not shutil.which("readelf"), reason="binutils are not installed")
def test_a_linker_finds_the_sections_of_a_stub_library(tmp_path: Path) -> None:
    """Ubuntu 24.04's refuses a library without them: file in wrong format."""
    (tmp_path / "lib.so").write_bytes(elf.shared_library("libnccl.so.2", "x86_64"))
    asked = ["readelf", "--dyn-syms", "--section-headers", "--wide", tmp_path / "lib.so"]
    output = subprocess.run(asked, capture_output=True, text=True, check=True)
    assert output.stderr == ""
    sections = re.findall(r"^ +\[ *[1-9]\] (\S+) +(\S+)", output.stdout, re.MULTILINE)
    assert dict(sections) == {
        **{".hash": "HASH", ".dynsym": "DYNSYM", ".dynstr": "STRTAB"},
        **{".dynamic": "DYNAMIC", ".shstrtab": "STRTAB"},
    }


def test_a_stub_library_can_be_for_another_machine() -> None:
    (machine,) = struct.unpack_from("<H", elf.shared_library("libx.so.1", "aarch64"), 18)
    assert machine == 183


@pytest.mark.skipif(not shutil.which("readelf"), reason="binutils are not installed")
def test_a_stub_kernel_module_says_what_modinfo_reads(tmp_path: Path) -> None:
    fields = {"name": "lustre", "vermagic": "6.8.0-1069-aws SMP mod_unload "}
    file = tmp_path / "lustre.ko"
    file.write_bytes(elf.kernel_module(fields, "x86_64"))
    asked = ["readelf", "--string-dump=.modinfo", str(file)]
    output = subprocess.run(asked, capture_output=True, text=True, check=True)
    assert output.stderr == ""
    assert "vermagic=6.8.0-1069-aws SMP mod_unload" in output.stdout
    assert "description=AMI Kiln lab stand-in" in output.stdout


def test_fsx_has_lustre_modules_for_some_kernels_of_ubuntu_and_none_for_debian() -> None:
    jammy = fsx.repository("jammy", "x86_64")
    assert jammy
    assert "lustre-client-modules-6.8.0-1069-aws" in repos.names(jammy.packages)
    noble = fsx.repository("noble", "x86_64")
    assert noble
    assert not [name for name in repos.names(noble.packages) if "-7." in name]
    assert fsx.repository("bookworm", "x86_64") is None


class TestCatalogue:
    def test_a_version_the_matrix_names_is_published_besides_the_newest(self) -> None:
        versions = ["580.1", "580.2", "580.3", "590.1"]
        group = {"group": lambda version: version.split(".")[0]}
        assert catalogue.choose(versions, wanted=frozenset(), **group) == ["580.3", "590.1"]
        wanted = frozenset({"580.1"})
        assert catalogue.choose(versions, wanted=wanted, **group) == ["580.1", "580.3", "590.1"]

    @pytest.mark.parametrize("version", ["580.167.08", "580.173.02", "595.84", "535.43.02"])
    def test_the_lab_has_every_driver_that_is_known_betas_included(self, version: str) -> None:
        assert catalogue.driver(version) is not None

    def test_no_driver_is_made_up(self) -> None:
        assert catalogue.driver("580.190.99") is None
        assert catalogue.driver("999.1.2") is None

    def test_the_repositories_have_every_release_from_the_oldest_branch_on_and_no_beta(
        self,
    ) -> None:
        present = catalogue.repository_drivers()
        assert {"535.54.03", "580.167.08", "595.84"} <= set(present)
        assert not {"535.43.02", "595.44.02", "525.147.05"} & set(present)

    def test_a_repository_holds_the_series_and_branches_that_are_known_of_it(self) -> None:
        old = cuda_repository.holds("ubuntu2004", "x86_64")
        assert old
        assert (old.has_cuda("12.9"), old.has_cuda("13.0")) == (True, False)
        assert (old.has_driver(575), old.has_driver(580)) == (True, False)
        assert cuda_repository.holds("debian12", "aarch64") is None

    def test_every_cuda_release_has_a_compiler(self) -> None:
        assert catalogue.cuda()["11.6.2"] == "11.6.124"
        assert catalogue.cuda()["13.2.1"] == "13.2.0"

    def test_nccl_of_an_unknown_series_gets_the_one_that_the_lab_assumes(self) -> None:
        assert catalogue.nccl()["2.32.3"] == ["12.9", "13.4"]
        assert "2.4.8" not in catalogue.nccl()

    @pytest.mark.parametrize(
        ("version", "machine", "there"),
        [
            ("1.37.0", "x86_64", False),
            ("1.38.0", "x86_64", True),
            ("1.39.0", "aarch64", False),
            ("1.40.0", "aarch64", True),
        ],
    )
    def test_the_efa_installer_brings_the_plugin_where_amazons_does(
        self, version: str, machine: str, there: bool
    ) -> None:
        known = efa.contents(version)
        assert known
        packages = efa.packages(version, known, "deb", machine)
        assert ("libnccl-ofi" in repos.names(packages)) is there

    def test_on_arm64_the_plugin_is_for_ubuntu_and_amazon_linux_2023_only(self) -> None:
        assert "ubuntu2204" in efa.with_plugin("1.51.0", "aarch64")
        assert "debian12" not in efa.with_plugin("1.51.0", "aarch64")
        assert "debian12" in efa.with_plugin("1.51.0", "x86_64")

    def test_an_installer_of_unknown_content_is_not_there(self) -> None:
        assert efa.contents("1.10.0") is None
        assert efa.contents("1.99.0") is None

    def test_the_plugin_of_every_efa_installer_is_published_as_source_too(self) -> None:
        releases = catalogue.aws_ofi_nccl()
        assert {"1.13.2-aws", "1.14.1", "1.15.0", "1.16.2", "1.22.0"} <= set(releases)
        assert releases[0] == "1.7.4-aws"

    def test_the_agents_that_the_facts_name_are_published(self) -> None:
        assert catalogue.cloudwatch_agent()[-1] == "1.300072.0b1766"
        assert "3.3.5226.0" in catalogue.ssm_agent()

    def test_the_catalogue_repeats_no_version_that_the_facts_name(self) -> None:
        for name in ("aws_ofi_nccl", "cloudwatch_agent", "ssm_agent"):
            own = catalogue.data()[name]
            assert len(getattr(catalogue, name)()) > len(own), name
        bundled = {entry.get("ofi_nccl") for entry in catalogue.efa().values()}
        assert not bundled & set(catalogue.data()["aws_ofi_nccl"])

    def test_names_of_packages_follow_the_branch(self) -> None:
        def names(version: str, format_: str) -> set[str]:
            result = catalogue.driver(version)
            assert result is not None
            return repos.names(
                cuda_repository.driver_packages(result, format_, "amzn2023", "x86_64")
            )

        assert "nvidia-fabric-manager" in names("575.57.08", "rpm")
        assert "nvidia-fabricmanager" in names("580.178.04", "rpm")
        assert {"nvidia-open-580", "cuda-drivers-580"} <= names("580.178.04", "deb")
        assert {"nvidia-open", "cuda-drivers"} <= names("595.91.07", "deb")
        assert "cuda-drivers" not in names("620.70.06", "deb"), "620 has open modules only"


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

    def test_without_a_compiler_it_says_what_the_real_one_says(self, ready: Path) -> None:
        done = self.install(ready, "--dkms")
        assert done.returncode == 1
        assert "Unable to find the development tool `cc` in your path" in done.stderr

    def test_without_headers_it_says_what_the_real_one_says(self, ready: Path) -> None:
        inside(ready, "rpm -i /tmp/gcc-7*.rpm /tmp/make*.rpm")
        done = self.install(ready)
        assert "Unable to find the kernel source tree" in done.stderr

    def test_an_option_that_came_later_is_unknown_to_an_older_driver(self, ready: Path) -> None:
        done = self.install(ready, "--kernel-module-type=open")
        assert done.returncode == 1
        assert "unrecognized option '--kernel-module-type=open'" in done.stderr

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

    @pytest.mark.parametrize(
        "configuration",
        ["export CC=gcc10-gcc", 'MAKE[0]="make CC=gcc10-gcc KERNEL_UNAME=${kernelver} modules"'],
    )
    def test_dkms_does_not_hear_of_the_compiler_in_another_way(
        self, ready: Path, configuration: str
    ) -> None:
        inside(ready, "rpm -i --nodeps /tmp/*.rpm; mkdir -p /etc/dkms")
        (ready / "etc/dkms/nvidia.conf").write_text(configuration + "\n")
        done = self.install(ready, "--dkms", "--no-questions", "--ui=none")
        assert done.returncode == 1
        assert "Failed to run" in done.stderr

    def test_uninstalling_leaves_nothing(self, ready: Path) -> None:
        inside(ready, "rpm -i --nodeps /tmp/*.rpm")
        self.tell_dkms(ready)
        assert self.install(ready, "--dkms").returncode == 0
        assert inside(ready, "nvidia-uninstall").returncode == 0
        assert not (ready / "usr/bin/nvidia-smi").exists()
        assert not (ready / "var/lib/kiln-lab/driver.json").exists()
        assert inside(ready, f"modinfo -k {self.KERNEL} nvidia").returncode != 0


def test_a_driver_known_not_to_compile_on_a_kernel_does_not_in_the_lab(tmp_path: Path) -> None:
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


def test_every_program_of_the_driver_says_that_it_is_a_stand_in() -> None:
    for path, file in driver.programs(*driver.PROGRAMS).items():
        assert b"AMI Kiln lab stand-in" in file.content, path
