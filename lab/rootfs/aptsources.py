"""The Debian or Ubuntu package archive of this machine, read from its apt configuration."""

from __future__ import annotations

import contextlib
import platform
from dataclasses import dataclass

from kiln import facts
from kiln.base.errors import operation_failed
from lab.base.settings import current
from lab.base.shell import CommandError, run

_FIELDS = "$(REPO_URI)|$(RELEASE)|$(COMPONENT)|$(CREATED_BY)"
_WIDE = {
    "debian": ("main", "contrib", "non-free", "non-free-firmware"),
    "ubuntu": ("main", "restricted", "universe", "multiverse"),
}
_PLAIN = {"debian": ("main",), "ubuntu": ("main", "universe")}
# On a Debian host the tree is always made from Debian 12, whose packages have been tested.
_DEBIAN_SUITE = "bookworm"


@dataclass(frozen=True)
class Archive:
    """The host's package archive. `origin` is debian or ubuntu, `suite` the release to install."""

    origin: str
    suite: str
    sources: tuple[tuple[str, str], ...]

    def lines(self, *, wide: bool) -> list[str]:
        """The lines of sources.list; `wide` adds non-free, which has the NVIDIA driver."""
        components = " ".join((_WIDE if wide else _PLAIN)[self.origin])
        return [f"deb {uri} {suite} {components}" for uri, suite in self.sources]


def host() -> Archive:
    """Read the host's archive with apt-get. Raises operation_failed when there is none."""
    release = platform.freedesktop_os_release()
    origin, codename = release.get("ID", ""), release.get("VERSION_CODENAME", "")
    if origin not in _WIDE:
        raise operation_failed(
            f"the lab builds its guests from Debian or Ubuntu packages; this machine is {origin!r}",
            hint="use a Debian 12 or Ubuntu machine, or import a root filesystem with lab.import",
        )
    # Without a cache (containers disable apt's own) apt parses all its lists on every call.
    cache = current().shared / "apt" / "pkgcache.bin"
    with contextlib.suppress(OSError):
        cache.parent.mkdir(parents=True, exist_ok=True)
    try:
        listing = run(
            *("apt-get", "-o", f"Dir::Cache::pkgcache={cache}"),
            # An ordinary user cannot write apt's own.
            *("-o", "Dir::Cache::srcpkgcache=", "indextargets", "--format", _FIELDS),
        )
    except (CommandError, FileNotFoundError) as failure:
        raise operation_failed(f"cannot read this machine's apt sources: {failure}") from None
    suite = _DEBIAN_SUITE if origin == "debian" else codename
    return Archive(origin, suite, parse(listing, codename, suite))


def distribution() -> str:
    """The id of the distribution whose packages guests get; as a facts' table names it.

    Raises operation_failed as `host` does.
    """
    archive = host()
    for distro_id in facts.distro_names():
        if facts.distro(distro_id).get("codename") == archive.suite:
            return distro_id
    return f"{archive.origin}-{archive.suite}"


def parse(listing: str, codename: str, suite: str) -> tuple[tuple[str, str], ...]:
    """The archive's URIs and suites in the output of `apt-get indextargets`, for `suite`.

    Third-party repositories (docker, node, …) are left out: they use the codename too, but not
    the component `main` together with one of the archive's own suites. Raises operation_failed
    when the archive is not configured.
    """
    suffixes = ("", "-updates", "-security")
    wanted = {codename + suffix: suite + suffix for suffix in suffixes}
    sources: dict[tuple[str, str], None] = {}
    for line in listing.splitlines():
        uri, release, component, created_by = line.split("|")
        if created_by == "Packages" and component == "main" and release in wanted:
            sources[uri, wanted[release]] = None
    if not any(release == suite for _, release in sources):
        raise operation_failed(
            f"this machine's apt sources have no {codename} main archive",
            hint="see `apt-get indextargets`: the lab uses the archive of apt's configuration",
        )
    return tuple(sources)


def settings() -> str:
    """The host's apt settings for reaching the archive (proxy, validity), as text of a file."""
    wanted = ("Acquire::http", "Acquire::https", "Acquire::Check-", "Acquire::Retries")
    lines = [
        line
        for line in run("apt-config", "dump").splitlines()
        if line.startswith(wanted) and not line.endswith('"";')
    ]
    return "\n".join(["// From the machine that runs the lab.", *lines, ""])
