"""Root filesystems of guests: what a provisioner finds in one, and what a real one is held to.

Needs root; the common tree is made once a machine and then kept (about half a minute).
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import guests
import pytest

from kiln.base.errors import KilnError
from lab.machine import namespace
from lab.rootfs import bases, distros, importer
from lab.vendors.mirror import ca

pytestmark = guests.IN_CELL

STAND_INS = [name for name in bases.ids() if distros.spec(name)["stand_in"]]
OF_HERE = [*STAND_INS, *({"debian12"} & {guests.DISTRO})]
AL = [name for name in bases.ids() if distros.spec(name)["family"] == "al"]


def inside(root: Path, *command: str) -> subprocess.CompletedProcess[str]:
    # Guests own the files of a base, and what a command in it makes.
    command = (*namespace.program(), "chroot", str(root), *command)
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("distro", OF_HERE)
def test_base_names_its_distribution_and_the_lab(distro: str) -> None:
    root = bases.ensure(distro)
    release = inside(root, "sh", "-c", ". /etc/os-release; echo $ID $VERSION_ID").stdout.split()
    wanted = distros.spec(distro)["os_release"]
    assert release == [wanted["ID"], wanted["VERSION_ID"]]
    marker = json.loads((root / "etc/kiln-lab-base").read_text())
    assert (marker["distro"], marker["stand_in"]) == (distro, distro in STAND_INS)
    assert "AMI Kiln lab" in (root / "etc/motd").read_text()


@pytest.mark.parametrize("distro", OF_HERE)
def test_a_base_has_no_identity_of_its_own(distro: str) -> None:
    root = bases.ensure(distro)
    assert (root / "etc/machine-id").read_text() == ""
    assert not list((root / "etc/ssh").glob("ssh_host_*"))
    assert not (root / "etc/hostname").exists()


@pytest.mark.parametrize("distro", AL)
def test_amazon_linux_has_yum_and_rpm_and_no_trace_of_apt(distro: str) -> None:
    root = bases.ensure(distro)
    assert inside(root, "yum", "--version").returncode == 0
    assert inside(root, "rpm", "-q", "system-release").returncode == 0
    for tool in ("apt-get", "apt", "dpkg", "dpkg-query"):
        assert inside(root, "sh", "-c", f"command -v {tool}").returncode != 0
    for path in ("etc/debian_version", "etc/apt", "var/lib/apt"):
        assert not (root / path).exists()
    unit = (root / "usr/lib/systemd/system/cloud-init.service").read_text()
    assert not re.search(r"sysinit\.target|DefaultDependencies", unit), "it starts before D-Bus"


@pytest.mark.parametrize("distro", AL)
def test_amazon_linux_has_no_compiler_by_itself(distro: str) -> None:
    root = bases.ensure(distro)
    for tool in ("gcc", "cc", "make", "dkms", "jq"):
        assert inside(root, "sh", "-c", f"command -v {tool}").returncode != 0, tool
    assert inside(root, "/usr/lib/kiln-lab/gcc", "--version").returncode == 0


@pytest.mark.skipif(guests.DISTRO != "debian12", reason="debian12 needs a Debian mirror")
class TestImport:
    @pytest.fixture(autouse=True)
    def shared(
        self, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A state folder of its own, so that other tests do not use the imported base."""
        self.real = bases.ensure("debian12")
        monkeypatch.setenv("KILN_LAB_STATE", str(tmp_path_factory.mktemp("state")))

    @pytest.mark.all
    def test_a_real_root_filesystem_takes_the_place_of_the_stand_in(self, tmp_path: Path) -> None:
        archive = tmp_path / "rootfs.tar"
        subprocess.run(["tar", "-C", self.real, "-cf", archive, "."], check=True)
        base = importer.import_rootfs("debian12", archive, None)
        assert bases.ensure("debian12") == base
        assert json.loads((base / "etc/kiln-lab-base").read_text())["stand_in"] is False
        assert "Ec2" in (base / "etc/cloud/cloud.cfg.d/99_kiln_lab.cfg").read_text()

    def test_another_distribution_than_was_said_is_refused(self) -> None:
        with pytest.raises(KilnError, match="is debian 12, but al2 is amzn 2") as raised:
            importer.import_rootfs("al2", self.real, None)
        assert raised.value.exit_status == 2
        assert not list(bases.bases_dir().glob("*al2*")), "nothing may be left behind"

    def test_a_container_image_is_refused_with_what_it_lacks(self, tmp_path: Path) -> None:
        root = tmp_path / "root"
        (root / "etc").mkdir(parents=True)
        shutil.copy(self.real / "usr/lib/os-release", root / "etc/os-release")
        with pytest.raises(KilnError, match=r"lacks systemd, an SSH .*, a package tool"):
            importer.import_rootfs("debian12", root, None)

    def for_machine(self, number: int, root: Path) -> Path:
        """As much of the real root filesystem as is looked at before it is adapted, with a systemd
        for another processor (e_machine of ELF)."""
        programs = ("cloud-init", "sudo", "python3", "apt-get")
        for path in ("usr/sbin/sshd", *(f"usr/bin/{name}" for name in programs)):
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).touch()
        (root / "etc").mkdir()
        shutil.copy(self.real / "usr/lib/os-release", root / "etc/os-release")
        systemd = root / "usr/lib/systemd/systemd"
        systemd.parent.mkdir(parents=True)
        header = bytearray((self.real / "usr/lib/systemd/systemd").read_bytes()[:64])
        header[18:20] = number.to_bytes(2, "little")
        systemd.write_bytes(header)
        return root

    @pytest.mark.parametrize("folder", ["etc/ssh", "etc/systemd/journald.conf.d", "var/lib"])
    def test_a_link_in_the_files_leads_to_nothing_of_this_machine(
        self, tmp_path: Path, folder: str
    ) -> None:
        here, root = tmp_path / "here", self.for_machine(62, tmp_path / "root")
        here.mkdir()
        (here / "ssh_host_rsa_key").write_text("ours")
        (root / folder).parent.mkdir(parents=True, exist_ok=True)
        (root / folder).symlink_to(here)
        with pytest.raises(KilnError, match=f"a link to {here} in the place of {folder}"):
            importer.import_rootfs("debian12", root, None)
        assert [path.name for path in here.iterdir()] == ["ssh_host_rsa_key"]
        assert not list(bases.bases_dir().glob("*debian12*")), "nothing may be left behind"

    def test_no_program_of_the_files_runs_and_the_labs_ca_is_trusted(self, tmp_path: Path) -> None:
        ran, root = tmp_path / "ran", self.for_machine(62, tmp_path / "root")
        program = root / "usr/sbin/update-ca-certificates"
        program.write_text(f"#!/bin/sh\ntouch {ran} /ran\n")
        program.chmod(0o755)
        (root / "etc/ssl/certs").mkdir(parents=True)
        (root / "etc/ssl/certs/ca-certificates.crt").write_text("others\n")
        (root / "etc/ssh").mkdir()
        (root / "etc/ssh/sshd_config").touch()
        base = importer.import_rootfs("debian12", root, None)
        assert not ran.exists() and not (base / "ran").exists()
        bundle = (base / "etc/ssl/certs/ca-certificates.crt").read_text()
        assert bundle == f"others\n{ca.ensure().certificate.read_text()}"

    def test_a_mirror_whose_packages_nobody_checks_is_refused(self) -> None:
        with pytest.raises(KilnError, match="signatures are not checked") as raised:
            importer.import_rootfs("al2023", None, "http://mirror.example/al2023")
        assert raised.value.exit_status == 2
