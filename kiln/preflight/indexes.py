"""A repository's signed files: fetched, and checked against the pinned fingerprints."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, replace
from pathlib import Path

from kiln.base import vocabulary
from kiln.components.package_repositories import Repository
from kiln.preflight.fetch import Fetched, Fetcher, NoAnswerError, NotThereError
from kiln.preflight.keyrings import NotSignedError, check_signature, make_keyring

# What became of a repository.
SIGNED = "signed"
UNSIGNED = "metadata not signed by its vendor"
WRONG = "wrong"
SILENT = "no answer"


@dataclass(frozen=True)
class Index:
    """A repository that was asked, `entry` as the row names it.

    `state` is one of the above; for WRONG and SILENT `detail` says why, and `host` who did not
    answer. `repository` has the URL of a mirror list's first line and of a mirror of KILN_MIRRORS.
    `checksums`: SHA-256 of the files that name the indexes, by URL.
    """

    entry: Repository
    repository: Repository
    state: str
    keyring: Path | None = None
    detail: str = ""
    host: str = ""
    checksums: tuple[tuple[str, str], ...] = ()

    @property
    def usable(self) -> bool:
        """May packages be asked of it?"""
        return self.state in {SIGNED, UNSIGNED}


def ask_repository(repository: Repository, fetcher: Fetcher, folder: Path) -> Index:
    """Fetch and check what a repository signs; keyrings go into `folder`."""
    resolved = repository
    try:
        resolved = _resolved(repository, fetcher)
        if not repository.signed:
            metadata = fetcher.get(f"{resolved.url}/repodata/repomd.xml")
            return Index(repository, resolved, UNSIGNED, checksums=_sums(resolved, [metadata]))
        folder.mkdir(parents=True, exist_ok=True)
        # Repositories are asked side by side: each has a file of its own.
        name = hashlib.sha256(repr(repository).encode()).hexdigest()[:16]
        keyring = make_keyring(repository, fetcher, folder / f"{repository.name}-{name}.gpg")
        fetched = _signed_files(resolved, fetcher, keyring)
        return Index(repository, resolved, SIGNED, keyring, checksums=_sums(resolved, fetched))
    except NoAnswerError as error:
        return Index(repository, resolved, SILENT, detail=error.reason, host=error.host)
    except (NotThereError, NotSignedError) as error:
        return Index(repository, resolved, WRONG, detail=str(error))


def _resolved(repository: Repository, fetcher: Fetcher) -> Repository:
    """The repository at the address that apt or dnf is given."""
    if not repository.mirror_list:
        return replace(repository, url=fetcher.place(repository.url))
    lines = fetcher.get(repository.url).path.read_text(encoding="utf-8", errors="replace").split()
    urls = [line for line in lines if re.fullmatch(vocabulary.URL.pattern, line)]
    if not urls:
        raise NotThereError(f"{fetcher.place(repository.url)}: the mirror list names no mirror")
    return replace(repository, url=fetcher.place(urls[0].rstrip("/")))


def _signed_files(repository: Repository, fetcher: Fetcher, keyring: Path) -> list[Fetched]:
    if repository.kind == "apt":
        fetched = [fetcher.get(url) for url in repository.release_files()]
        for file in fetched:
            check_signature(keyring, file.path)
        return fetched
    metadata = fetcher.get(f"{repository.url}/repodata/repomd.xml")
    signature = fetcher.get(f"{repository.url}/repodata/repomd.xml.asc")
    check_signature(keyring, _binary(signature.path), metadata.path)
    return [metadata]


def _binary(signature: Path) -> Path:
    """An armoured signature by the name that gpgv expects."""
    named = signature.with_suffix(".asc")
    named.write_bytes(signature.read_bytes())
    return named


def _sums(repository: Repository, fetched: list[Fetched]) -> tuple[tuple[str, str], ...]:
    if repository.kind == "rpm":
        return ((f"{repository.url}/repodata/repomd.xml", fetched[0].sha256),)
    urls = repository.release_files()
    return tuple((url, file.sha256) for url, file in zip(urls, fetched, strict=True))
