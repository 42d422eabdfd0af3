"""`build --vendors real`: guests talk to the vendors' own hosts, on the real distribution."""

from __future__ import annotations

import io
import subprocess
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from rows import row

from kiln.base.errors import KilnError
from kiln.cli.targets import choose
from kiln.components.package_repositories import Repository
from kiln.preflight.indexes import Index, State
from lab.base import origin, settings
from lab.daemon import control, users
from lab.machine import dns
from lab.rootfs import bases, importer, real_bases
from lab.target import LabTarget
from lab.vendors import kinds as vendors
from lab.vendors import mirror, recipe_cache

AL2023 = "al2023/lts/base/x86_64"
UBUNTU = "ubuntu2404/lts/base/x86_64"
EKS = "al2023/lts/eks/x86_64"
DEBIAN = "debian12/debian/base/x86_64"


# ---------------------------------------------------------------- the flag


def test_the_target_and_what_it_makes_say_that_the_vendors_are_real() -> None:
    real = choose("lab", vendors="real")
    assert real.vendors == "real"
    assert "guests talk to the real vendors" in str(real)
    assert real.record_fields("x86_64")["image_note"].endswith("the vendors' real hosts")
    assert choose("lab").vendors == "stand-ins"


def test_an_unknown_word_is_refused_with_those_there_are() -> None:
    with pytest.raises(KilnError) as refused:
        choose("lab", vendors="nvidia")
    assert refused.value.hint == "known: real, stand-ins"


def test_stand_ins_cannot_be_had_in_aws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "example")
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    assert choose("aws", "eu-west-1", "real").kind == "aws"
    with pytest.raises(KilnError, match="stand-ins are the lab's"):
        choose("aws", "eu-west-1", "stand-ins")


# ---------------------------------------------------------------- before anything starts


def test_a_parent_that_only_aws_has_is_refused() -> None:
    with pytest.raises(KilnError, match="no parent for flavour eks"):
        vendors.refuse_impossible([row(EKS)])


def test_a_row_that_needs_snapd_is_refused() -> None:
    with pytest.raises(KilnError, match="it is a snap") as refused:
        vendors.refuse_impossible([row(UBUNTU)])
    assert "without: [ssm-agent]" in str(refused.value.hint)
    kept = tuple(name for name in row(UBUNTU).components if name != "ssm-agent")
    vendors.refuse_impossible([row(DEBIAN), row(UBUNTU).changed(components=kept)])


def test_hosts_that_do_not_answer_are_named_and_the_build_ends_with_1(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    dead = "http://127.0.0.1:1"
    hosts = ("http://deb.debian.org", "https://s3.amazonaws.com")
    monkeypatch.setenv("KILN_MIRRORS", " ".join(f"{host}={dead}" for host in hosts))
    with pytest.raises(KilnError) as refused:
        vendors.refuse_silent([row(DEBIAN)])
    assert refused.value.exit_status == 1
    assert "no answer from 127.0.0.1:1 (connection refused)" in refused.value.message
    assert "leave out --vendors real" in str(refused.value.hint)


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, object]:
    """A lab of this checkout that runs, with the stand-ins; a test fills in more of its status."""
    monkeypatch.setenv("KILN_LAB_STATE", str(tmp_path))
    state: dict[str, object] = {
        **{"lab": "lab0", "vendors": "stand-ins", "in_use": False},
        "started_from": origin.started_from(),
    }
    monkeypatch.setattr(control, "status", lambda lab: state)
    monkeypatch.setattr(users, "users", lambda lab: [])
    return state


def test_a_lab_with_the_other_vendors_is_not_taken_while_it_is_in_use(
    running: dict[str, object],
) -> None:
    running["in_use"] = True
    with pytest.raises(KilnError, match="its guests talk to the vendors' stand-ins") as refused:
        control.up(kind_of_vendors="real")
    assert refused.value.exit_status == 1


