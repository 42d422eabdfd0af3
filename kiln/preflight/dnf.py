"""dnf in a throwaway root: what repositories offer, and whether packages fit together."""

from __future__ import annotations

import functools
import hashlib
import os
import re
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

from kiln.base.errors import operation_failed
from kiln.base.versions import WantedPackage
from kiln.preflight import package_root
from kiln.preflight.demand import Install
from kiln.preflight.indexes import Index
from kiln.preflight.package_root import Offer, Resolved, UnusableError

_ALL_STREAMS = "--setopt=*.module_hotfixes=1"
_FIELDS = "%{name}|%{epoch}:%{version}-%{release}|%{repoid}"


class DnfRoot:
    """An empty machine of one architecture (as uname -m names it) with these repositories.

    `cache` keeps the repositories' metadata. Raises UnusableError if dnf cannot read them.
    """

    def __init__(
        self, folder: Path, cache: Path, distro: str, arch: str, indexes: Sequence[Index]
    ) -> None:
        self._root = folder / "root"
        # The stream of each module that is enabled.
        self._streams: dict[str, str] = {}
        repositories = folder / "repos"
        for path in (self._root, repositories, cache):
            path.mkdir(parents=True, exist_ok=True)
        text = "\n".join(_section(index) for index in indexes)
        (repositories / "preflight.repo").write_text(text, encoding="utf-8")
        self._command = [
            *_as_root(),
            *("dnf", "--installroot", str(self._root), "--forcearch", arch),
            *("--releasever", distro.removeprefix("al"), "--noplugins", "--assumeyes", "--quiet"),
            *(f"--setopt=reposdir={repositories}", f"--setopt=cachedir={cache}"),
            *(f"--setopt=varsdir={folder / 'vars'}", "--setopt=metadata_expire=0"),
            # As PLATFORM_ID in its os-release; module streams depend on it.
            f"--setopt=module_platform_id=platform:{distro}",
            *(
                f"--setopt=timeout={package_root.TIMEOUT}",
                "--setopt=retries=1",
                "--setopt=skip_if_unavailable=0",
            ),
        ]
        certificates = os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("CURL_CA_BUNDLE")
        if certificates:
            self._command.append(f"--setopt=sslcacert={certificates}")
        done = self._run("makecache")
        if done.returncode:
            raise UnusableError(_words(done))
        _compare(cache, indexes)
        # makecache has just compared these with the repositories: not again.
        self._command += ["--cacheonly"]

    def offers(self, names: Iterable[str]) -> dict[str, list[Offer]]:
        """As PackageRoot.offers."""
        # Packages of a module stream are hidden until it is enabled; resolve() enables it.
        words = ["--available", "--showduplicates", "--queryformat", _FIELDS, _ALL_STREAMS]
        listed = self._run("repoquery", *words, *names).stdout
        by_name: dict[str, list[Offer]] = {}
        for line in reversed(listed.splitlines()):
            name, _, rest = line.partition("|")
            version, _, repository = rest.partition("|")
            of_name = by_name.setdefault(name, [])
            offer = Offer(version.removeprefix("0:"), repository)
            if offer not in of_name:
                of_name.append(offer)
        return by_name

    def resolve(self, install: Install, offers: dict[str, list[Offer]]) -> Resolved:
        """As PackageRoot.resolve; the module stream is enabled first, as nvidia-driver.sh does."""
        module, _, stream = install.stream.partition(":")
        if self._streams.get(module, "") != stream:
            if self._streams.pop(module, ""):
                self._run("module", "reset", module)
            done = self._run("module", "enable", install.stream)
            if done.returncode:
                return Resolved(problem=_words(done))
            self._streams[module] = stream
        words = [_exact(package, offers) for package in install.packages]
        done = self._run("install", "--assumeno", "--verbose", *words)
        resolved = r"^---> Package (\S+)\.\S+ (\S+) will be installed$"
        installed = re.findall(resolved, done.stdout, re.MULTILINE)
        # Without --assumeno's refusal there was nothing to install, or no solution.
        if "Operation aborted" not in done.stderr + done.stdout:
            return Resolved(problem=_words(done))
        return Resolved(tuple(f"{name}={version}" for name, version in installed))

    @functools.cached_property
    def names(self) -> Sequence[str]:
        """As PackageRoot.names."""
        words = ["--available", "--queryformat", "%{name}", _ALL_STREAMS]
        return self._run("repoquery", *words).stdout.split()

    def _run(self, *words: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "LC_ALL": "C.UTF-8"}
        return subprocess.run(
            [*self._command, *words], env=environment, capture_output=True, text=True, check=False
        )


def _as_root() -> list[str]:
    """The command before dnf's, which resolves dependencies for root alone, of its throwaway root
    too. Raises KilnError (exit status 1) where an ordinary user cannot be root of a namespace."""
    if os.geteuid() == 0:
        return []
    command = ["unshare", "--map-root-user"]
    if subprocess.run([*command, "true"], capture_output=True, check=False).returncode:
        raise operation_failed(
            "dnf resolves dependencies as root only, and this machine allows no user namespaces",
            hint="sudo ./invoke preflight, or choose rows of Debian and Ubuntu",
        )
    return command


def _exact(package: WantedPackage, offers: dict[str, list[Offer]]) -> str:
    """The package at the newest offered version that is meant, as kiln_install chooses it."""
    if not package.version:
        return package.name
    fitting = (o.version for o in offers.get(package.name, []) if package.is_met_by(o.version))
    return f"{package.name}-{next(fitting)}"


def _section(index: Index) -> str:
    """A repository as its .repo file; packages are not fetched, so theirs need no key here."""
    lines = [
        f"[{index.repository.name}]",
        f"name={index.repository.name}",
        f"baseurl={index.repository.url}",
        "enabled=1",
        "gpgcheck=0",
        # indexes.py has checked the signature; dnf would start an agent of GnuPG, which stays.
        "repo_gpgcheck=0",
        *([f"includepkgs={' '.join(index.repository.only)}"] if index.repository.only else []),
        "",
    ]
    return "\n".join(lines)


def _compare(cache: Path, indexes: Sequence[Index]) -> None:
    """Raises UnusableError if dnf has other metadata than that whose signature was checked."""
    for index in indexes:
        for file in cache.glob(f"{index.repository.name}-????????????????/repodata/repomd.xml"):
            checksum = hashlib.sha256(file.read_bytes()).hexdigest()
            if checksum not in dict(index.checksums).values():
                name = index.repository.name
                raise UnusableError(f"the metadata of {name} changed while it was read: ask again")


def _words(done: subprocess.CompletedProcess[str]) -> str:
    """dnf's own words."""
    lines = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
    return "; ".join(lines[:12]) or f"exit status {done.returncode}"
