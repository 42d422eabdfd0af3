"""Root filesystems that are the distribution itself, from its own repositories: `--vendors real`.

Debian and Ubuntu by mmdebstrap, Amazon Linux by dnf, with the distribution's keys by their pinned
fingerprints; whatever was imported (`lab.import`) is taken as it is. `importer` then makes a
guest's root of it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from kiln.base.errors import operation_failed
from kiln.base.recipe import Recipe
from kiln.components import package_repositories
from kiln.preflight.ask import cache_folder
from kiln.preflight.indexes import (
    Fetcher,
    Index,
    NotSignedError,
    armored,
    ask_repository,
    make_keyring,
)
from lab.base.shell import CommandError, run
from lab.rootfs import aptsources, bases, distros, emulation, importer
from lab.vendors.packages import deb

Progress = Callable[[str], None]


def find(distro_id: str, arch: str) -> Path | None:
    """The root filesystem of a distribution, if it was imported or made before."""
    for link in (bases.imported_link(distro_id, arch), _link(distro_id, arch)):
        if link.is_dir():
            return link.resolve()
    return bases.ensure(distro_id, arch) if _is_hosts(distro_id) else None


def guest_root(distro_id: str, arch: str) -> Path:
    """Return the root filesystem of a guest. Parents of flavors, and distributions that no build
    with the real vendors has asked for, are the lab's."""
    own = find(distro_id, arch) if distro_id in bases.ids() else None
    return own or bases.ensure(distro_id, arch)


def ensure(recipe: Recipe, say: Progress) -> Path:
    """The root filesystem of a recipe's distribution, made when it is missing.

    Raises operation_failed when a repository does not answer, is not signed by a pinned key, or
    cannot be installed from.
    """
    distro, arch = recipe.distro.id, recipe.arch
    if _is_hosts(distro) and not bases.imported_link(distro, arch).is_dir():
        return bases.ensure(distro, arch, progress=say)
    made = find(distro, arch)
    if made is not None:
        return made
    say(f"{recipe.distro.name} {arch}: installing it from its own repositories, once")
    fill = _amazon if recipe.distro.family == "al" else _debian
    return importer.install(distro, _link(distro, arch), partial(fill, recipe), _OWN_REPOSITORIES)


_OWN_REPOSITORIES = "everything: installed from the distribution's own repositories"


def _link(distro_id: str, arch: str) -> Path:
    return bases.bases_dir() / f"{distro_id}-{arch}-real"


def _is_hosts(distro_id: str) -> bool:
    """Return True if the lab's ordinary base is the distribution itself: Debian's, on a Debian
    machine."""
    return not distros.spec(distro_id)["stand_in"] and aptsources.host().origin == "debian"


def _indexes(recipe: Recipe, keys: Path) -> list[Index]:
    """The distribution's own repositories, asked. Raises operation_failed if one is not usable."""
    fetcher = Fetcher(cache_folder() / "files")
    own = package_repositories.row_repositories(recipe, ())
    indexes = [ask_repository(repository, fetcher, keys) for repository in own]
    for index in indexes:
        if not index.usable:
            raise operation_failed(
                f"--vendors real: {index.host or index.entry.name}: {index.detail}",
                hint="./invoke preflight says what each repository answers",
            )
    return indexes


def _debian(recipe: Recipe, target: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="kiln-real-") as folder:
        # apt checks signatures as its own user, and says NO_PUBKEY to a keyring that it may not
        # read.
        Path(folder).chmod(0o755)
        indexes = _indexes(recipe, Path(folder))
        lines = [
            f"deb {index.repository.url} {suite} {' '.join(index.repository.components)}"
            for index in indexes
            for suite in index.repository.suites
        ]
        _run(
            recipe,
            [
                *("mmdebstrap", "--variant=minbase", "--mode=root"),
                f"--architectures={deb.architecture(emulation.machine(recipe.arch))}",
                '--aptopt=APT::Install-Recommends "false"',
                f"--keyring={indexes[0].keyring}",
                f"--include={','.join(importer.deb_packages())}",
                *(indexes[0].repository.suites[0], str(target), *lines),
            ],
        )


