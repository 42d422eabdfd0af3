"""cdn.amazonlinux.com: the repositories of Amazon Linux 2 and 2023."""

from __future__ import annotations

import re
from pathlib import Path

from lab.vendors.mirror.repos import Repo
from lab.vendors.mirror.site import Site, route
from lab.vendors.packages import system

HOST = "https://cdn.amazonlinux.com"
_DISTROS = {"2": "al2", "al2023": "al2023"}


def repository(release: str, part: str, arch: str) -> Repo | None:
    """The repository of a release ("2", "al2023", or a state of the latter such as
    "al2023-2023.9.20251117"): `part` is core, or a topic of the extras."""
    name, _, state = release.partition("-")
    distro_id = _DISTROS.get(name)
    if distro_id is None or (state and state not in system.releases(distro_id)):
        return None
    if state == system.parents_release(distro_id):
        state = ""
    packages = system.amazon_linux(distro_id, arch, state or None)
    extras = system.extras(distro_id)
    if part == "core":
        in_extras = {name for members in extras.values() for name in members}
        chosen = [package for package in packages if package.name not in in_extras]
    elif part in extras:
        chosen = [package for package in packages if package.name in extras[part]]
    else:
        return None
    full_name = "-".join(filter(None, ["amazon", distro_id, part, arch, state]))
    return Repo(full_name, "rpm", "amazon-linux", tuple(chosen))


def release(distro_id: str) -> str | None:
    """The release of al2 or al2023 as URLs name it; None for another distribution."""
    return next((name for name, distro in _DISTROS.items() if distro == distro_id), None)


def parts(distro_id: str) -> list[str]:
    """The repositories of al2 or al2023 that have packages: core, and topics of the extras."""
    return ["core", *(topic for topic, members in system.extras(distro_id).items() if members)]


def mirror_list(release: str, part: str, arch: str) -> str:
    """The content of mirror.list: a single mirror."""
    return f"{HOST}/kiln-lab/{release}/{part}/{arch}/\n"


_ARCH = "(?P<arch>x86_64|aarch64)"
_CDN = r"https://cdn\.amazonlinux\.com"


@route(rf"{_CDN}/2/(?:core|extras/(?P<topic>[^/]+))/latest/{_ARCH}/mirror\.list")
def _al2_mirror_list(site: Site, url: re.Match[str]) -> Path | None:
    part = url["topic"] or "core"
    if repository("2", part, url["arch"]) is None:
        return None
    text = mirror_list("2", part, url["arch"])
    return site.text(f"amazon-2-{part}-{url['arch']}.list", text)


@route(rf"{_CDN}/al2023/core/mirrors/(?P<state>[^/]+)/{_ARCH}/mirror\.list")
def _al2023_mirror_list(site: Site, url: re.Match[str]) -> Path | None:
    states = system.releases("al2023")
    state = states[-1] if url["state"] == "latest" else url["state"]
    if state not in states:
        return None
    text = mirror_list(f"al2023-{state}", "core", url["arch"])
    return site.text(f"amazon-2023-core-{state}-{url['arch']}.list", text)


@route(rf"{_CDN}/kiln-lab/(?P<release>[^/]+)/(?P<part>[^/]+)/{_ARCH}/(?P<path>.+)")
def _packages(site: Site, url: re.Match[str]) -> Path | None:
    return site.repo(repository(url["release"], url["part"], url["arch"]), url["path"])
