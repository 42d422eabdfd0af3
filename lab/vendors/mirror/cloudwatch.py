"""S3: the CloudWatch agent's packages, with signatures and key."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

from kiln.base.vocabulary import UNAME_OF_DEB
from lab.vendors.mirror import catalog
from lab.vendors.mirror.site import Site, route
from lab.vendors.packages import bytecode, deb, model, rpm
from lab.vendors.standins.cloudwatch_agent import install

_KEY = "cloudwatch-agent"
# The bucket has two URLs.
_BUCKETS = (
    r"https://amazoncloudwatch-agent\.s3\.amazonaws\.com",
    r"https://s3\.amazonaws\.com/amazoncloudwatch-agent",
)
_FORMATS = {"amazon_linux": "rpm", "redhat": "rpm", "ubuntu": "deb", "debian": "deb"}


def package(build: str, format_: str, arch: str, target: Path) -> bool:
    """Write the agent's package of one build, such as 1.300072.0b1766; False when unknown."""
    if build not in catalog.cloudwatch_agent():
        return False
    program = {path: model.File(content) for path, content in install.files().items()}
    agent = bytecode.with_compiled(program)
    packages = model.load(
        "cloudwatch-agent", {"agent": agent}, build=build, format=format_, arch=arch
    )
    folder = target.with_name(f"{target.name}.d")
    (built,) = (rpm if format_ == "rpm" else deb).build(packages, folder)
    built.replace(target)
    folder.rmdir()
    return True


def _answer(site: Site, url: re.Match[str]) -> Path | None:
    format_, arch = _FORMATS[url["os"]], UNAME_OF_DEB[url["machine"]]
    if url["format"] != format_:
        return None
    build = url["build"]
    if build == "latest":
        build = catalog.cloudwatch_agent()[-1]
    name = f"{url['os']}-{url['machine']}-{build}-amazon-cloudwatch-agent.{format_}"
    file = site.made(name, partial(package, build, format_, arch))
    return site.signature(_KEY, file) if url["sig"] else file


def _key(site: Site, _: re.Match[str]) -> Path | None:
    return site.text("amazon-cloudwatch-agent.gpg", site.keyring.public(_KEY))


for _bucket in _BUCKETS:
    route(rf"{_bucket}/assets/amazon-cloudwatch-agent\.gpg")(_key)
    route(
        rf"{_bucket}/(?P<os>amazon_linux|redhat|ubuntu|debian)/(?P<machine>amd64|arm64)/"
        r"(?P<build>[^/]+)/amazon-cloudwatch-agent\.(?P<format>rpm|deb)(?P<sig>\.sig)?"
    )(_answer)
