"""MIG profile names: `[Nc.]Ng.Mgb[+attr[,attr]|-me]`, the grammar of mig-parted and nvidia-smi."""

from __future__ import annotations

import functools
import re
from typing import List, NamedTuple, Tuple

from .errors import MigError

_NAME = re.compile(
    r"(?:(?P<c>[1-9][0-9]?)c\.)?(?P<g>[1-9][0-9]?)g\.(?P<gb>[1-9][0-9]{0,3})gb"
    r"(?P<attrs>\+[a-z][a-z.]*(?:,[a-z][a-z.]*)*|-me)?"
)
MAX_COUNT = 999  # a rack of 72 GPUs holds 504; a larger number is a mistake
ATTRIBUTES = ("me", "me.all", "gfx")


class Profile(NamedTuple):
    """One parsed name. `c` is 0 for a GPU instance with its default, full-size compute instance."""

    c: int
    g: int
    gb: int
    attributes: Tuple[str, ...]
    without_media: bool

    @property
    def gpu_instance(self):
        """The name of the GPU instance it lives in: `1c.3g.20gb` lives in a `3g.20gb`."""
        attrs = "+" + ",".join(self.attributes) if self.attributes else ""
        return "{}g.{}gb{}{}".format(self.g, self.gb, attrs, "-me" if self.without_media else "")

    @property
    def compute_slices(self):
        """Compute slices of its compute instance."""
        return self.c or self.g

    def __str__(self):
        return ("{}c.".format(self.c) if self.c and self.c != self.g else "") + self.gpu_instance


@functools.lru_cache(maxsize=None)
def parse(name):
    """The `Profile` a name spells. Raises MigError when it spells none."""
    match = _NAME.fullmatch(str(name))
    if not match:
        raise MigError(
            "{!r} is not a MIG profile name".format(name),
            "names look like 1g.10gb, 3g.40gb, 1c.3g.40gb, 1g.10gb+me, 1g.24gb-me.",
        )
    attrs = match.group("attrs") or ""
    attributes = tuple(sorted(attrs[1:].split(","))) if attrs.startswith("+") else ()
    for attribute in attributes:
        if attribute not in ATTRIBUTES:
            raise MigError(
                "{!r}: unknown attribute +{}".format(name, attribute),
                "known: {}, and -me.".format(", ".join("+" + a for a in ATTRIBUTES)),
            )
    if len(set(attributes)) != len(attributes):
        raise MigError("{!r}: an attribute is given twice".format(name))
    found = Profile(
        int(match.group("c") or 0),
        int(match.group("g")),
        int(match.group("gb")),
        attributes,
        attrs == "-me",
    )
    if found.c > found.g:
        raise MigError(
            "{!r}: {} compute slices do not fit in {}".format(name, found.c, found.g),
            "Nc must be between 1c and the GPU instance's own size.",
        )
    return found


def parse_devices(text):
    """`2g.20gb=2,4g.40gb` as `[(name, count), …]`, in the order typed. Raises MigError.

    A comma inside an attribute list (`1g.24gb+gfx,me`) belongs to the name.
    """
    wanted: List[Tuple[str, int]] = []
    for part in re.split(r",(?=\s*[0-9])", text.strip(" ,")) if text.strip(" ,") else []:
        name, sep, count = part.strip().partition("=")
        spelled = str(parse(name.strip()))
        if sep and not re.fullmatch(r"[0-9]{1,9}", count.strip()):
            raise MigError(
                "{!r}: {!r} is not a count".format(part.strip(), count.strip()),
                "write profile=count, for example 1g.10gb=7.",
            )
        wanted.append((spelled, countable(spelled, int(count)) if sep else 1))
    if not any(count for _, count in wanted):
        raise MigError("no instance asked for in {!r}".format(text), "write profile=count.")
    return wanted


def countable(name, count):
    """The count. Raises MigError when no machine has as many instances."""
    if count > MAX_COUNT:
        raise MigError(
            "{}: {} instances are more than any machine has".format(name, count),
            "write at most {}.".format(MAX_COUNT),
        )
    return count


def by_size(name):
    """Sort key, largest first: the order in which slices have to be created."""
    p = parse(name)
    return (-p.g, -p.gb, -len(p.attributes), str(p))
