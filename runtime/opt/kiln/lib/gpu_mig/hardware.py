"""Labels that the GPUs themselves give: `all-<profile>`, as many instances as a GPU holds.

The configuration files come first. For a type of GPU that a label of theirs does not address, and
for a label that they do not have, the profiles of the hardware decide.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .config import Entry, Label, choose
from .errors import MigError
from .facts import GpuType, by_device_id
from .smi import Gpu


def label_of(profile: str) -> str:
    """A profile in a label, as NVIDIA's map writes it: `1g.10gb+me` is all-1g.10gb.me."""
    return "all-" + profile.replace("+", ".").replace(",", ".")


def labels_of(kinds: Iterable[GpuType]) -> list[str]:
    """The labels that these GPUs give, sorted."""
    return sorted({label_of(name) for kind in kinds for name in kind.profiles})


def find(
    labels: dict[str, Label], name: str, gpus: Sequence[Gpu], types: dict[str, GpuType]
) -> Label:
    """The label of that name for these GPUs. Raises MigError with the nearest name."""
    written = labels.get(name)
    added = []
    for kind in _kinds(gpus, types):
        ids = kind.pci_device_ids
        if written and any(entry.addresses(i) for entry in written.entries for i in ids):
            continue
        added += [
            Entry(f"the profiles of {kind.name}", ids, None, True, ((profile.name, profile.max),))
            for profile in kind.profiles.values()
            if label_of(profile.name) == name
        ]
    if written:
        return written._replace(entries=written.entries + tuple(added))
    if added:
        return Label(name, "the GPUs of this machine", tuple(added))
    own = labels_of(_kinds(gpus, types))
    if name in labels_of(types.values()):
        raise MigError(f"label {name!r} is for other GPUs", "here: {}".format(", ".join(own)))
    given = {other: Label(other, "", ()) for other in own}
    return choose({**given, **labels}, name)  # raises, with the nearest of both


def _kinds(gpus: Sequence[Gpu], types: dict[str, GpuType]) -> list[GpuType]:
    """The types of the GPUs that are known and can have MIG, each once."""
    known: dict[str, GpuType] = {}
    for gpu in gpus:
        kind = by_device_id(types, gpu.device_id) if gpu.capable else None
        if kind is not None:
            known[kind.name] = kind
    return list(known.values())
