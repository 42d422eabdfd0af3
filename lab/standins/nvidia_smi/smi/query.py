"""--query-gpu and the other query options: CSV."""

from __future__ import annotations

from . import box
from .gpus import Gpu, Lab
from .snapshot import DEPRECATED, snapshot

TYPE_CHECKING = False  # typing itself costs start-up time
if TYPE_CHECKING:
    from typing import Any

# The fields of the smaller query options → their unit in the heading.
REMAPPED = {
    "timestamp": "", "gpu_name": "", "gpu_bus_id": "", "gpu_serial": "", "gpu_uuid": "",
    "remapped_rows.correctable": "", "remapped_rows.uncorrectable": "",
    "remapped_rows.pending": "", "remapped_rows.failure": "", "remapped_rows.histogram.max": "",
    "remapped_rows.histogram.high": "", "remapped_rows.histogram.partial": "",
    "remapped_rows.histogram.low": "", "remapped_rows.histogram.none": "",
}  # fmt: skip
APPS = {
    "timestamp": "", "gpu_name": "", "gpu_bus_id": "", "gpu_serial": "", "gpu_uuid": "",
    "pid": "", "process_name": "", "used_gpu_memory": "MiB",
}  # fmt: skip
APP_ALIASES = {"name": "process_name", "used_memory": "used_gpu_memory"}
RETIRED = {
    "timestamp": "", "gpu_name": "", "gpu_bus_id": "", "gpu_serial": "", "gpu_uuid": "",
    "retired_pages.address": "", "retired_pages.cause": "",
}  # fmt: skip
CLOCKS = {
    "timestamp": "", "gpu_name": "", "gpu_bus_id": "", "gpu_serial": "", "gpu_uuid": "",
    "memory": "MHz", "graphics": "MHz",
}  # fmt: skip
KINDS = {
    "remapped-rows": REMAPPED, "compute-apps": APPS, "retired-pages": RETIRED,
    "supported-clocks": CLOCKS,
}  # fmt: skip


class BadField(Exception):
    """A field that this driver's nvidia-smi does not have."""


def known_fields(branch: int) -> dict[str, tuple[str, str]]:
    """Field of --query-gpu → name and unit of its column."""
    fields: dict[str, tuple[str, str]] = {}
    for names, unit, spans in box.data("query_fields"):
        if not spans or any(low <= branch <= high for low, high in spans):
            for name in names:
                fields[name] = (_spelling(names, name, branch), unit)
    return fields


def _spelling(names: list[str], asked: str, branch: int) -> str:
    # The throttle reasons were renamed in 535; the old name became an alias.
    if len(names) > 1 and "throttle" in names[1]:
        return names[1] if branch < 535 else asked if "throttle" in asked else names[0]
    return names[0]


def query_gpu(lab: Lab, gpus: list[Gpu], names: list[str], options: set[str]) -> str:
    """The CSV of --query-gpu. Raises BadField."""
    known = known_fields(lab.branch)
    columns = []
    for name in names:
        if name not in known:
            raise BadField(name)
        columns.append((name, *known[name]))
    out = []
    if "noheader" not in options:
        out.append(", ".join(title + (f" [{unit}]" if unit else "") for _, title, unit in columns))
    for gpu in gpus:
        values = snapshot(lab, gpu)
        aliases = {
            alias: group[0] for group, _, _ in box.data("query_fields") for alias in group[1:]
        }
        row = [
            _cell(values.get(aliases.get(name, name)), unit, options) for name, _, unit in columns
        ]
        out.append(", ".join(row))
    return "\n".join(out) + "\n"


def query_other(lab: Lab, gpus: list[Gpu], kind: str, names: list[str], options: set[str]) -> str:
    """The CSV of --query-remapped-rows, --query-compute-apps and the like. Raises BadField."""
    fields = KINDS[kind]
    names = [APP_ALIASES.get(name, name) if kind == "compute-apps" else name for name in names]
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
        for row in _rows(kind, gpu):
            full = dict(values, **row)
            out.append(", ".join(_cell(full.get(n), fields[n], options) for n in names))
    return "\n".join(out) + "\n" if out else ""


def _rows(kind: str, gpu: Gpu) -> list[dict[str, Any]]:
    if kind == "compute-apps":
        return [
            {"pid": client["pid"], "process_name": client["name"], "used_gpu_memory": 4}
            for client in box.clients(gpu.index) if client["compute"]
        ]  # fmt: skip
    if kind == "retired-pages":
        return []
    if kind == "supported-clocks":
        low, high, idle, top = gpu.model["mhz"][:4]
        return [
            {"memory": memory, "graphics": graphics}
            for memory in dict.fromkeys((top, idle))
            for graphics in range(high, low - 1, -15)
        ]
    return [{}]


def _cell(value: object, unit: str, options: set[str]) -> str:
    if value is None:
        return "[N/A]"
    if isinstance(value, float):
        value = f"{value:.2f}"
    text = str(value)
    if value == DEPRECATED:
        return f"[{text}]"
    return text if not unit or "nounits" in options else f"{text} {unit}"
