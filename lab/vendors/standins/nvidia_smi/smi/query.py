"""--query-gpu and the other query options: CSV."""

from __future__ import annotations

from . import box
from .gpus import Gpu, Lab
from .snapshot import DEPRECATED, snapshot

TYPE_CHECKING = False  # typing itself costs start-up time
if TYPE_CHECKING:
    from typing import Any

_CARD = dict.fromkeys(("timestamp", "gpu_name", "gpu_bus_id", "gpu_serial", "gpu_uuid"), "")
# The fields of the smaller query options → their unit in the heading.
KINDS = {
    "remapped-rows": dict(_CARD, **{"remapped_rows." + name: "" for name in (
        "correctable", "correctable_inactive", "uncorrectable", "uncorrectable_inactive",
        "pending", "failure", "histogram.max", "histogram.high", "histogram.partial",
        "histogram.low", "histogram.none",
    )}),
    "compute-apps": {**_CARD, "pid": "", "process_name": "", "used_gpu_memory": "MiB"},
}  # fmt: skip
ALIASES = {
    "name": "process_name", "used_memory": "used_gpu_memory",
    "remapped_rows.sbe": "remapped_rows.correctable",
    "remapped_rows.dbe": "remapped_rows.uncorrectable",
}  # fmt: skip
# What 580's --query-gpu says of an H100's place, where -q says N/A.
PLATFORM = {
    "platform.chassis_serial_number": "", "platform.slot_number": 0, "platform.tray_index": 0,
    "platform.host_id": 1, "platform.peer_type": "Direct Connected",
    "platform.gpu_fabric_guid": "0x0000000000000000",
}  # fmt: skip


class BadField(Exception):
    """A field that this driver's nvidia-smi does not have."""


def known_fields(version: int) -> dict[str, tuple[str, str]]:
    """Field of --query-gpu → name and unit of its column. `version`: that of Lab."""
    fields: dict[str, tuple[str, str]] = {}
    for names, unit, spans in box.data("query_fields"):
        if box.covers(spans, version):
            for name in names:
                fields[name] = (_spelling(names, name, version // 1000), unit)
    return fields


def _spelling(names: list[str], field: str, branch: int) -> str:
    # The throttle reasons were renamed in 535; the old name is an alias, which 580 does not show.
    if len(names) > 1 and "throttle" in names[1] and branch < 580:
        return names[1] if branch < 535 else field if "throttle" in field else names[0]
    return names[0]


def query_gpu(lab: Lab, gpus: list[Gpu], names: list[str], options: set[str]) -> str:
    """The CSV of --query-gpu. Raises BadField."""
    fields = known_fields(lab.version)
    columns = []
    for name in names:
        if name not in fields:
            raise BadField(name)
        columns.append((name, *fields[name]))
    out = []
    if "noheader" not in options:
        out.append(", ".join(title + (f" [{unit}]" if unit else "") for _, title, unit in columns))
    for gpu in gpus:
        values = snapshot(lab, gpu)
        aliases = {
            alias: group[0] for group, _, _ in box.data("query_fields") for alias in group[1:]
        }
        if lab.branch >= 580:
            plain = {f: "N/A" for f in fields if f.startswith("fabric.") and values.get(f) is None}
            values.update(plain)
            if gpu.model["arch"] == "Hopper":
                values = {**PLATFORM, **values}
        row = [
            _cell(values.get(aliases.get(name, name)), unit, options) for name, _, unit in columns
        ]
        out.append(", ".join(row))
    return "\n".join(out) + "\n"


def query_other(lab: Lab, gpus: list[Gpu], kind: str, names: list[str], options: set[str]) -> str:
    """The CSV of --query-remapped-rows and --query-compute-apps. Raises BadField."""
    fields = {f: u for f, u in KINDS[kind].items() if "inactive" not in f or lab.version >= 580159}
    names = [ALIASES.get(name, name) for name in names]
    for name in names:
        if name not in fields:
            raise BadField(name)
    out = []
    if "noheader" not in options:
        out.append(", ".join(n + (f" [{fields[n]}]" if fields[n] else "") for n in names))
    for gpu in gpus:
        values = snapshot(lab, gpu)
        for short in ("name", "serial", "uuid"):
            values["gpu_" + short] = values[short]
        values["gpu_bus_id"] = values["pci.bus_id"]
        rows: list[dict[str, Any]] = [{}]
        if kind == "compute-apps":
            rows = [
                {"pid": client["pid"], "process_name": client["name"], "used_gpu_memory": 4}
                for client in box.clients(gpu.index) if client["compute"]
            ]  # fmt: skip
        for row in rows:
            full = dict(values, **row)
            out.append(", ".join(_cell(full.get(n), fields[n], options) for n in names))
    return "\n".join(out) + "\n" if out else ""


def _cell(value: object, unit: str, options: set[str]) -> str:
    if value is None:
        return "[N/A]"
    if isinstance(value, float):
        value = f"{value:.2f}"
    text = str(value)
    if value == DEPRECATED:
        return f"[{text}]"
    return text if not unit or "nounits" in options else f"{text} {unit}"
