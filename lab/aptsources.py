"""Where this machine gets its Debian or Ubuntu packages: its own apt configuration."""

from __future__ import annotations

import contextlib
import platform
from dataclasses import dataclass

from kiln.base.errors import operation_failed
from lab.settings import current
from lab.shell import CommandError, run

_FIELDS = "$(REPO_URI)|$(RELEASE)|$(COMPONENT)|$(CREATED_BY)"
_WIDE = {
    "debian": ("main", "contrib", "non-free", "non-free-firmware"),
    "ubuntu": ("main", "restricted", "universe", "multiverse"),
}
_PLAIN = {"debian": ("main",), "ubuntu": ("main", "universe")}
# The tree imitates other distributions on Debian 12, the one whose packages were tried.
_DEBIAN_SUITE = "bookworm"


@dataclass(frozen=True)
class Archive:
    """The host's package archive: `origin` is debian or ubuntu, `suite` the release to take."""

    origin: str
    suite: str
    sources: tuple[tuple[str, str], ...]

    def lines(self, *, wide: bool) -> list[str]:
        """Lines for sources.list; `wide` adds non-free, where the NVIDIA driver is."""
        components = " ".join((_WIDE if wide else _PLAIN)[self.origin])
        return [f"deb {uri} {suite} {components}" for uri, suite in self.sources]


def host() -> Archive:
    """Read the host's archive with apt's own tool; operation_failed when there is none."""
    release = platform.freedesktop_os_release()
    origin, codename = release.get("ID", ""), release.get("VERSION_CODENAME", "")
    if origin not in _WIDE:
        raise operation_failed(
            f"the lab builds its guests from Debian or Ubuntu packages; this machine is {origin!r}",
            hint="use a Debian 12 or Ubuntu machine, or bring a root filesystem with lab.import",
        )
    # Where apt may keep no cache of its own (containers), it reads all its lists for each answer.
    cache = current().shared / "apt" / "pkgcache.bin"
    with contextlib.suppress(OSError):
        cache.parent.mkdir(parents=True, exist_ok=True)
    try:
        listing = run(
            *("apt-get", "-o", f"Dir::Cache::pkgcache={cache}"),
            *("indextargets", "--format", _FIELDS),
        )
    except (CommandError, FileNotFoundError) as failure:
        raise operation_failed(f"cannot read this machine's apt sources: {failure}") from None
    suite = _DEBIAN_SUITE if origin == "debian" else codename
    return Archive(origin, suite, parse(listing, codename, suite))


def parse(listing: str, codename: str, suite: str) -> tuple[tuple[str, str], ...]:
    """The archive's URIs and suites out of `apt-get indextargets`, for `suite`.

    Third-party repositories (docker, node, …) are left out: they carry the codename as well,
    but not the component `main` together with one of the archive's own suites.
    """
    suffixes = ("", "-updates", "-security")
    wanted = {codename + suffix: suite + suffix for suffix in suffixes}
    found: dict[tuple[str, str], None] = {}
    for line in listing.splitlines():
        uri, release, component, created_by = line.split("|")
        if created_by == "Packages" and component == "main" and release in wanted:
            found[uri, wanted[release]] = None
    if not any(release == suite for _, release in found):
        raise operation_failed(
            f"this machine's apt sources have no {codename} main archive",
            hint="see `apt-get indextargets`; the lab takes its packages from where apt does",
        )
    return tuple(found)


def settings() -> str:
    """The host's apt settings that say how to reach the archive (proxy, validity), as a file."""
    wanted = ("Acquire::http", "Acquire::https", "Acquire::Check-", "Acquire::Retries")
    lines = [
        line
        for line in run("apt-config", "dump").splitlines()
        if line.startswith(wanted) and not line.endswith('"";')
    ]
    return "\n".join(["// From the machine that runs the lab.", *lines, ""])
