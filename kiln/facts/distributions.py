"""Linux distributions (`kiln/facts/knowledge/distros.yaml`)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from kiln.base.errors import KilnError, did_you_mean
from kiln.base.times import read_stamp
from kiln.facts.tables import table


def distro(name: str) -> dict[str, Any]:
    """The entry of a distribution in distros.yaml."""
    distros: dict[str, dict[str, Any]] = table("distros")["distros"]
    if name not in distros:
        raise KilnError(
            f"{name} is not a known distribution",
            hint=did_you_mean(name, distros)
            + " A new one is an entry in kiln/facts/knowledge/distros.yaml",
        )
    return distros[name]


def distro_names(*, with_parents: bool = False) -> list[str]:
    """The known distributions; with `with_parents` only those that AMIs can be built on."""
    distros: dict[str, dict[str, Any]] = table("distros")["distros"]
    return [name for name, entry in distros.items() if entry.get("parents") or not with_parents]


def parent_disk(flavor: str) -> int:
    """GiB of the snapshot of a flavor's parent AMI; a distribution's own has 8."""
    return int(table("distros")["flavors"].get(flavor, {}).get("disk", 8))


@dataclass(frozen=True)
class PackageSnapshots:
    """A service that has a distribution's archive as it was at a time or at a release.

    `kind`: `releasever` (dnf's variable chooses the release) or `apt` (lines of sources.list, made
    of `templates`, take the place of the parent's). `form` is the value's regular expression,
    `what` the same in words; `first` is the first value that the service has, where it is known.
    """

    name: str
    kind: str
    form: str
    what: str
    first: str = ""
    templates: tuple[str, ...] = ()

    def refusal(self, value: str) -> str:
        """Why the service cannot have this value; empty when it can."""
        if not re.fullmatch(self.form, value):
            return f"{value!r} is not {self.what}"
        if self.kind == "apt" and not _is_time(value):
            return f"{value!r} is not {self.what}: there is no such day or time"
        if self.first and value < self.first:
            return f"{value!r} is before {self.first}, the first that the service has"
        return ""

    def lines(self, distro_name: str, value: str) -> list[str]:
        """The lines of sources.list that stand for the archive at `value`."""
        codename = distro(distro_name).get("codename", "")
        return [line.format(snapshot=value, codename=codename) for line in self.templates]


def package_snapshots(distro_name: str) -> PackageSnapshots | None:
    """Who has the archive of this distribution as it was; None for a distribution without."""
    name = distro(distro_name).get("package_snapshot")
    if name is None:
        return None
    entry = table("distros")["package_snapshots"][name]
    return PackageSnapshots(
        name=name,
        kind=entry["kind"],
        form=entry["form"],
        what=entry["what"],
        first=entry.get("from", ""),
        templates=tuple(entry.get("lines", ())),
    )


def _is_time(value: str) -> bool:
    try:
        read_stamp(value)
    except ValueError:
        return False
    return True


def relatives(name: str) -> list[str]:
    """The distributions of the same vendor, including this one."""
    vendor = distro(name)["vendor"]
    return [other for other in distro_names() if distro(other)["vendor"] == vendor]
