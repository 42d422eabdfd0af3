"""mig-parted's v1 configuration: labels, and for each label what every GPU should look like."""

from __future__ import annotations

import os
import re
from typing import Dict, List, NamedTuple, Optional, Tuple

from . import miniyaml
from .errors import MigError, did_you_mean
from .profile import countable, parse

_FILTER = re.compile(r"^0x[0-9A-Fa-f]{8}(:0x[0-9A-Fa-f]{8})?$")
_FIELDS = ("device-filter", "devices", "mig-enabled", "mig-devices")


class Entry(NamedTuple):
    """One item of a label. `devices`: GPU indices, None for "all"; `mig_devices`: (name, count)."""

    where: str
    filters: Tuple[str, ...]
    devices: Optional[Tuple[int, ...]]
    enabled: bool
    mig_devices: Tuple[Tuple[str, int], ...]

    def addresses(self, device_id, subsystem_id=""):
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
    entries: Tuple[Entry, ...]


def load(path, dropin_dir=""):
    """Labels of a file and of the *.yaml, *.yml and *.json beside it in `dropin_dir`.

    A later file replaces a label of an earlier one, as systemd's drop-ins do.
    Raises MigError with file:line.
    """
    labels: Dict[str, Label] = {}
    names = sorted(os.listdir(dropin_dir)) if dropin_dir and os.path.isdir(dropin_dir) else []
    dropins = [os.path.join(dropin_dir, n) for n in names if n.endswith((".yaml", ".yml", ".json"))]
    for source in [path] + dropins:
        try:
            with open(source, encoding="utf-8") as f:
                text = f.read()
        except (OSError, UnicodeDecodeError) as e:
            raise MigError("{}: cannot be read: {}".format(source, e)) from e
        labels.update(loads(text, source))
    return labels


def loads(text, source="<string>"):
    """Labels of one v1 document (YAML or JSON). Raises MigError with `source`:line."""
    root = miniyaml.loads(text, source)
    top = _mapping(root, source, "the file", ("version", "mig-configs"))
    version = _required(top, "version", root, source, "the file")
    if version.value != "v1":
        _fail(source, version, "version {!r} is not supported".format(version.value), "write v1.")
    configs = _required(top, "mig-configs", root, source, "the file")
    labels = {}
    for name, node in _mapping(configs, source, "mig-configs").items():
        if not isinstance(node.value, list) or not node.value:
            _fail(source, node, "label {!r} must be a list of entries".format(name))
        entries = tuple(_entry(item, source, name) for item in node.value)
        labels[name] = Label(name, "{}:{}".format(source, node.line), entries)
    return labels


def choose(labels, name):
    """The label of that name. Raises MigError with the nearest one."""
    if name not in labels:
        raise MigError(
            "no label {!r} in the MIG configuration".format(name), did_you_mean(name, labels)
        )
    return labels[name]


def _entry(node, source, label):
    what = "label {!r}".format(label)
    fields = _mapping(node, source, what, _FIELDS)
    filters = _filters(fields.get("device-filter"), source)
    devices = _devices(_required(fields, "devices", node, source, what), source)
    enabled_node = _required(fields, "mig-enabled", node, source, what)
    if not isinstance(enabled_node.value, bool):
        _fail(source, enabled_node, "mig-enabled must be true or false")
    mig_devices = _mig_devices(fields.get("mig-devices"), source)
    if enabled_node.value and "mig-devices" not in fields:
        _fail(
            source,
            node,
            "{}: mig-enabled is true but mig-devices is missing".format(what),
            "list the slices, or write mig-devices: {} for none.",
        )
    if not enabled_node.value and mig_devices:
        _fail(
            source,
            fields["mig-devices"],
            "{}: mig-devices are listed but mig-enabled is false".format(what),
            "set mig-enabled: true or remove the slices.",
        )
    where = "{}:{}".format(source, node.line)
    return Entry(where, filters, devices, enabled_node.value, mig_devices)


def _filters(node, source):
    if node is None:
        return ()
    items = node.value if isinstance(node.value, list) else [node]
    if not items:
        _fail(source, node, "device-filter is empty", "remove it to address every GPU.")
    for item in items:
        if not isinstance(item.value, str) or not _FILTER.match(item.value):
            _fail(
                source,
                item,
                "device-filter {!r} is no PCI device id".format(item.value),
                'write "0xDDDDVVVV", for example "0x20B010DE".',
            )
    return tuple(str(item.value) for item in items)


def _devices(node, source):
    if node.value == "all":
        return None
    if not isinstance(node.value, list) or not node.value:
        _fail(source, node, "devices must be all or a list of GPU indices")
    for item in node.value:
        if isinstance(item.value, bool) or not isinstance(item.value, int) or item.value < 0:
            _fail(source, item, "{!r} is not a GPU index".format(item.value))
    return tuple(item.value for item in node.value)


def _mig_devices(node, source):
    if node is None or node.value is None:
        return ()
    found: List[Tuple[str, int]] = []
    for name, count in _mapping(node, source, "mig-devices").items():
        if isinstance(count.value, bool) or not isinstance(count.value, int) or count.value < 0:
            _fail(source, count, "{}: {!r} is not a count".format(name, count.value))
        try:
            spelled = str(parse(name))
            found.append((spelled, countable(spelled, count.value)))
        except MigError as e:
            raise MigError("{}:{}: {}".format(source, count.line, e.message), e.hint) from e
    if found and not any(count for _, count in found):
        _fail(
            source,
            node,
            "every count in mig-devices is 0",
            "write mig-devices: {} for MIG mode without slices.",
        )
    return tuple(found)


def _mapping(node, source, what, known=()):
    if not isinstance(node.value, dict):
        _fail(source, node, "{} must be a mapping".format(what))
    for key, value in node.value.items():
        if known and key not in known:
            _fail(
                source, value, "{}: unknown field {!r}".format(what, key), did_you_mean(key, known)
            )
    return node.value


def _required(fields, key, node, source, what):
    if key not in fields:
        _fail(source, node, "{}: {} is missing".format(what, key))
    return fields[key]


def _fail(source, node, message, hint=""):
    raise MigError("{}:{}: {}".format(source, node.line, message), hint)
