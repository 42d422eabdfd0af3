"""apt and dnf in a throwaway root: what repositories offer, and whether packages fit together."""

from __future__ import annotations

import difflib
import os
import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from kiln.base import processes, templates
from kiln.base.errors import operation_failed
from kiln.base.versions import WantedPackage
from kiln.preflight.indexes import Index

# Seconds that apt and dnf wait for a host that went silent after it had answered.
TIMEOUT = 20
# Of this machine's own configuration only how the network is reached.
_KEPT = ("Acquire::http::Proxy", "Acquire::https::Proxy", "Acquire::http::Timeout")
_ALL_STREAMS = "--setopt=*.module_hotfixes=1"
_FIELDS = "%{name}|%{epoch}:%{version}-%{release}|%{repoid}"


class SolverError(Exception):
    """The package tool cannot read the repositories, or packages do not fit; its own words."""


@dataclass(frozen=True)
class Offer:
    """A package that a repository has: version with epoch and revision, and the repository."""

    version: str
    repository: str


# Name → the versions that there are, newest first.
Offers = Mapping[str, Sequence[Offer]]


class AptRoot:
    """An empty machine of one distribution and processor that knows some repositories, for apt.

    The package lists in `lists` are shared with other roots: apt asks again only for what changed.
    """

    def __init__(self, folder: Path, lists: Path, arch: str, indexes: Sequence[Index]) -> None:
        self._config = folder / "apt.conf"
        for path in (folder / "cache", folder / "parts", folder / "preferences", lists / "partial"):
            path.mkdir(parents=True, exist_ok=True)
        (folder / "status").write_text("", encoding="utf-8")
        (folder / "sources.list").write_text("".join(_apt_lines(indexes)), encoding="utf-8")
        dump = _run(["apt-config", "dump"]).stdout
        settings = templates.render(
            "preflight/apt.conf.j2",
            folder=folder,
            lists=lists,
            arch=arch,
            timeout=TIMEOUT,
            certificates=_certificates(),
            network=[line for line in dump.splitlines() if line.startswith(_KEPT)],
        )
        self._config.write_text(settings, encoding="utf-8")
        done = self._run("apt-get", "update", "-o", "APT::Update::Error-Mode=any")
        if done.returncode:
            raise SolverError(_apt_words(done))

    def offers(self, names: Iterable[str]) -> dict[str, list[Offer]]:
        """Return the versions of each package; no entry for a name that nobody has."""
        listed = self._run("apt-cache", "madison", *names).stdout
        rows = [[part.strip() for part in line.split("|")] for line in listed.splitlines()]
        return _grouped((row[0], row[1], row[2].split(" ")[0]) for row in rows if len(row) == 3)

    def resolve(self, packages: Sequence[WantedPackage], stream: str, offers: Offers) -> int:
        """Let the solver install these packages, with the flags of kiln_install; return how many
        packages it would install."""
        words = [_exact(package, offers, "=") for package in packages]
        done = self._run("apt-get", "-s", "-y", "install", "--no-install-recommends", *words)
        if done.returncode:
            raise SolverError(_apt_words(done))
        return len(re.findall(r"^Inst \S+ \(", done.stdout, re.MULTILINE))

    @cached_property
    def names(self) -> Sequence[str]:
        """The names of all packages."""
        return self._run("apt-cache", "pkgnames").stdout.split()

    def _run(self, *command: str) -> subprocess.CompletedProcess[str]:
        return _run(command, APT_CONFIG=str(self._config))


