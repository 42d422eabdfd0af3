"""The vendors' download hosts, served on this machine with stand-in packages.

    mirror = lab.vendors.mirror.serve("10.201.0.1")
    ...
    mirror.close()

catalog.yaml says which versions exist; docs/lab-stand-ins.md says how to add one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path

from kiln.base.errors import KilnError
from kiln.base.recipe import Recipe
from kiln.base.vocabulary import UNAME_ARCH
from lab.base import settings
from lab.machine import endpoints
from lab.vendors.mirror import (  # noqa: F401 - a vendor's module registers its routes
    amazon,
    ca,
    cloudwatch,
    cuda_repository,
    debian,
    efa,
    fsx,
    github,
    keys,
    nvidia_cuda,
    nvidia_driver,
    nvidia_toolkit,
    repos,
    server,
    site,
    ssm,
)

LOG = "mirror.log"


def vendor_hosts() -> list[str]:
    """The host names that the mirror serves; the guests' resolver answers with its address."""
    return site.hosts()


def serve(
    address: str,
    https_port: int = 443,
    http_port: int = 80,
    state: Path | None = None,
    log: Path | None = None,
    api: tuple[int, Callable[[str], bool]] | None = None,
) -> server.Mirror:
    """Serve the vendors' hosts on `address` until `.close()`.

    `api` is the port of the lab's API, and which hosts' requests go there.

    `state` is the folder of the CA, the keys and the packages (default: what all labs share).
    Raises OSError when a port is taken or the address is not this machine's.
    """
    home = state or settings.current().shared
    context = ca.server_context([*vendor_hosts(), *endpoints.certified()], home)
    behind = server.Api(*api, frozenset(vendor_hosts())) if api else None
    return server.start(
        address, https_port, http_port, context, _site(home).find, log or home / LOG, behind
    )


def find(url: str, state: Path | None = None) -> Path | None:
    """The file that the mirror serves for a URL, made when it is missing; None for a 404."""
    return _site(state or settings.current().shared).find(url)


def reached(address: str) -> tuple[tuple[str, str], ...]:
    """Return how this machine reaches the vendors' hosts on a mirror at an address, which it knows
    by no name: beginning of a URL, and what takes its place."""
    return tuple((f"https://{host}", f"http://{address}/{host}") for host in vendor_hosts())


def sha256(url: str, state: Path | None = None) -> str:
    """The SHA-256, as hex, of the file that the mirror serves for a URL; made when it is missing.

    Raises KilnError for a URL that the mirror answers with 404.
    """
    file = find(url, state)
    if file is None or not file.is_file():
        raise KilnError(
            f"the lab mirror has no {url}",
            hint="see lab/vendors/mirror/catalog.yaml for the versions in the lab",
        )
    return hashlib.sha256(file.read_bytes()).hexdigest()


def prepare(recipe: Recipe, state: Path | None = None) -> list[Path]:
    """Build the missing package repositories of a recipe's bake; the folders of them all.

    The mirror also builds them on demand, but then the bake waits for each of them.
    """
    home = state or settings.current().shared
    return [
        repos.ensure(repository, _site(home).home / "repos", _site(home).keyring)
        for repository in _repositories(recipe)
    ]


def _repositories(recipe: Recipe) -> list[repos.Repo]:
    """The distribution's own repositories, NVIDIA's for CUDA, and the container toolkit's."""
    machine = UNAME_ARCH[recipe.arch]
    distro = recipe.distro
    release = amazon.release(distro.id)
    if release and recipe.package_snapshot:
        release = f"{release}-{recipe.package_snapshot}"
    own = (
        [amazon.repository(release, part, machine) for part in amazon.parts(distro.id)]
        if release
        else [debian.repository(distro.id, machine)]
    )
    format_ = "rpm" if distro.family == "al" else "deb"
    names = [name for name, arch in cuda_repository.MACHINES.items() if arch == machine]
    vendors = [cuda_repository.repository(distro.cuda_repo, name) for name in names]
    if "container-toolkit" in recipe.components:
        vendors.append(nvidia_toolkit.repository(format_, machine))
    return [repository for repository in (*own, *vendors) if repository]


def key_fingerprints() -> dict[str, str]:
    """The lab's key for each vendor key of kiln/facts/knowledge/keys.yaml: name → fingerprint."""
    keyring = _site(settings.current().shared).keyring
    return {name: keyring.fingerprint(name) for name in keys.VENDORS}


@cache
def _site(home: Path) -> site.Site:
    return site.Site(home, keys.ensure(home))
