"""The lab's own archive of stand-ins for Ubuntu's kernels and their compilers.

It has a host name of its own, not that of Ubuntu's archive: all other packages of an Ubuntu guest
come from the package mirror of the machine that runs the lab.
"""

from __future__ import annotations

import re
from pathlib import Path

from lab.vendors.mirror.repos import Repo
from lab.vendors.mirror.site import Site, route
from lab.vendors.packages import system

HOST = "https://ubuntu.kiln-lab.internal"


def repository(distro_id: str, arch: str) -> Repo | None:
    """The archive for an Ubuntu release; `arch` is a `uname -m` name."""
    packages = system.ubuntu(distro_id, arch)
    if not packages:
        return None
    return Repo(f"{distro_id}-{arch}", "deb", "ubuntu", tuple(packages))


@route(
    r"https://ubuntu\.kiln-lab\.internal/(?P<distro>ubuntu[0-9]+)/(?P<arch>x86_64|aarch64)/(?P<path>.+)"
)
def _packages(site: Site, url: re.Match[str]) -> Path | None:
    return site.repo(repository(url["distro"], url["arch"]), url["path"])
