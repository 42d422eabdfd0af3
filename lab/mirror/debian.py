"""The lab's own archive, for what stands in from Ubuntu's: kernels and their compilers.

Ubuntu's real archive has another name. Everything else a stand-in of Ubuntu installs comes from
the mirror of the machine that runs the lab, so no name is pretended here.
"""

from __future__ import annotations

import re
from pathlib import Path

from lab.mirror.repos import Repo
from lab.mirror.site import Site, route
from lab.packages import system

HOST = "https://ubuntu.kiln-lab.internal"


def repository(distro_id: str, arch: str) -> Repo | None:
    """The stand-in archive of an Ubuntu release by `uname -m`'s name of the machine."""
    packages = system.ubuntu(distro_id, arch)
    if not packages:
        return None
    return Repo(f"{distro_id}-{arch}", "deb", "ubuntu", tuple(packages))


@route(
    r"https://ubuntu\.kiln-lab\.internal/(?P<distro>ubuntu\d+)/(?P<arch>x86_64|aarch64)/(?P<path>.+)"
)
def _packages(site: Site, url: re.Match[str]) -> Path | None:
    return site.repo(repository(url["distro"], url["arch"]), url["path"])
