"""Tools of the vendors' modules: routes, and storage for the files that they make."""

from __future__ import annotations

import hashlib
import os
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from lab.base import locks
from lab.vendors.mirror import repos
from lab.vendors.mirror.keys import Keyring

ROUTES: list[tuple[re.Pattern[str], Answer]] = []


def sources_digest() -> str:
    """A digest of the code and data that files are made from: a change makes them again."""
    total = hashlib.sha256()
    vendors = Path(__file__).resolve().parent.parent
    for part in ("mirror", "packages", "standins"):
        for path in sorted((vendors / part).rglob("*")):
            # A linter's cache is not a source.
            caches = {"__pycache__", ".ruff_cache"}
            if caches.isdisjoint(path.parts) and path.is_file():
                total.update(str(path.relative_to(vendors)).encode() + b"\0" + path.read_bytes())
    return total.hexdigest()[:12]


@dataclass
class Site:
    """All vendors' hosts; the files built for them are kept below `state`."""

    state: Path
    keyring: Keyring
    digest: str = field(default_factory=sources_digest)

    @property
    def home(self) -> Path:
        return self.state / "mirror"

    def find(self, url: str) -> Path | None:
        """The file for `url` (scheme, host and path), built when it is missing; None means 404."""
        for pattern, answer in ROUTES:
            match = pattern.fullmatch(url)
            if match:
                return answer(self, match)
        return None

    def repo(self, repo: repos.Repo | None, path: str) -> Path | None:
        """A file of a repository. The repository is built when it is missing."""
        if repo is None:
            return None
        folder = repos.ensure(repo, self.home / "repos", self.keyring)
        file = folder / path
        return file if file.resolve().is_relative_to(folder.resolve()) else None

    def text(self, name: str, content: str | bytes) -> Path:
        """A small file with that content."""
        file = self.home / "texts" / name
        data = content.encode() if isinstance(content, str) else content
        if not file.exists() or file.read_bytes() != data:
            file.parent.mkdir(parents=True, exist_ok=True)
            making = _making(file)
            making.write_bytes(data)
            making.replace(file)
        return file

    def made(self, name: str, make: Callable[[Path], bool]) -> Path | None:
        """A file kept under that name. `make` writes it, or returns False when there is none.

        It is made once: who has its hash or signature already must never find other bytes.
        """
        file = self.home / "files" / self.digest / name
        if file.exists():
            return file
        file.parent.mkdir(parents=True, exist_ok=True)
        with locks.alone(_lock(file)):
            if not file.exists():
                making = _making(file)
                if not make(making):
                    return None
                making.replace(file)
        return file

    def signature(self, key: str, file: Path | None, *, armor: bool = False) -> Path | None:
        """A detached signature, kept beside the file."""
        if file is None:
            return None
        signature = file.with_name(file.name + (".asc" if armor else ".sig"))
        if not signature.exists():
            with locks.alone(_lock(signature)):
                if not signature.exists():
                    self.keyring.sign_detached(key, file, armor=armor)
        return signature


Answer = Callable[[Site, "re.Match[str]"], "Path | None"]


def route(pattern: str) -> Callable[[Answer], Answer]:
    """Register a function for URLs that match the pattern, which begins with https://host/."""

    def register(answer: Answer) -> Answer:
        ROUTES.append((re.compile(pattern), answer))
        return answer

    return register


def hosts() -> list[str]:
    """Every host name that a route begins with."""
    return sorted({_host(pattern.pattern) for pattern, _ in ROUTES})


def _lock(file: Path) -> Path:
    return file.with_name(f".lock-{file.name}")


def _making(file: Path) -> Path:
    """Return the path at which this thread writes a file before it gets its name."""
    return file.with_name(f".{file.name}.{os.getpid()}.{threading.get_ident()}")


def _host(pattern: str) -> str:
    return pattern.split("://", 1)[1].split("/", 1)[0].replace("\\", "")
