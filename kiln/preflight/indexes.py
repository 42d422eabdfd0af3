"""Indexes of vendors' hosts: files, and repositories whose signatures count by pinned keys."""

from __future__ import annotations

import hashlib
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import requests

from kiln.base import processes, vocabulary
from kiln.base.account import mirrored
from kiln.components.package_repositories import Repository
from kiln.facts.tables import http_reason

# Seconds to connect, and between two pieces of an answer.
TIMEOUT = (10, 30)
# Statuses of a file that is not there: S3 answers 403 to callers without ListBucket.
_NOT_THERE = {403, 404, 410}
_HEADERS = {"Accept-Encoding": "identity"}


class State(str, Enum):
    """State of a file or package: SILENT if nobody could tell."""

    PUBLISHED = "published"
    MISSING = "not published"
    SILENT = "no answer"
    NOT_ASKED = "not asked"


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The answer about one thing. `detail` says why it is not there; `host` did not answer."""

    state: State
    detail: str = ""
    host: str = ""


class NoAnswerError(Exception):
    """A host did not answer, or not with the file and not that there is none. `host`, `reason`."""

    def __init__(self, host: str, reason: str) -> None:
        super().__init__(f"{host}: {reason}")
        self.host = host
        self.reason = reason


class NotThereError(Exception):
    """The host answers that there is no such file."""


class NotSignedError(Exception):
    """A file is not signed by a pinned key, or the key file does not hold one; the reason."""


class Fetcher:
    """Asks hosts for files. Proxies and CA certificates come from the environment.

    What `get` fetches is kept in `folder` as long as the host says that it is current. All methods
    raise NotThereError if the host says that there is no such file, NoAnswerError if it says
    nothing.
    """

    def __init__(self, folder: Path) -> None:
        from requests_cache import CachedSession  # slow to import

        folder.mkdir(parents=True, exist_ok=True)
        self._kept = CachedSession(
            str(folder / "http"), backend="sqlite", serializer="json", always_revalidate=True
        )

    def get(self, url: str) -> bytes:
        """Return the file at a URL."""
        return self._answer("GET", url, self._kept).content

    def size(self, url: str) -> int | None:
        """Return the size of a file in bytes, without fetching it; None if the host says none."""
        length = self._answer("HEAD", url).headers.get("Content-Length", "")
        return int(length) if re.fullmatch(r"[0-9]{1,18}", length) else None

    def sha256(self, url: str) -> tuple[str, int]:
        """Return the SHA-256 (hex) and the size of a file, which may be large and is not kept."""
        total, size = hashlib.sha256(), 0
        with self._answer("GET", url, stream=True) as answer:
            try:
                for piece in answer.iter_content(1 << 20):
                    total.update(piece)
                    size += len(piece)
            except requests.RequestException as error:
                raise NoAnswerError(urlsplit(url).netloc, http_reason(error)) from None
        return total.hexdigest(), size

    def _answer(
        self, method: str, url: str, session: requests.Session | None = None, stream: bool = False
    ) -> requests.Response:
        place = mirrored(url)
        send = session.request if session else requests.request
        try:
            answer = send(
                method,
                place,
                headers=_HEADERS,
                timeout=TIMEOUT,
                stream=stream,
                allow_redirects=True,
            )
        except requests.RequestException as error:
            raise NoAnswerError(urlsplit(place).netloc, http_reason(error)) from None
        if answer.status_code in _NOT_THERE:
            raise NotThereError(f"{place}: HTTP status {answer.status_code}")
        if answer.status_code >= 400:
            raise NoAnswerError(urlsplit(place).netloc, f"HTTP status {answer.status_code}")
        return answer


@dataclass(frozen=True, kw_only=True)
class Index(Answer):
    """A repository that was asked, `entry` as the row names it.

    `repository` has the URL of a mirror list's first line and of a mirror of KILN_MIRRORS;
    `keyring` is None if the vendor signs packages alone.
    """

    entry: Repository
    repository: Repository
    keyring: Path | None = None

    @property
    def usable(self) -> bool:
        """Return True if packages may be asked of it."""
        return self.state is State.PUBLISHED


def ask_repository(repository: Repository, fetcher: Fetcher, folder: Path) -> Index:
    """Fetch and check what a repository signs; keyrings go into `folder`."""
    answer = partial(Index, entry=repository)
    resolved = repository
    try:
        resolved = _resolved(repository, fetcher)
        if not repository.signed:
            fetcher.get(f"{resolved.url}/repodata/repomd.xml")
            return answer(state=State.PUBLISHED, repository=resolved)
        folder.mkdir(parents=True, exist_ok=True)
        # Repositories are asked side by side: each has a file of its own.
        name = hashlib.sha256(repr(repository).encode()).hexdigest()[:16]
        keyring = make_keyring(repository, fetcher, folder / f"{repository.name}-{name}.gpg")
        _check_signatures(resolved, fetcher, keyring)
        return answer(state=State.PUBLISHED, repository=resolved, keyring=keyring)
    except NoAnswerError as error:
        silent = partial(answer, state=State.SILENT, repository=resolved)
        return silent(detail=error.reason, host=error.host)
    except (NotThereError, NotSignedError) as error:
        detail = f"repository {repository.name} ({resolved.url}): {error}"
        return answer(state=State.MISSING, repository=resolved, detail=detail)


def _resolved(repository: Repository, fetcher: Fetcher) -> Repository:
    """Return the repository at the address that apt or dnf is given."""
    if not repository.mirror_list:
        return replace(repository, url=mirrored(repository.url))
    lines = fetcher.get(repository.url).decode(errors="replace").split()
    urls = [line for line in lines if re.fullmatch(vocabulary.URL.pattern, line)]
    if not urls:
        raise NotThereError(f"{mirrored(repository.url)}: the mirror list names no mirror")
    return replace(repository, url=mirrored(urls[0].rstrip("/")))


def _check_signatures(repository: Repository, fetcher: Fetcher, keyring: Path) -> None:
    """Check that a pinned key signed the files that name the repository's indexes."""
    file, signature = keyring.with_suffix(".signed"), keyring.with_suffix(".asc")
    if repository.kind == "apt":
        for url in repository.release_files():
            file.write_bytes(fetcher.get(url))
            require_signature(keyring, file)
    else:
        url = f"{repository.url}/repodata/repomd.xml"
        file.write_bytes(fetcher.get(url))
        signature.write_bytes(fetcher.get(f"{url}.asc"))
        require_signature(keyring, signature, file)


