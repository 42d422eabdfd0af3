"""Files over HTTP, kept with their ETag: a file is there whole or not at all."""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import requests

from kiln.base.errors import KilnError
from kiln.base.vocabulary import masked
from kiln.facts.tables import http_reason

MIRRORS = "KILN_MIRRORS"
# Seconds to connect, and between two pieces of an answer.
TIMEOUT = (10, 30)
_PIECE = 1 << 20
# Bytes of a file; the largest index has a tenth of it.
_LARGEST = 1 << 30
# Python refuses to read a number of thousands of digits.
_LENGTH = re.compile(r"[0-9]{1,18}")
# Statuses of a file that is not there: S3 answers 403 to callers without ListBucket.
_NOT_THERE = {403, 404, 410}


class NoAnswerError(Exception):
    """A host did not answer, or not with the file and not that there is none. `host`, `reason`."""

    def __init__(self, host: str, reason: str) -> None:
        super().__init__(f"{host}: {reason}")
        self.host = host
        self.reason = reason


class NotThereError(Exception):
    """The host answers that there is no such file."""


@dataclass(frozen=True)
class Fetched:
    """A whole file on this machine, its SHA-256 in hex, and its size in bytes."""

    path: Path
    sha256: str
    size: int


def mirrors() -> dict[str, str]:
    """The mirrors in KILN_MIRRORS: beginning of a URL → what takes its place.

    Raises KilnError (exit status 2) for a word that is not URL=URL.
    """
    pairs = {}
    for word in os.environ.get(MIRRORS, "").split():
        vendor, equals, mirror = word.partition("=")
        if not equals or not all(_is_url(url) for url in (vendor, mirror)):
            raise KilnError(
                f"{MIRRORS}: {masked(repr(word))} is not a pair of URLs without user and password",
                hint="expected: https://vendor.example=https://mirror.example/vendor, several "
                "separated by spaces",
            )
        pairs[vendor.rstrip("/")] = mirror.rstrip("/")
    return pairs


def _is_url(text: str) -> bool:
    parts = urlsplit(text)
    # Messages name the URL that was asked, and no message may have a password.
    return parts.scheme in {"http", "https"} and bool(parts.netloc) and masked(text) == text


class Fetcher:
    """Fetches into a folder. Proxies and CA certificates come from the environment.

    `more` are mirrors besides those of KILN_MIRRORS: beginning of a URL → what takes its place.
    """

    def __init__(self, folder: Path, more: Mapping[str, str] | None = None) -> None:
        self._folder = folder
        self._mirrors = {**mirrors(), **(more or {})}
        folder.mkdir(parents=True, exist_ok=True)

    def place(self, url: str) -> str:
        """Where a URL is fetched from: a mirror of the longest beginning that has one."""
        fitting = [old for old in self._mirrors if url == old or url.startswith(f"{old}/")]
        if not fitting:
            return url
        old = max(fitting, key=len)
        return self._mirrors[old] + url.removeprefix(old)

    def get(self, url: str) -> Fetched:
        """The file at a URL, fetched unless the copy here is still current.

        Raises NotThereError if the host says that there is no such file, NoAnswerError otherwise.
        """
        kept, metadata = self._kept(url)
        headers = {"Accept-Encoding": "identity"}
        if metadata:
            headers |= {
                name: metadata[key]
                for name, key in (("If-None-Match", "etag"), ("If-Modified-Since", "modified"))
                if metadata.get(key)
            }
        with self._response("GET", url, headers) as answer:
            if metadata and answer.status_code == requests.codes.not_modified:
                return Fetched(kept, metadata["sha256"], kept.stat().st_size)
            return self._written(url, answer)

    def size(self, url: str) -> int | None:
        """The size in bytes of the file at a URL, without fetching it; None if the host says none.

        Raises NotThereError and NoAnswerError as `get` does.
        """
        with self._response("HEAD", url, {"Accept-Encoding": "identity"}) as answer:
            length = answer.headers.get("Content-Length", "")
            return int(length) if _LENGTH.fullmatch(length) else None

    def _response(self, method: str, url: str, headers: dict[str, str]) -> requests.Response:
        place = self.place(url)
        host = urlsplit(place).netloc
        try:
            answer = requests.request(
                method, place, headers=headers, timeout=TIMEOUT, stream=True, allow_redirects=True
            )
        except requests.RequestException as error:
            raise NoAnswerError(host, _reason(error)) from None
        status = answer.status_code
        if status in _NOT_THERE:
            answer.close()
            raise NotThereError(f"{place}: HTTP status {status}")
        if status >= 400:
            answer.close()
            raise NoAnswerError(host, f"HTTP status {status}")
        return answer

    def _kept(self, url: str) -> tuple[Path, dict[str, str]]:
        """Where the copy of a URL is, and what is known of it: nothing if it is not whole."""
        path = self._folder / hashlib.sha256(self.place(url).encode()).hexdigest()
        try:
            metadata = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
            whole = metadata["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
        except (OSError, ValueError, KeyError, TypeError):
            return path, {}
        return path, metadata if whole else {}

    def _written(self, url: str, answer: requests.Response) -> Fetched:
        path, _ = self._kept(url)
        total = hashlib.sha256()
        size = 0
        with tempfile.NamedTemporaryFile(dir=self._folder, delete=False) as part:
            try:
                for piece in answer.iter_content(_PIECE):
                    part.write(piece)
                    total.update(piece)
                    size += len(piece)
                    if size > _LARGEST:
                        host = urlsplit(self.place(url)).netloc
                        raise NoAnswerError(host, f"it sends more than {_LARGEST >> 20} MiB")
                self._whole(answer, size)
            except (requests.RequestException, NoAnswerError) as error:
                Path(part.name).unlink()
                if isinstance(error, NoAnswerError):
                    raise
                raise NoAnswerError(urlsplit(self.place(url)).netloc, _reason(error)) from None
        metadata = {
            "url": self.place(url),
            "sha256": total.hexdigest(),
            "etag": answer.headers.get("ETag", ""),
            "modified": answer.headers.get("Last-Modified", ""),
        }
        Path(part.name).replace(path)
        path.with_suffix(".json").write_text(json.dumps(metadata), encoding="utf-8")
        return Fetched(path, metadata["sha256"], size)

    def _whole(self, answer: requests.Response, size: int) -> None:
        """Raises NoAnswerError if the connection ended before the file did."""
        length = answer.headers.get("Content-Length", "")
        if _LENGTH.fullmatch(length) and int(length) != size:
            host = urlsplit(answer.url).netloc
            raise NoAnswerError(host, f"the connection ended after {size} of {length} bytes")


def _reason(error: Exception) -> str:
    """A failed request in a few words, without the URL that the exception repeats."""
    text = str(error)
    return http_reason(text) or text
