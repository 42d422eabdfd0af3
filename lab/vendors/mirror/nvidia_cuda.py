"""developer.download.nvidia.com: the CUDA repositories (`cuda_repository.py`) and their keys."""

from __future__ import annotations

import re
from pathlib import Path

from lab.vendors.mirror.cuda_repository import repository
from lab.vendors.mirror.site import Site, route
from lab.vendors.packages import deb, model
from lab.vendors.packages.model import File, Package

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


@route(rf"{_BASE}/cuda-(?P=repo)\.repo")
def _definition(site: Site, url: re.Match[str]) -> Path | None:
    repo = repository(url["repo"], url["machine"])
    if repo is None or repo.format != "rpm":
        return None
    base = url[0].rsplit("/", 1)[0]
    name = f"cuda-{url['repo']}-{url['machine']}"
    lines = [f"[{name}]", f"name={name}", f"baseurl={base}", "enabled=1", "gpgcheck=1"]
    return site.text(f"{name}.repo", "\n".join([*lines, f"gpgkey={base}/D42D0685.pub", ""]))


@route(rf"{_BASE}/cuda-keyring_(?P<version>1\.[01]-1)_all\.deb")
def _keyring(site: Site, url: re.Match[str]) -> Path | None:
    repo = repository(url["repo"], url["machine"])
    if repo is None or repo.format != "deb":
        return None
    base = url[0].rsplit("/", 1)[0]
    keyring = "/usr/share/keyrings/cuda-archive-keyring.gpg"
    line = f"deb [signed-by={keyring}] {base}/ /\n"
    package = Package(
        name="cuda-keyring",
        version=url["version"].split("-")[0],
        release="1",
        arch="noarch",
        summary=f"{model.STAND_IN}: where the CUDA repository is and who signs it",
        files={
            keyring: File(site.keyring.binary(repo.key)),
            f"/etc/apt/sources.list.d/cuda-{url['repo']}-{url['machine']}.list": File(
                line.encode()
            ),
        },
    )

    def make(target: Path) -> bool:
        folder = target.with_name(f"{target.name}.d")
        (built,) = deb.build([package], folder)
        built.replace(target)
        folder.rmdir()
        return True

    key = site.keyring.fingerprint(repo.key)[-8:]
    return site.made(f"{url['repo']}-{url['machine']}-{key}-cuda-keyring.deb", make)


@route(rf"{_BASE}/(?P<path>.+)")
def _packages(site: Site, url: re.Match[str]) -> Path | None:
    return site.repo(repository(url["repo"], url["machine"]), url["path"])
