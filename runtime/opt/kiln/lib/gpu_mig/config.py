"""The v1 configuration of mig-parted: labels, and the layout of every GPU for each label."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import NamedTuple, NoReturn

from . import miniyaml
from .errors import MigError, did_you_mean
from .miniyaml import Node
from .profile import countable, parse

_FILTER = re.compile(r"0x[0-9A-Fa-f]{8}(:0x[0-9A-Fa-f]{8})?\Z")
_FIELDS = ("device-filter", "devices", "mig-enabled", "mig-devices")


class Entry(NamedTuple):
    """An item of a label. `devices`: GPU indices, None for "all"; `mig_devices`: (name, count)."""

    where: str
    filters: tuple[str, ...]
    devices: tuple[int, ...] | None
    enabled: bool
    mig_devices: tuple[tuple[str, int], ...]

    def addresses(self, device_id: str, subsystem_id: str = "") -> bool:
        """Whether a GPU of this PCI device id (`0x20B010DE`) passes the device filter."""
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
    """Labels of a file and of the *.yaml, *.yml and *.json files in `dropin_dir`.

    A label in a later file replaces the same label in an earlier file, as in drop-ins of systemd.
    Raises MigError with file:line.
    """
    labels: dict[str, Label] = {}
    names = sorted(os.listdir(dropin_dir)) if dropin_dir and os.path.isdir(dropin_dir) else []
    dropins = [os.path.join(dropin_dir, n) for n in names if n.endswith((".yaml", ".yml", ".json"))]
    for source in [path, *dropins]:
        try:
            with open(source, encoding="utf-8") as f:
                text = f.read()
        except (OSError, ValueError) as e:
            raise MigError(f"{source}: cannot be read: {e}") from e
        labels.update(loads(text, source))
    return labels


def loads(text: str, source: str = "<string>") -> dict[str, Label]:
    """Labels of a v1 document (YAML or JSON). Raises MigError with `source`:line."""
    root = miniyaml.loads(text, source)
    top = _mapping(root, source, "the file", ("version", "mig-configs"))
    version = _required(top, "version", root, source, "the file")
    if version.value != "v1":
        _fail(source, version, f"version {version.value!r} is not supported", "write v1")
    configs = _required(top, "mig-configs", root, source, "the file")
    if configs.value == {}:
        _fail(source, configs, "mig-configs has no label", "write at least one")
    labels = {}
    for name, node in _mapping(configs, source, "mig-configs").items():
        if not isinstance(node.value, list) or not node.value:
            _fail(source, node, f"label {name!r} must be a list of entries")
        entries = tuple(_entry(item, source, name) for item in node.value)
        labels[name] = Label(name, f"{source}:{node.line}", entries)
    return labels


def choose(labels: dict[str, Label], name: str) -> Label:
    """The label of that name. Raises MigError with the nearest name."""
    if name not in labels:
        raise MigError(f"no label {name!r} in the MIG configuration", did_you_mean(name, labels))
    return labels[name]


def _entry(node: Node, source: str, label: str) -> Entry:
    what = f"label {label!r}"
    fields = _mapping(node, source, what, _FIELDS)
    filters = _filters(fields.get("device-filter"), source)
    devices = _devices(_required(fields, "devices", node, source, what), source)
    enabled_node = _required(fields, "mig-enabled", node, source, what)
    if not isinstance(enabled_node.value, bool):
        _fail(source, enabled_node, "mig-enabled must be true or false")
    mig_devices = _mig_devices(fields.get("mig-devices"), source)
    # An empty `mig-devices:` too: it would switch MIG on and make no instance.
    if enabled_node.value and ("mig-devices" not in fields or fields["mig-devices"].value is None):
        _fail(
            source,
            node,
            f"{what}: mig-enabled is true but mig-devices is missing",
            "list the instances, or write mig-devices: {} for none",
        )
    if not enabled_node.value and mig_devices:
        _fail(
            source,
            fields["mig-devices"],
            f"{what}: mig-devices are listed but mig-enabled is false",
            "set mig-enabled: true or remove mig-devices",
        )
    where = f"{source}:{node.line}"
    return Entry(where, filters, devices, enabled_node.value, mig_devices)


def _filters(node: Node | None, source: str) -> tuple[str, ...]:
    if node is None:
        return ()
    items = node.value if isinstance(node.value, list) else [node]
    if not items:
        _fail(source, node, "device-filter is empty", "remove it to address every GPU")
    for item in items:
        if not isinstance(item.value, str) or not _FILTER.match(item.value):
            _fail(
                source,
                item,
                f"device-filter {item.value!r} is not a PCI device id",
                'write "0xDDDDVVVV", for example "0x20B010DE"',
            )
    return tuple(str(item.value) for item in items)


def _devices(node: Node, source: str) -> tuple[int, ...] | None:
    if node.value == "all":
        return None
    if not isinstance(node.value, list) or not node.value:
        _fail(source, node, "devices must be all or a list of GPU indices")
    for item in node.value:
        if isinstance(item.value, bool) or not isinstance(item.value, int) or item.value < 0:
            _fail(source, item, f"{item.value!r} is not a GPU index")
    return tuple(item.value for item in node.value)


def _mig_devices(node: Node | None, source: str) -> tuple[tuple[str, int], ...]:
    if node is None or node.value is None:
        return ()
    counts: list[tuple[str, int]] = []
    for name, count in _mapping(node, source, "mig-devices").items():
        if isinstance(count.value, bool) or not isinstance(count.value, int) or count.value < 0:
            _fail(source, count, f"{name}: {count.value!r} is not a count")
        try:
            spelled = str(parse(name))
            counts.append((spelled, countable(spelled, count.value)))
        except MigError as e:
            raise MigError(f"{source}:{count.line}: {e.message}", e.hint) from e
    if counts and not any(count for _, count in counts):
        _fail(
            source,
            node,
            "every count in mig-devices is 0",
            "write mig-devices: {} for MIG mode without instances",
        )
    return tuple(counts)


def _mapping(node: Node, source: str, what: str, known: Sequence[str] = ()) -> dict[str, Node]:
    if not isinstance(node.value, dict):
        _fail(source, node, f"{what} must be a mapping")
    for key, value in node.value.items():
        if known and key not in known:
            _fail(source, value, f"{what}: unknown field {key!r}", did_you_mean(key, known))
    return node.value


def _required(fields: dict[str, Node], key: str, node: Node, source: str, what: str) -> Node:
    if key not in fields:
        _fail(source, node, f"{what}: {key} is missing")
    return fields[key]


def _fail(source: str, node: Node, message: str, hint: str = "") -> NoReturn:
    raise MigError(f"{source}:{node.line}: {message}", hint)