def test_an_idle_lab_with_the_other_vendors_is_started_anew(
    running: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    class TakenDownError(Exception):
        pass

    def down(lab: object) -> None:
        raise TakenDownError

    monkeypatch.setattr(control, "_down", down)
    assert control.up(kind_of_vendors="stand-ins") is running
    assert control.up() is running
    with pytest.raises(TakenDownError):
        control.up(kind_of_vendors="real")


# ---------------------------------------------------------------- what guests and Packer get


def test_the_resolver_redirects_aws_but_no_vendor() -> None:
    known = dns.addresses(settings.current(), [], "ec2.us-east-1.amazonaws.com".__eq__)
    assert known("developer.download.nvidia.com") is None
    assert known("ec2.us-east-1.amazonaws.com") == settings.current().gateway


def test_other_resolvers_can_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KILN_LAB_RESOLVER", "192.0.2.1 192.0.2.2")
    assert dns.upstream() == ["192.0.2.1", "192.0.2.2"]


def test_packer_gets_the_pinned_keys_and_hashes_not_the_labs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recipe_cache, "hashes", lambda recipe: {"https://a": "1"})
    monkeypatch.setattr(mirror, "key_fingerprints", lambda: {"a": "F"})
    stand_ins = LabTarget("a test").hooks.variables(row(UBUNTU))
    real = LabTarget("a test", vendors="real").hooks.variables(row(UBUNTU))
    assert set(stand_ins) - set(real) == {"signing_keys", "sha256"}


