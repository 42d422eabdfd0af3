"""Package repositories, built on first use and kept below the state folder.

A repository's folder is named after a digest of its packages and its key. When a version is added
to the catalog or the matrix, a new folder is made, and a guest keeps reading the old one.
"""

from __future__ import annotations

import gzip
import hashlib
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lab.base import folders, locks
from lab.base.shell import run
from lab.vendors.mirror.keys import Keyring
from lab.vendors.packages import deb, rpm
from lab.vendors.packages.model import Package


@dataclass(frozen=True)
class Repo:
    """A repository. `name` is unique, `format` is rpm or deb, `key` is a name of `keys`.

    `modules` is the text of a modules.yaml, for DNF module streams. A deb repository with a `suite`
    has dists/ and pool/, for `deb URL SUITE main`; without a suite it is flat.
    """

    name: str
    format: str
    key: str
    packages: tuple[Package, ...]
    modules: str = ""
    suite: str = ""


def ensure(repo: Repo, home: Path, keyring: Keyring) -> Path:
    """The repository's folder below `home`, built when it is missing."""
    inputs = f"{repo.name} {keyring.fingerprint(repo.key)} {repo.modules} {repo.suite}"
    total = hashlib.sha256(inputs.encode())
    for package in repo.packages:
        total.update(package.digest().encode())
    folder = home / f"{repo.name.replace('/', '_')}-{total.hexdigest()[:12]}"
    if folder.is_dir():
        return folder
    home.mkdir(parents=True, exist_ok=True)
    with locks.alone(home / f".lock-{folder.name}"):
        if not folder.is_dir():
            making = home / f".making-{folder.name}"
            shutil.rmtree(making, ignore_errors=True)
            (_rpm if repo.format == "rpm" else _deb)(repo, making, keyring)
            folders.put(making, folder)
    return folder


def _rpm(repo: Repo, folder: Path, keyring: Keyring) -> None:
    files = rpm.build(repo.packages, folder)
    keyring.sign_rpms(repo.key, files)
    rpm.index(folder)
    if repo.modules:
        text = folder / "modules.yaml"
        text.write_text(repo.modules)
        run("modifyrepo_c", "--mdtype=modules", str(text), str(folder / "repodata"))
        text.unlink()
    keyring.sign_detached(repo.key, folder / "repodata/repomd.xml", armor=True)
    (folder / "repodata/repomd.xml.key").write_bytes(keyring.public(repo.key))


def _deb(repo: Repo, folder: Path, keyring: Keyring) -> None:
    pool = f"pool/{repo.suite}" if repo.suite else "."
    deb.build(repo.packages, folder / pool)
    text = deb.index(repo.packages, folder / pool, prefix=f"{pool}/")
    arches = sorted({deb.architecture(package.arch) for package in repo.packages} - {"all"})
    places = [f"main/binary-{arch}/" for arch in arches] if repo.suite else [""]
    index = {
        f"{place}{name}": content
        for place in places
        for name, content in (
            ("Packages", text.encode()),
            ("Packages.gz", gzip.compress(text.encode(), mtime=0)),
        )
    }
    root = folder / "dists" / repo.suite if repo.suite else folder
    for name, content in index.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    fields = {}
    if repo.suite:
        fields = {"Suite": repo.suite, "Codename": repo.suite, "Components": "main"}
    release = deb.release(
        index,
        Origin="AMI Kiln lab",
        Label=f"AMI Kiln lab stand-in for {repo.name}",
        Architectures="amd64 arm64 all",
        **fields,
    )
    (root / "Release").write_text(release)
    (root / "InRelease").write_text(keyring.sign_inline(repo.key, release))
    keyring.sign_detached(repo.key, root / "Release", armor=True).rename(root / "Release.gpg")


def names(packages: Sequence[Package]) -> set[str]:
    """The names of packages."""
    return {package.name for package in packages}