def _amazon(recipe: Recipe, target: Path) -> None:
    """With dnf, every package checked by the distribution's key.

    The key comes in the package system-release, which is unpacked first, and counts by its pinned
    fingerprint.
    """
    with tempfile.TemporaryDirectory(prefix="kiln-real-") as folder:
        home = Path(folder)
        # Debian's rpm keeps its database in $HOME; the new system needs it in /var/lib/rpm.
        (home / ".rpmmacros").write_text("%_dbpath /var/lib/rpm\n")
        indexes = [index for index in _indexes(recipe, home / "keys") if index.entry.name != "epel"]
        _repo_file(home, indexes, "gpgcheck=0")
        unpacked = home / "unpacked"
        unpacked.mkdir()
        _run(recipe, _dnf(recipe, home, unpacked, "download", "system-release"))
        for package in unpacked.glob("*.rpm"):
            run("rpm2archive", str(package))
            run("tar", "-xzf", f"{package}.tgz", "-C", folder)
        key = home / "key"
        key.write_text(_pinned_key(indexes[0], home))
        _repo_file(home, indexes, f"gpgcheck=1\ngpgkey=file://{key}")
        _run(recipe, _dnf(recipe, home, target, "install", *importer.AL_PACKAGES))


def _pinned_key(index: Index, home: Path) -> str:
    """The key of the unpacked release package whose fingerprint is pinned, as ASCII."""
    files = sorted((home / "etc/pki/rpm-gpg").glob("*"))
    for key in (_if_pinned(index, file, home) for file in files):
        if key:
            return key
    held = ", ".join(file.name for file in files) or "none"
    raise operation_failed(
        f"--vendors real: of the keys in system-release ({held}) none has the pinned fingerprint "
        f"{', '.join(index.entry.fingerprints)}"
    )


def _if_pinned(index: Index, file: Path, home: Path) -> str:
    """A key file's pinned key as ASCII, or ""."""
    try:
        held = replace(index.entry, key_file=str(file))
        return armored(make_keyring(held, Fetcher(home / "none"), home / "pinned.gpg"))
    except NotSignedError:
        return ""


def _repo_file(home: Path, indexes: Sequence[Index], checks: str) -> None:
    text = "".join(
        f"[{index.entry.name}]\nname={index.entry.name}\nbaseurl={index.repository.url}\n{checks}\n"
        for index in indexes
    )
    (home / "repos").mkdir(exist_ok=True)
    (home / "repos/real.repo").write_text(text)


def _dnf(recipe: Recipe, home: Path, target: Path, action: str, *packages: str) -> list[str]:
    where = f"--destdir={target}" if action == "download" else f"--installroot={target}"
    release = distros.spec(recipe.distro.id)["os_release"]["VERSION_ID"]
    return [
        *("env", f"HOME={home}", "dnf", "-y", "-q", where, f"--releasever={release}"),
        *("--forcearch", emulation.machine(recipe.arch), f"--setopt=reposdir={home / 'repos'}"),
        *(f"--setopt=cachedir={home / 'cache'}", "--setopt=install_weak_deps=False"),
        *("--setopt=retries=2", "--setopt=timeout=20", action, *packages),
    ]


def _run(recipe: Recipe, command: Sequence[str]) -> None:
    try:
        run(*command)
    except CommandError as failure:
        last = [line for line in str(failure).splitlines() if line.strip()][-3:]
        raise operation_failed(
            f"{recipe.distro.name} could not be installed from its own repositories: "
            f"{' / '.join(last)}",
            hint="./invoke preflight says what each repository answers; or import a root "
            "filesystem: ./invoke lab.import",
        ) from None
    except FileNotFoundError as failure:
        raise operation_failed(f"{failure.filename} is not installed") from None