# ---------------------------------------------------------------- root filesystems


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Root filesystems are taken as they are filled; returns the folder of programs that stand in
    for the package tools. Each writes its arguments to a file of its name."""
    monkeypatch.setenv("KILN_LAB_STATE", str(tmp_path / "state"))
    programs = tmp_path / "programs"
    programs.mkdir()
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    monkeypatch.setattr(importer, "install", _install)
    monkeypatch.setattr(bases, "imported_link", lambda distro, arch: tmp_path / "none")
    return programs


def _install(distro: str, link: Path, fill: object, real: str) -> Path:
    fill(link)  # type: ignore[operator]
    return link


def program(folder: Path, name: str, script: str = "") -> Path:
    """A program that writes its arguments to the returned file and then runs the script."""
    words = folder / f"{name}.words"
    (folder / name).write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" >>{words}\n{script}\n')
    (folder / name).chmod(0o755)
    return words


def asked(monkeypatch: pytest.MonkeyPatch, state: State, keyring: Path | None = None) -> None:
    def ask(repository: Repository, fetcher: object, keys: Path) -> Index:
        place = {"entry": repository, "repository": repository, "keyring": keyring}
        return Index(state=state, detail="a reason", **place)

    monkeypatch.setattr(real_bases, "ask_repository", ask)


def test_ubuntu_comes_from_its_own_archive_by_its_own_keyring(
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = program(made, "mmdebstrap")
    asked(monkeypatch, State.PUBLISHED, Path("/pinned.gpg"))
    base = real_bases.ensure(row(UBUNTU), print)
    given = words.read_text().splitlines()
    assert base.name == "ubuntu2404-x86_64-real"
    assert "--keyring=/pinned.gpg" in given
    (include,) = [word for word in given if word.startswith("--include=")]
    assert {"apt", "cloud-init", "openssh-server"} <= set(include.partition("=")[2].split(","))
    archive = "deb http://archive.ubuntu.com/ubuntu"
    parts = "main restricted universe multiverse"
    suites = ["noble", "noble-updates", "noble-security"]
    assert given[-5:] == ["noble", str(base), *(f"{archive} {s} {parts}" for s in suites)][-5:]


def test_apts_own_user_may_read_the_keyring(
    made: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def ask(repository: Repository, fetcher: object, keys: Path) -> Index:
        keyring = keys / "pinned.gpg"
        keyring.touch()
        place = {"entry": repository, "repository": repository, "keyring": keyring}
        return Index(state=State.PUBLISHED, **place)

    monkeypatch.setattr(real_bases, "ask_repository", ask)
    look = 'case $w in --keyring=*) stat -c %A "${w#*=}" "$(dirname "${w#*=}")"'
    program(made, "mmdebstrap", f'for w in "$@"; do {look} >{tmp_path}/modes ;; esac; done')
    real_bases.ensure(row(UBUNTU), print)
    keyring, folder = (tmp_path / "modes").read_text().split()
    assert (keyring[-3], folder[-3:]) == ("r", "r-x")


def test_a_repository_that_is_not_signed_by_its_vendor_is_not_installed_from(
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = program(made, "mmdebstrap")
    asked(monkeypatch, State.MISSING)
    with pytest.raises(KilnError, match="--vendors real: ubuntu: a reason") as refused:
        real_bases.ensure(row(UBUNTU), print)
    assert refused.value.exit_status == 1
    assert not words.exists()


def key(folder: Path) -> tuple[str, str]:
    """A new key as ASCII, and its fingerprint."""
    folder.mkdir(mode=0o700)
    gpg = ["gpg", "--homedir", str(folder), "--batch", "--quiet", "--passphrase", ""]
    subprocess.run([*gpg, "--quick-generate-key", "vendor", "ed25519"], check=True)
    listed = subprocess.check_output([*gpg, "--with-colons", "--list-keys"], text=True)
    subprocess.run(["gpgconf", "--homedir", str(folder), "--kill", "all"], check=True)
    fingerprint = next(line for line in listed.splitlines() if line.startswith("fpr:"))
    exported = subprocess.check_output([*gpg, "--no-autostart", "--armor", "--export"], text=True)
    return exported, fingerprint.split(":")[9]


@pytest.mark.parametrize("pinned", [True, False])
def test_amazon_linux_is_installed_with_the_key_that_is_pinned_and_no_other(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, pinned: bool
) -> None:
    text, fingerprint = key(tmp_path / "gnupg")
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        member = tarfile.TarInfo("./etc/pki/rpm-gpg/RPM-GPG-KEY-amazon-linux-2023")
        member.size = len(text)
        archive.addfile(member, io.BytesIO(text.encode()))
    (tmp_path / "release.tgz").write_bytes(content.getvalue())
    words = program(
        made,
        "dnf",
        'for w in "$@"; do case $w in '
        '--destdir=*) touch "${w#*=}/system-release.rpm" ;; '
        f'--setopt=reposdir=*) cat "${{w##*=}}"/real.repo >>{tmp_path}/repos ;; esac; done\n'
        f'cat "$HOME/key" >>{tmp_path}/trusted 2>/dev/null || true',
    )
    program(made, "rpm2archive", f'cp {tmp_path}/release.tgz "$1.tgz"')
    asked(monkeypatch, State.PUBLISHED)
    if pinned:
        original = real_bases._indexes
        monkeypatch.setattr(
            real_bases,
            "_indexes",
            lambda recipe, keys: [
                replace(index, entry=replace(index.entry, fingerprints=(fingerprint,)))
                for index in original(recipe, keys)
            ],
        )
        real_bases.ensure(row(AL2023), print)
        installed = words.read_text().splitlines()
        assert installed[installed.index("install") :][:3] == [
            "install",
            "system-release",
            "systemd",
        ]
        assert "yum" in installed
        first, second = (tmp_path / "repos").read_text().split("[amazonlinux]")[1:]
        assert "gpgcheck=0" in first and "gpgcheck=1\ngpgkey=file://" in second
        assert "BEGIN PGP PUBLIC KEY BLOCK" in (tmp_path / "trusted").read_text()
    else:
        with pytest.raises(KilnError, match="none has the pinned fingerprint B21C50FA"):
            real_bases.ensure(row(AL2023), print)
        assert "install" not in words.read_text().splitlines()


def test_a_real_root_filesystem_shows_a_guests_machine_and_waits_for_no_device(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("KILN_LAB_STATE", str(tmp_path / "state"))
    monkeypatch.setattr(importer, "run", lambda *words: "")
    monkeypatch.setattr(bases, "for_processor", lambda root, arch: ([], []))
    root = tmp_path / "root"
    (root / "etc/ssh").mkdir(parents=True)
    (root / "etc/ssh/sshd_config").touch()
    importer.adapt("ubuntu2404", "x86_64", root, "everything")
    drop_in = (root / "etc/systemd/system/kiln-gpu-boot.service.d/lab.conf").read_text()
    (program,) = (line.split()[-1] for line in drop_in.splitlines() if "ExecStartPre" in line)
    assert (root / program.lstrip("/")).is_file()
    assert "ReadKMsg=no" in (root / "etc/systemd/journald.conf.d/kiln-lab.conf").read_text()
    settings_of_cloud_init = (root / "etc/cloud/cloud.cfg.d/99_kiln_lab.cfg").read_text()
    when = yaml.safe_load(settings_of_cloud_init)["updates"]["network"]["when"]
    assert "hotplug" not in when


def test_debian_on_a_debian_machine_is_the_ordinary_base(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("KILN_LAB_STATE", str(tmp_path))
    monkeypatch.setattr(real_bases, "_is_hosts", lambda distro: distro == "debian12")
    monkeypatch.setattr(bases, "ensure", lambda distro, arch, progress=None: tmp_path / distro)
    assert real_bases.ensure(row(DEBIAN), print) == tmp_path / "debian12"
    assert real_bases.of_guest("debian12", "x86_64") == tmp_path / "debian12"
    assert real_bases.of_guest("al2023+eks", "x86_64") == tmp_path / "al2023+eks"
