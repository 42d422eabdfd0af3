"""`build --vendors real`: guests talk to the vendors' own hosts, on the real distribution."""

from __future__ import annotations

import io
import subprocess
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from kiln.base.errors import KilnError
from kiln.cli.targets import choose
from kiln.components.package_repositories import Repository
from kiln.preflight.indexes import Index, State
from lab.rootfs import bases, importer, real_bases
from lab.target import LabTarget
from lab.vendors import kinds as vendors
from lab.vendors import mirror, recipe_cache
from tests.unit.rows import row

AL2023 = "al2023/lts/base/x86_64"
UBUNTU = "ubuntu2404/lts/base/x86_64"
EKS = "al2023/lts/eks/x86_64"
DEBIAN = "debian12/debian/base/x86_64"


# ---------------------------------------------------------------- the flag


def test_target_and_record_name_real_vendors() -> None:
    real = choose("lab", vendors="real")
    assert real.vendors == "real"
    assert "guests talk to the real vendors" in str(real)
    assert real.record_fields("x86_64")["image_note"].endswith("the vendors' real hosts")
    assert choose("lab").vendors == "stand-ins"


# ---------------------------------------------------------------- before anything starts


def test_a_parent_that_only_aws_has_is_refused() -> None:
    with pytest.raises(KilnError, match="no parent for flavor eks"):
        vendors.refuse_impossible([row(EKS)])


def test_a_row_that_needs_snapd_is_refused() -> None:
    with pytest.raises(KilnError, match="it is a snap") as refused:
        vendors.refuse_impossible([row(UBUNTU)])
    assert "without: [ssm-agent]" in str(refused.value.hint)
    kept = tuple(name for name in row(UBUNTU).components if name != "ssm-agent")
    vendors.refuse_impossible([row(DEBIAN), row(UBUNTU).changed(components=kept)])


# ---------------------------------------------------------------- what guests and Packer get


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


def test_repository_without_vendor_signature_is_refused(
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
def test_amazon_linux_needs_the_pinned_key(
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
