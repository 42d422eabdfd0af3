"""The checks of `gpu-mig validate`, which query no GPU."""

from __future__ import annotations

from .config import Entry, Label
from .errors import MigError
from .facts import GpuType
from .target import Wanted, counted, misfit, shape_all


def problems(labels: dict[str, Label], types: dict[str, GpuType]) -> tuple[list[str], list[str]]:
    """(problems, warnings), one sentence each with file:line.

    An entry with a device filter must fit each GPU that the filter names. An entry without a filter
    should fit a known GPU; if it does not, that is a warning: a newer GPU or firmware may hold it.
    """
    errors: list[str] = []
    warnings: list[str] = []
    for name, label in sorted(labels.items()):
        for entry in label.entries:
            try:
                aim = Wanted(0, entry.enabled, shape_all(entry.mig_devices))
            except MigError as e:
                errors.append(f"{entry.where}: label {name!r}: {e.message}")
                continue
            named = [t for t in types.values() if _names(entry, t)]
            refusals = [r for r in (misfit(aim, t) for t in named or types.values()) if r]
            where = f"{entry.where}: label {name!r}: "
            if named:
                errors += [where + r for r in refusals]
            elif len(refusals) == len(types):
                wish = counted([profile for profile, _ in aim.shapes])
                warnings.append(where + f"no known GPU can hold {wish}")
    return errors, warnings


def _names(entry: Entry, kind: GpuType) -> bool:
    return bool(entry.filters) and any(entry.addresses(i) for i in kind.pci_device_ids)
