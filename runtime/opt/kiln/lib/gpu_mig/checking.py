"""What `gpu-mig validate` finds wrong in a configuration before any GPU is asked."""

from __future__ import annotations

from .errors import MigError
from .target import Wanted, counted, misfit, shape_all


def problems(labels, types):
    """(problems, warnings), one sentence each with file:line.

    An entry that names GPUs by device id has to fit each of them. One that names none has to fit
    some GPU we know; if it does not, that is a warning: a newer GPU or firmware may have it.
    """
    wrong, doubtful = [], []
    for name, label in sorted(labels.items()):
        for entry in label.entries:
            try:
                aim = Wanted(0, entry.enabled, shape_all(entry.mig_devices))
            except MigError as e:
                wrong.append("{}: label {!r}: {}".format(entry.where, name, e.message))
                continue
            named = [t for t in types.values() if _names(entry, t)]
            refusals = [r for r in (misfit(aim, t) for t in named or types.values()) if r]
            where = "{}: label {!r}: ".format(entry.where, name)
            if named:
                wrong += [where + r for r in refusals]
            elif len(refusals) == len(types):
                wish = counted([profile for profile, _ in aim.shapes])
                doubtful.append(where + "no GPU known here can hold {}".format(wish))
    return wrong, doubtful


def _names(entry, kind):
    return bool(entry.filters) and any(entry.addresses(i) for i in kind.pci_device_ids)
