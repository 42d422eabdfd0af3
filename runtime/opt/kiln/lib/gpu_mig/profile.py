"""MIG profile names: `[Nc.]Ng.Mgb[+attr[,attr]|-me]`, as mig-parted and nvidia-smi write them."""

from __future__ import annotations

import functools
import re
from typing import NamedTuple

from .errors import MigError

_NAME = re.compile(
    r"(?:(?P<c>[1-9][0-9]?)c\.)?(?P<g>[1-9][0-9]?)g\.(?P<gb>[1-9][0-9]{0,3})gb"
    r"(?P<attrs>\+[a-z][a-z.]*(?:,[a-z][a-z.]*)*|-me)?"
)
MAX_COUNT = 999  # a rack of 72 GPUs holds 504 instances; a larger number is a mistake
ATTRIBUTES = ("me", "me.all", "gfx")


class Profile(NamedTuple):
    """A parsed name. `c` is 0 for a GPU instance with a compute instance of full size."""

    c: int
    g: int
    gb: int
    attributes: tuple[str, ...]
    without_media: bool

    @property
    def gpu_instance(self) -> str:
        """The name of its GPU instance: `1c.3g.20gb` is in a `3g.20gb`."""
        attrs = "+" + ",".join(self.attributes) if self.attributes else ""
        return "{}g.{}gb{}{}".format(self.g, self.gb, attrs, "-me" if self.without_media else "")

    @property
    def compute_slices(self) -> int:
        """Compute slices of its compute instance."""
        return self.c or self.g

    def __str__(self) -> str:
        return (f"{self.c}c." if self.c and self.c != self.g else "") + self.gpu_instance


@functools.lru_cache(maxsize=None)
def parse(name: str) -> Profile:
    """The `Profile` of a name. Raises MigError when the name is invalid."""
    match = _NAME.fullmatch(str(name))
    if not match:
        raise MigError(
            f"{name!r} is not a MIG profile name",
            "names look like 1g.10gb, 3g.40gb, 1c.3g.40gb, 1g.10gb+me, 1g.24gb-me",
        )
    attrs = match.group("attrs") or ""
    attributes = tuple(sorted(attrs[1:].split(","))) if attrs.startswith("+") else ()
    for attribute in attributes:
        if attribute not in ATTRIBUTES:
            raise MigError(
                f"{name!r}: unknown attribute +{attribute}",
                "known: {}, and -me".format(", ".join("+" + a for a in ATTRIBUTES)),
            )
    if len(set(attributes)) != len(attributes):
        raise MigError(f"{name!r}: an attribute is given twice")
    profile = Profile(
        int(match.group("c") or 0),
        int(match.group("g")),
        int(match.group("gb")),
        attributes,
        attrs == "-me",
    )
    if profile.c > profile.g:
        raise MigError(
            f"{name!r}: {profile.c} compute slices do not fit in {profile.g}",
            "Nc must be between 1c and the size of the GPU instance",
        )
    return profile


def countable(name: str, count: int) -> int:
    """The count. Raises MigError when no machine has so many instances."""
    if count > MAX_COUNT:
        raise MigError(
            f"{name}: {count} instances are more than any machine has",
            f"write at most {MAX_COUNT}",
        )
    return count


def by_size(name: str) -> tuple[int, int, int, str]:
    """Sort key, largest first: the order in which instances must be created."""
    p = parse(name)
    return (-p.g, -p.gb, -len(p.attributes), str(p))
