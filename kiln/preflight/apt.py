"""apt in a throwaway root: what repositories offer, and whether packages fit together."""

from __future__ import annotations

import functools
import os
import re
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

from kiln.base.versions import WantedPackage
from kiln.preflight import package_root
from kiln.preflight.demand import Install
from kiln.preflight.indexes import Index
from kiln.preflight.package_root import Offer, Resolved, UnusableError

# Of this machine's own configuration only how the network is reached.
_KEPT = ("Acquire::http::Proxy", "Acquire::https::Proxy", "Acquire::http::Timeout")


class AptRoot:
    """An empty machine of one architecture with these repositories in its sources.list.

    The package lists in `lists` are shared with other roots: apt asks again only for what changed.
    Raises UnusableError if apt cannot read the repositories.
    """

    def __init__(self, folder: Path, lists: Path, arch: str, indexes: Sequence[Index]) -> None:
        self._config = folder / "apt.conf"
        for path in (folder / "cache", folder / "parts", folder / "preferences", lists / "partial"):
            path.mkdir(parents=True, exist_ok=True)
        (folder / "status").write_text("", encoding="utf-8")
        sources = folder / "sources.list"
        sources.write_text("".join(_lines(indexes)), encoding="utf-8")
        self._config.write_text(_configuration(folder, lists, sources, arch), encoding="utf-8")
        done = self._run("apt-get", "update", "-o", "APT::Update::Error-Mode=any")
        if done.returncode:
            raise UnusableError(_words(done))

    def offers(self, names: Iterable[str]) -> dict[str, list[Offer]]:
        """As PackageRoot.offers."""
        listed = self._run("apt-cache", "madison", *names).stdout
        by_name: dict[str, list[Offer]] = {}
        for line in listed.splitlines():
            parts = [part.strip() for part in line.split("|")]
            if len(parts) == 3:
                offer = Offer(parts[1], parts[2].split(" ")[0])
                of_name = by_name.setdefault(parts[0], [])
                if offer not in of_name:
                    of_name.append(offer)
        return by_name

    def resolve(self, install: Install, offers: dict[str, list[Offer]]) -> Resolved:
        """As PackageRoot.resolve, with the flags of kiln_install."""
        words = [_exact(package, offers) for package in install.packages]
        done = self._run("apt-get", "-s", "-y", "install", "--no-install-recommends", *words)
        if done.returncode:
            return Resolved(problem=_words(done))
        installed = re.findall(r"^Inst (\S+) \((\S+) ", done.stdout, re.MULTILINE)
        return Resolved(tuple(f"{name}={version}" for name, version in installed))

    @functools.cached_property
    def names(self) -> Sequence[str]:
        """As PackageRoot.names."""
        return self._run("apt-cache", "pkgnames").stdout.split()

    def _run(self, *command: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "APT_CONFIG": str(self._config), "LC_ALL": "C.UTF-8"}
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def _exact(package: WantedPackage, offers: dict[str, list[Offer]]) -> str:
    """The package at the newest offered version that is meant, as kiln_install chooses it."""
    if not package.version:
        return package.name
    fitting = (o.version for o in offers.get(package.name, []) if package.is_met_by(o.version))
    return f"{package.name}={next(fitting)}"


def _lines(indexes: Sequence[Index]) -> Iterable[str]:
    for index in indexes:
        repository = index.repository
        for suite in repository.suites:
            parts = " ".join([repository.url, suite, *repository.components])
            # A snapshot's Release file is past its Valid-Until; its signature still counts.
            yield f"deb [signed-by={index.keyring} check-valid-until={_fresh(index)}] {parts}\n"


def _fresh(index: Index) -> str:
    return "no" if "-snapshot-" in index.repository.name else "yes"


def _configuration(folder: Path, lists: Path, sources: Path, arch: str) -> str:
    settings = {
        "Dir::Etc::Parts": folder / "parts",
        "Dir::Etc::main": folder / "none",
        "Dir::Etc::sourcelist": sources,
        "Dir::Etc::sourceparts": folder / "parts",
        "Dir::Etc::trusted": folder / "none",
        "Dir::Etc::trustedparts": folder / "parts",
        "Dir::Etc::preferences": folder / "none",
        "Dir::Etc::preferencesparts": folder / "preferences",
        "Dir::State": folder,
        "Dir::State::lists": lists,
        "Dir::State::status": folder / "status",
        "Dir::Cache": folder / "cache",
        "Dir::Cache::archives": folder / "cache",
        "Dir::Cache::pkgcache": folder / "cache" / "pkgcache.bin",
        "APT::Architecture": arch,
        # Lists of other roots.
        "APT::Get::List-Cleanup": "false",
        "Acquire::Retries": "1",
        "Acquire::Languages": "none",
        "Acquire::http::Timeout": str(package_root.TIMEOUT),
        "Acquire::https::Timeout": str(package_root.TIMEOUT),
        # The caller's, when the lists belong to root.
        "APT::Sandbox::User": "root",
        "Debug::NoLocking": "true",
    }
    certificates = os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("CURL_CA_BUNDLE")
    if certificates:
        settings["Acquire::https::CAInfo"] = certificates
    lines = [f'{name} "{value}";' for name, value in settings.items()]
    return "\n".join([*lines, f'APT::Architectures {{ "{arch}"; }};', *_network(), ""])


def _network() -> list[str]:
    dump = subprocess.run(["apt-config", "dump"], capture_output=True, text=True, check=False)
    return [line for line in dump.stdout.splitlines() if line.startswith(_KEPT)]


def _words(done: subprocess.CompletedProcess[str]) -> str:
    """apt's own words: which packages do not fit, then its errors."""
    text = done.stdout.partition("The following packages have unmet dependencies:\n")[2]
    unmet = [" ".join(line.split()) for line in text.splitlines() if line.startswith(" ")]
    marked = [line for line in done.stderr.splitlines() if line.startswith(("E:", "W:"))]
    errors = [line.removeprefix("E: ").removeprefix("W: ") for line in marked]
    return "; ".join([*unmet, *dict.fromkeys(errors)]) or f"exit status {done.returncode}"
