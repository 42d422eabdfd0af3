"""S3: FSx for Lustre's repository for Ubuntu, with its key."""

from __future__ import annotations

import re
from pathlib import Path

from lab.vendors.mirror import catalog
from lab.vendors.mirror.repos import Repo
from lab.vendors.mirror.site import Site, route
from lab.vendors.packages import model

_KEY = "fsx-lustre"


def repository(suite: str, arch: str) -> Repo | None:
    """The repository for the release with this code name; None when FSx has none."""
    published = catalog.data()["fsx_lustre"]
    kernels = published["kernels"].get(suite)
    if kernels is None:
        return None
    packages = model.load("lustre", lustre=published["version"], kernels=kernels, arch=arch)
    return Repo(f"fsx-lustre-{suite}-{arch}", "deb", _KEY, tuple(packages), suite=suite)


@route(r"https://fsx-lustre-client-repo-public-keys\.s3\.amazonaws\.com/fsx-ubuntu-public-key\.asc")
def _key(site: Site, _: re.Match[str]) -> Path | None:
    return site.text("fsx-ubuntu-public-key.asc", site.keyring.public(_KEY))


@route(
    r"https://fsx-lustre-client-repo\.s3\.amazonaws\.com/ubuntu/"
    r"(?P<path>dists/(?P<suite>[a-z]+)/.+)"
)
def _index(site: Site, url: re.Match[str]) -> Path | None:
    return site.repo(repository(url["suite"], "x86_64"), url["path"])


@route(
    r"https://fsx-lustre-client-repo\.s3\.amazonaws\.com/ubuntu/"
    r"(?P<path>pool/(?P<suite>[a-z]+)/.+)"
)
def _packages(site: Site, url: re.Match[str]) -> Path | None:
    return site.repo(repository(url["suite"], "x86_64"), url["path"])
