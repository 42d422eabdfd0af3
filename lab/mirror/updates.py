"""Updates that were published on this lab's mirror, as a vendor publishes them after an AMI exists.

A repository of Amazon Linux keeps its older versions, and its updateinfo.xml names the advisory of
an update that fixes a vulnerability: the form of
https://github.com/aquasecurity/vuln-list-update/tree/17a2f4ef4e522853d2157dc3b31a444197f1a68b/amazon
(testdata/fixtures), which reads Amazon's own. A lab keeps its updates until `lab.clean`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from xml.sax.saxutils import escape, quoteattr

from pydantic import TypeAdapter, ValidationError

from kiln.base.errors import KilnError, did_you_mean
from kiln.base.input_file import read_bytes
from lab import folders, locks
from lab.packages import system
from lab.packages.model import Package
from lab.settings import current


@dataclass(frozen=True)
class PublishedUpdate:
    """A newer version of a package of a distribution; `advisory` is the id of a security advisory,
    "" for an update that fixes no vulnerability."""

    distro: str
    package: str
    version: str
    release: str
    advisory: str = ""


_LIST = TypeAdapter(list[PublishedUpdate])


def published(distro_id: str) -> tuple[PublishedUpdate, ...]:
    """The updates of a distribution, oldest first."""
    return tuple(update for update in _listed() if update.distro == distro_id)


def _listed() -> list[PublishedUpdate]:
    """All updates. Raises KilnError (exit status 2) for a damaged file."""
    try:
        return _LIST.validate_json(read_bytes(_file()))
    except FileNotFoundError:
        return []
    except (OSError, ValidationError) as error:
        reason = error.errors()[0]["msg"] if isinstance(error, ValidationError) else error
        raise KilnError(
            f"{_file()} is not a list of published updates: {reason}", hint="remove it"
        ) from None


def add(update: PublishedUpdate) -> None:
    """Publish an update from now on.

    Raises KilnError (exit status 2) for a distribution whose repositories are not the lab's or do
    not change, or a package that they do not have.
    """
    if update.distro not in system.amazon_distros():
        raise KilnError(
            f"{update.distro}: its packages are not the lab's own, so the lab publishes no updates "
            "of them",
            hint=did_you_mean(update.distro, system.amazon_distros()),
        )
    names = sorted({entry.name for entry in system.amazon_linux(update.distro, "x86_64")})
    if update.package not in names:
        raise KilnError(
            f"the lab has no package {update.package} of {update.distro}",
            hint=did_you_mean(update.package, names),
        )
    if system.releases(update.distro):
        raise KilnError(
            f"{update.distro}: a release's repository does not change, so the lab publishes no "
            "updates in it"
        )
    folders.private(current().root, current().state)
    with locks.alone(_file().with_suffix(".lock")):
        text = json.dumps([asdict(entry) for entry in (*_listed(), update)], indent=2)
        fresh = _file().with_suffix(".new")
        fresh.write_text(text + "\n")
        fresh.rename(_file())


def _file() -> Path:
    return current().state / "updates.json"


def with_updates(distro_id: str, packages: Sequence[Package]) -> list[Package]:
    """The packages and those of the published updates, which have what the newest before had."""
    by_name = {package.name: package for package in packages}
    newer = [
        replace(by_name[update.package], version=update.version, release=update.release)
        for update in published(distro_id)
        if update.package in by_name
    ]
    return [*packages, *newer]


def advisories(distro_id: str, packages: Iterable[Package]) -> str:
    """The updateinfo.xml of a repository that has these packages."""
    arches = {package.name: (package.arch, package.epoch) for package in packages}
    updates = "".join(
        _advisory(update, *arches[update.package])
        for update in published(distro_id)
        if update.package in arches
    )
    return f'<?xml version="1.0" encoding="UTF-8"?>\n<updates>{updates}</updates>\n'


def _advisory(update: PublishedUpdate, arch: str, epoch: int) -> str:
    kind = "security" if update.advisory else "bugfix"
    name = update.advisory or f"{update.package}-{update.version}-{update.release}"
    full = f"{update.package}-{update.version}-{update.release}.{arch}.rpm"
    package = (
        f'<package name={quoteattr(update.package)} epoch="{epoch}" '
        f"version={quoteattr(update.version)} release={quoteattr(update.release)} "
        f"arch={quoteattr(arch)}><filename>{escape(full)}</filename></package>"
    )
    return (
        f'<update type="{kind}" from="kiln-lab" status="final" version="1.4">'
        f"<id>{escape(name)}</id><title>{escape(f'{name}: {update.package}')}</title>"
        f'<pkglist><collection short="lab"><name>lab</name>{package}</collection></pkglist>'
        "</update>"
    )
