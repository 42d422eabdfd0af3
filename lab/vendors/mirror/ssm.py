"""S3: the Systems Manager agent's package for Debian, by version."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

from kiln.base.vocabulary import UNAME_OF_DEB
from lab.vendors.mirror import catalog
from lab.vendors.mirror.site import Site, route
from lab.vendors.packages import deb, model


def package(version: str, arch: str, target: Path) -> bool:
    """Write the agent's package of one version; False when the catalog has none."""
    if version not in catalog.ssm_agent():
        return False
    folder = target.with_name(f"{target.name}.d")
    (built,) = deb.build(model.load("ssm-agent", version=version, arch=arch), folder)
    built.replace(target)
    folder.rmdir()
    return True


@route(
    r"https://s3\.amazonaws\.com/ec2-downloads-windows/SSMAgent/(?P<version>[^/]+)/"
    r"debian_(?P<machine>amd64|arm64)/amazon-ssm-agent\.deb"
)
def _answer(site: Site, url: re.Match[str]) -> Path | None:
    version, arch = url["version"], UNAME_OF_DEB[url["machine"]]
    name = f"{url['machine']}-{version}-amazon-ssm-agent.deb"
    return site.made(name, partial(package, version, arch))