class DnfRoot:
    """An empty machine of one distribution and processor that knows some repositories, for dnf.

    `arch` is as uname -m names it; `cache` keeps the metadata.
    """

    def __init__(
        self, folder: Path, cache: Path, distro: str, arch: str, indexes: Sequence[Index]
    ) -> None:
        # That of the driver's module that is enabled.
        self._stream = ""
        root, repositories = folder / "root", folder / "repos"
        for path in (root, repositories, cache):
            path.mkdir(parents=True, exist_ok=True)
        text = templates.render(
            "preflight/dnf.repo.j2", repositories=[index.repository for index in indexes]
        )
        (repositories / "preflight.repo").write_text(text, encoding="utf-8")
        settings = {
            "reposdir": repositories,
            "cachedir": cache,
            "varsdir": folder / "vars",
            "metadata_expire": 0,
            # As PLATFORM_ID in its os-release; module streams depend on it.
            "module_platform_id": f"platform:{distro}",
            "timeout": TIMEOUT,
            "retries": 1,
            "skip_if_unavailable": 0,
            **({"sslcacert": certificates} if (certificates := _certificates()) else {}),
        }
        self._command = [
            *_as_root(),
            *("dnf", "--installroot", str(root), "--forcearch", arch),
            *("--releasever", distro.removeprefix("al"), "--noplugins", "--assumeyes", "--quiet"),
            *(f"--setopt={name}={value}" for name, value in settings.items()),
        ]
        done = self._run("makecache")
        if done.returncode:
            raise SolverError(_dnf_words(done))
        # makecache has just compared these with the repositories: not again.
        self._command += ["--cacheonly"]

    def offers(self, names: Iterable[str]) -> dict[str, list[Offer]]:
        """Return the versions of each package, those of module streams included."""
        # Packages of a module stream are hidden until it is enabled; resolve() enables it.
        words = ["--available", "--showduplicates", "--queryformat", _FIELDS, _ALL_STREAMS]
        listed = self._run("repoquery", *words, *names).stdout
        rows = [line.split("|") for line in reversed(listed.splitlines())]
        return _grouped((row[0], row[1].removeprefix("0:"), row[2]) for row in rows)

    def resolve(self, packages: Sequence[WantedPackage], stream: str, offers: Offers) -> int:
        """Enable the module stream, as nvidia-driver.sh does, and let the solver install these
        packages; return how many it would install."""
        if stream not in ("", self._stream):
            if self._stream:
                self._run("module", "reset", self._stream.partition(":")[0])
            self._stream = stream
            done = self._run("module", "enable", stream)
            if done.returncode:
                raise SolverError(_dnf_words(done))
        words = [_exact(package, offers, "-") for package in packages]
        done = self._run("install", "--assumeno", "--verbose", *words)
        # Without --assumeno's refusal there was nothing to install, or no solution.
        if "Operation aborted" not in done.stderr + done.stdout:
            raise SolverError(_dnf_words(done))
        line = r"^---> Package \S+ \S+ will be installed$"
        return len(re.findall(line, done.stdout, re.MULTILINE))

    @cached_property
    def names(self) -> Sequence[str]:
        """The names of all packages."""
        words = ["--available", "--queryformat", "%{name}", _ALL_STREAMS]
        return self._run("repoquery", *words).stdout.split()

    def _run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return _run([*self._command, *words])


def most_like(name: str, names: Iterable[str]) -> str:
    """Return the known name with the same first word that is most like this one; empty if none."""
    start = name.split("-", maxsplit=1)[0]
    alike = [entry for entry in names if entry.startswith(start)]
    close = difflib.get_close_matches(name, alike, n=1, cutoff=0.75)
    return close[0] if close else ""


def _run(command: Sequence[str], **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "LC_ALL": "C.UTF-8", **variables}
    return processes.run(command, env=environment)


def _grouped(rows: Iterable[tuple[str, str, str]]) -> dict[str, list[Offer]]:
    """Return the offers by name, each once."""
    by_name: dict[str, dict[Offer, None]] = {}
    for name, version, repository in rows:
        by_name.setdefault(name, {})[Offer(version, repository)] = None
    return {name: list(offers) for name, offers in by_name.items()}


def _exact(package: WantedPackage, offers: Offers, sign: str) -> str:
    """Return the package at the newest offered version that is meant, as kiln_install does."""
    if not package.version:
        return package.name
    fitting = (o.version for o in offers.get(package.name, []) if package.is_met_by(o.version))
    return f"{package.name}{sign}{next(fitting)}"


def _certificates() -> str | None:
    return os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("CURL_CA_BUNDLE")


def _apt_lines(indexes: Sequence[Index]) -> Iterator[str]:
    for index in indexes:
        repository = index.repository
        # A snapshot's Release file is past its Valid-Until; its signature still counts.
        fresh = "no" if "-snapshot-" in repository.name else "yes"
        for suite in repository.suites:
            parts = " ".join([repository.url, suite, *repository.components])
            yield f"deb [signed-by={index.keyring} check-valid-until={fresh}] {parts}\n"


def _apt_words(done: subprocess.CompletedProcess[str]) -> str:
    """Return apt's own words: which packages do not fit, then its errors."""
    text = done.stdout.partition("The following packages have unmet dependencies:\n")[2]
    unmet = [" ".join(line.split()) for line in text.splitlines() if line.startswith(" ")]
    marked = [line for line in done.stderr.splitlines() if line.startswith(("E:", "W:"))]
    errors = [line.removeprefix("E: ").removeprefix("W: ") for line in marked]
    return "; ".join([*unmet, *dict.fromkeys(errors)]) or f"exit status {done.returncode}"


def _as_root() -> list[str]:
    """Return the command before dnf's, which resolves dependencies for root alone."""
    if os.geteuid() == 0:
        return []
    command = ["unshare", "--map-root-user"]
    if processes.run([*command, "true"]).returncode:
        raise operation_failed(
            "dnf resolves dependencies as root only, and this machine allows no user namespaces",
            hint="sudo ./invoke preflight, or choose rows of Debian and Ubuntu",
        )
    return command


def _dnf_words(done: subprocess.CompletedProcess[str]) -> str:
    """Return dnf's own words."""
    lines = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
    return "; ".join(lines[:12]) or f"exit status {done.returncode}"
