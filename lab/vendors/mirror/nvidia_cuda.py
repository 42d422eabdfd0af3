"""developer.download.nvidia.com: the CUDA repositories (`cuda_repository.py`) and their keys."""

from __future__ import annotations

import re
from pathlib import Path

from lab.vendors.mirror.cuda_repository import repository
from lab.vendors.mirror.site import Site, route

_BASE = (
    r"https://developer\.download\.nvidia\.com/compute/cuda/repos/"
    r"(?P<repo>[a-z]+[0-9]+)/(?P<machine>x86_64|sbsa)"
)


@route(rf"{_BASE}/(?P<key>D42D0685|3bf863cc)\.pub")
def _key(site: Site, url: re.Match[str]) -> Path | None:
    repo = repository(url["repo"], url["machine"])
    if repo is None or (url["key"] == "D42D0685") != (repo.format == "rpm"):
        return None
    return site.text(f"{url['key']}.pub", site.keyring.public(repo.key))


@route(rf"{_BASE}/(?P<path>.+)")
def _packages(site: Site, url: re.Match[str]) -> Path | None:
    return site.repo(repository(url["repo"], url["machine"]), url["path"])