def make_keyring(repository: Repository, fetcher: Fetcher, keyring: Path) -> Path:
    """Write a keyring with those of the repository's keys whose fingerprints are pinned.

    They come from this machine, or from the vendor's key file or keyring package.
    """
    own = Path(repository.key_file) if repository.key_file else None
    with tempfile.TemporaryDirectory(prefix="kiln-keys-") as folder:
        home = Path(folder)
        file = home / "key"
        file.write_bytes(
            own.read_bytes() if own and own.is_file() else fetcher.get(repository.key_url)
        )
        for part in _key_files(file, home / "package"):
            _gpg(home, "--import", str(part))
        fingerprints = _fingerprints(home)
        pinned = [entry for entry in repository.fingerprints if entry in fingerprints]
        if not pinned:
            held = ", ".join(sorted(fingerprints)) or "no key"
            raise NotSignedError(
                f"the key file holds {held}; pinned: {', '.join(repository.fingerprints)}"
            )
        keyring.unlink(missing_ok=True)
        _gpg(home, "--output", str(keyring), "--export", *pinned)
    return keyring


def armored(keyring: Path) -> str:
    """Return all keys of a keyring as ASCII, as rpm takes them."""
    with tempfile.TemporaryDirectory(prefix="kiln-keys-") as folder:
        home = Path(folder)
        _gpg(home, "--import", str(keyring))
        return _gpg(home, "--armor", "--export")


def require_signature(keyring: Path, *files: Path) -> None:
    """Require a valid signature inside a file, or a detached signature and its file.

    A file may have more signatures, by keys that are not pinned: Debian's Release files have one
    for each release. NotSignedError has gpgv's own words.
    """
    command = ["gpgv", "--status-fd", "1", "--keyring", str(keyring.absolute()), *map(str, files)]
    done = processes.run(command)
    words = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("[GNUPG:] ")]
    if "VALIDSIG" not in words or "BADSIG" in words:
        lines = [line.removeprefix("gpgv: ").strip() for line in done.stderr.splitlines()]
        reasons = [line for line in lines if line and not line.startswith("Signature made")]
        raise NotSignedError(f"no valid signature by a pinned key: {'; '.join(reasons)[:300]}")


def _key_files(file: Path, folder: Path) -> Sequence[Path]:
    """Return the file itself, or the keyrings in it if it is a Debian package."""
    if file.read_bytes()[:8] != b"!<arch>\n":
        return [file]
    command = ["dpkg-deb", "-x", str(file), str(folder)]
    done = processes.run(command)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["dpkg-deb failed"])[-1]
        raise NotSignedError(f"the keyring package cannot be unpacked: {reason[:300]}")
    return sorted(folder.glob("usr/share/keyrings/*.gpg"))


def _fingerprints(home: Path) -> set[str]:
    """Return the fingerprints of the primary keys in a GnuPG home."""
    primary = False
    prints = set()
    for line in _gpg(home, "--with-colons", "--list-keys").splitlines():
        fields = line.split(":")
        if fields[0] in {"pub", "sub"}:
            primary = fields[0] == "pub"
        elif fields[0] == "fpr" and primary:
            prints.add(fields[9])
    return prints


def _gpg(home: Path, *words: str) -> str:
    # No agent: it would stay behind, and public keys need none.
    command = ["gpg", "--homedir", str(home), "--batch", "--quiet", "--no-autostart", *words]
    return processes.run(command).stdout
