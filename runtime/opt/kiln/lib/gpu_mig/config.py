"""The v1 configuration of mig-parted, as JSON: the layout of every GPU for each label."""

from __future__ import annotations

import json
import os
import re
from typing import Any, NamedTuple

from .errors import MigError, did_you_mean
from .profile import countable, parse

_FILTER = re.compile(r"0x[0-9A-Fa-f]{8}(:0x[0-9A-Fa-f]{8})?\Z")
_FIELDS = {"device-filter", "devices", "mig-enabled", "mig-devices"}
_CONVERT = (
    "convert it where PyYAML is: python3 -c 'import json, sys, yaml; "
    "json.dump(yaml.safe_load(sys.stdin), sys.stdout)' < FILE.yaml > FILE.json"
)


class Entry(NamedTuple):
    """An item of a label. `devices`: GPU indices, None for "all"; `mig_devices`: (name, count)."""

    where: str
    filters: tuple[str, ...]
    devices: tuple[int, ...] | None
    enabled: bool
    mig_devices: tuple[tuple[str, int], ...]

    def addresses(self, device_id: str, subsystem_id: str = "") -> bool:
        """Return True if a GPU of this PCI device id (`0x20B010DE`) passes the device filter."""
        for wanted in self.filters:
            device, _, subsystem = wanted.lower().partition(":")
            if device == device_id.lower() and subsystem in ("", subsystem_id.lower()):
                return True
        return not self.filters


class Label(NamedTuple):
    """A named layout and where it was written."""

    name: str
    where: str
    entries: tuple[Entry, ...]


def load(path: str, dropin_dir: str = "") -> dict[str, Label]:
    """Return the labels of a file and of the *.json files in `dropin_dir`.

    A label in a later file replaces the same label in an earlier file, as in drop-ins of systemd.
    """
    labels: dict[str, Label] = {}
    names = sorted(os.listdir(dropin_dir)) if dropin_dir and os.path.isdir(dropin_dir) else []
    dropins = [os.path.join(dropin_dir, n) for n in names if n.endswith((".yaml", ".yml", ".json"))]
    for source in [path, *dropins]:
        if source.endswith((".yaml", ".yml")):
            raise MigError(f"{source}: only JSON is read here", _CONVERT)
        try:
            with open(source, encoding="utf-8") as f:
                data = json.load(f)
        except (OSError, ValueError, RecursionError) as e:
            raise MigError(f"{source}: cannot be read: {e}") from e
        labels.update(labels_of(data, source))
    return labels


def labels_of(data: Any, source: str) -> dict[str, Label]:
    """Return the labels of a v1 document. Raises MigError that names `source`, label and entry."""
    if not isinstance(data, dict) or set(data) != {"version", "mig-configs"}:
        raise MigError(f"{source}: the file must have version and mig-configs, and nothing else")
    if data["version"] != "v1":
        raise MigError(f"{source}: version {data['version']!r} is not supported", "write v1")
    configs = data["mig-configs"]
    if not isinstance(configs, dict) or not configs:
        raise MigError(f"{source}: mig-configs must have at least one label")
    labels = {}
    for name, entries in configs.items():
        if not isinstance(entries, list) or not entries:
            raise MigError(f"{source}: label {name!r} must be a list of entries")
        where = f"{source}: label {name!r}, entry "
        parsed = tuple(_entry(item, where + str(n)) for n, item in enumerate(entries, 1))
        labels[name] = Label(name, source, parsed)
    return labels


def choose(labels: dict[str, Label], name: str) -> Label:
    """The label of that name. Raises MigError with the nearest name."""
    if name not in labels:
        raise MigError(f"no label {name!r} in the MIG configuration", did_you_mean(name, labels))
    return labels[name]


def _entry(fields: Any, where: str) -> Entry:
    if not isinstance(fields, dict):
        raise MigError(f"{where} must be a mapping")
    for key in fields:
        if key not in _FIELDS:
            raise MigError(f"{where}: unknown field {key!r}", did_you_mean(key, _FIELDS))
    filters = fields.get("device-filter", [])
    filters = filters if isinstance(filters, list) else [filters]
    if "device-filter" in fields and not filters:
        raise MigError(f"{where}: device-filter is empty", "remove it to address every GPU")
    for item in filters:
        if not isinstance(item, str) or not _FILTER.match(item):
            raise MigError(
                f"{where}: device-filter {item!r} is not a PCI device id",
                'write "0xDDDDVVVV", for example "0x20B010DE"',
            )
    devices = fields.get("devices")
    listed = isinstance(devices, list) and bool(devices) and all(map(_count, devices))
    if devices != "all" and not listed:
        raise MigError(f"{where}: devices must be all or a list of GPU indices")
    enabled = fields.get("mig-enabled")
    if not isinstance(enabled, bool):
        raise MigError(f"{where}: mig-enabled must be true or false")
    # Without the mapping MIG would be switched on and no instance made.
    if enabled and not isinstance(fields.get("mig-devices"), dict):
        hint = "list the instances, or write {} for none"
        raise MigError(f"{where}: mig-enabled is true but mig-devices is missing", hint)
    mig_devices = _mig_devices(fields.get("mig-devices") or {}, where)
    if not enabled and mig_devices:
        raise MigError(f"{where}: mig-devices are listed but mig-enabled is false")
    chosen = tuple(devices) if isinstance(devices, list) else None
    return Entry(where, tuple(filters), chosen, enabled, mig_devices)


def _mig_devices(counts: Any, where: str) -> tuple[tuple[str, int], ...]:
    if not isinstance(counts, dict) or not all(map(_count, counts.values())):
        raise MigError(f"{where}: mig-devices must be profile names with counts")
    try:
        names = [(str(parse(name)), count) for name, count in counts.items()]
        devices = tuple((name, countable(name, count)) for name, count in names)
    except MigError as e:
        raise MigError(f"{where}: {e.message}", e.hint) from e
    if devices and not any(count for _, count in devices):
        hint = "write {} for MIG mode without instances"
        raise MigError(f"{where}: every count in mig-devices is 0", hint)
    return devices


def _count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
