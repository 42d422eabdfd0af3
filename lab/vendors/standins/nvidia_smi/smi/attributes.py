"""`-q` and `-q -x`: both print the same tree of attributes."""

from __future__ import annotations

import time

from . import box, mig
from .gpus import Gpu, Lab
from .snapshot import snapshot

TYPE_CHECKING = False  # typing itself costs start-up time
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    # XML tag ("-": text only), text label ("-": XML only), (XML, text) value or None, children.
    Node = tuple[str, str, Any, Any]

# What only the XML shows.
XML_ONLY = {"supported_clocks", "supported_gpu_target_temp", "accounted_processes"}


def tree(lab: Lab, gpu: Gpu) -> list[Node]:
    """The GPU's attributes as nested (tag, label, value, children)."""
    values = snapshot(lab, gpu)
    flags = {
        "tlimit" if gpu.model.get("tlimit") and lab.branch >= 530 else "absolute",
        "remapper" if "remapped_rows.failure" in values else "no_remapper",
        "split_sram" if gpu.model.get("remapper") else "plain_sram",
    }
    return _fill(box.data("attributes"), lab, gpu, values, flags)


def _fill(
    layout: list[list[Any]], lab: Lab, gpu: Gpu, values: dict[str, Any], flags: set[str]
) -> list[Node]:
    out: list[Node] = []
    for tag, label, value, spans, prefix, flag, children in layout:
        if not box.covers(spans, lab.version) or (flag and flag not in flags):
            continue
        if value.startswith("@"):
            out.extend(PARTS[value[1:]](lab, gpu, tag, children))
        elif children:
            out.append((tag, label, None, _fill(children, lab, gpu, values, flags)))
        else:
            text = _text(value, values)
            shown = prefix + text if prefix and text != "N/A" else text
            out.append((tag, label, (text, shown), ()))
    return out


def _text(value: str, values: dict[str, Any]) -> str:
    if "{" not in value:
        return value
    key, rest = value[1:].split("}")
    content = values.get(key)
    if content is None:
        return "N/A"
    if isinstance(content, float):
        content = f"{content:.2f}"
    if isinstance(content, str) and not content.replace(".", "").isdigit():
        rest = ""  # no unit after a word
    return f"{content}{rest}"


def _mig_devices(lab: Lab, gpu: Gpu, tag: str, layout: list[list[Any]]) -> list[Node]:
    devices = mig.devices(gpu, lab.branch) if gpu.state["mig"] else []
    if not devices:
        return [(tag, "-", ("None", ""), ())]
    out: list[Node] = []
    for device in devices:
        p, total = device["profile"], mig.mib(device["profile"])
        bar1 = gpu.model["mib"][2] * p["memory"] // (gpu.mig or {})["memory_slices"] - 1
        sizes = {"total": total, "free": total - 15, "bar1": bar1}
        out += _fill(layout, lab, gpu, {**p, **device, **sizes}, set())
    return [(tag, "-", None, out)]


def _pagelist(_lab: Lab, gpu: Gpu, tag: str, _layout: list[list[Any]]) -> list[Node]:
    return [(tag, "-", ("N/A" if gpu.model.get("remapper") else "\n", ""), ())]


def _supported_clocks(_lab: Lab, gpu: Gpu, tag: str, _layout: list[list[Any]]) -> list[Node]:
    low, high, idle, top = gpu.model["mhz"][:4]
    rates: list[Node] = [
        ("supported_graphics_clock", "-", (f"{mhz} MHz", ""), ())
        for mhz in range(high, low - 1, -15)
    ]
    return [(tag, "-", None, [
        ("supported_mem_clock", "-", None, [("value", "-", (f"{memory} MHz", ""), ()), *rates])
        for memory in dict.fromkeys((top, idle))
    ])]  # fmt: skip


def _processes(lab: Lab, gpu: Gpu, tag: str, layout: list[list[Any]]) -> list[Node]:
    clients = [client for client in box.clients(gpu.index) if client["compute"]]
    if not clients:
        return [(tag, "Processes", ("\n", "None"), ())]
    rows = [row for client in clients for row in _fill(layout, lab, gpu, client, set())]
    return [(tag, "Processes", None, rows)]


PARTS: dict[str, Callable[[Lab, Gpu, str, list[list[Any]]], list[Node]]] = {
    "mig_devices": _mig_devices,
    "retired_pagelist": _pagelist,
    "supported_clocks": _supported_clocks,
    "processes": _processes,
    "empty": lambda _lab, _gpu, tag, _layout: [(tag, "-", ("\n", ""), ())],
}


def text(lab: Lab, gpus: list[Gpu]) -> str:
    """The report of -q."""
    width = 55 if lab.branch >= 580 else 42
    stamp = time.strftime("%a %b %e %H:%M:%S %Y")
    lines = ["", "==============NVSMI LOG==============", ""]
    for label, value in (
        ("Timestamp", stamp), ("Driver Version", lab.driver["version"]),
        ("CUDA Version", lab.driver["cuda"]),
    ):  # fmt: skip
        lines.append(f"{label:<{width - 1}} : {value}")
    lines += ["", f"{'Attached GPUs':<{width - 1}} : {len(lab.gpus)}"]
    for gpu in gpus:
        lines.append(f"GPU {gpu.bus_id}")
        for node in tree(lab, gpu):
            if node[0] not in XML_ONLY:
                listed = node[0] == "processes" and node[3]
                lines += _lines(node, 4, 42 if listed else width)
        lines.append("")
    return "\n".join(lines) + "\n"


def _lines(node: Node, indent: int, width: int) -> list[str]:
    _tag, label, value, children = node
    if label == "-":
        return [line for child in children for line in _lines(child, indent, width)]
    if label.startswith(">"):
        label, indent = label[1:], indent + 4
    head = " " * indent + label
    if value is not None:
        return [f"{head:<{width - 1}} : {value[1]}"]
    tail = " " if label == "GPU Memory Power Readings" else ""  # the real tool prints one
    return [head + tail] + [line for child in children for line in _lines(child, indent + 4, width)]


def xml(lab: Lab, gpus: list[Gpu]) -> str:
    """The XML of -q -x. Its schema depends on the driver: v11, v12 from 530, v13 from 580."""
    schema = 13 if lab.branch >= 580 else 12 if lab.branch >= 530 else 11
    out = [
        '<?xml version="1.0" ?>',
        f'<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v{schema}.dtd">',
        "<nvidia_smi_log>",
        f"\t<timestamp>{time.strftime('%a %b %e %H:%M:%S %Y')}</timestamp>",
        f"\t<driver_version>{lab.driver['version']}</driver_version>",
        f"\t<cuda_version>{lab.driver['cuda']}</cuda_version>",
        f"\t<attached_gpus>{len(lab.gpus)}</attached_gpus>",
    ]
    for gpu in gpus:
        out.append(f'\t<gpu id="{gpu.bus_id}">')
        for node in tree(lab, gpu):
            _element(node, "\t\t", out)
        out += ["\t</gpu>", ""]
    out.append("</nvidia_smi_log>")
    return "\n".join(out) + "\n"


def _element(node: Node, indent: str, out: list[str]) -> None:
    tag, _label, value, children = node
    if value is None:
        # The real tool does not indent the elements of mig_devices further.
        inner = indent if tag == "mig_devices" else indent + "\t"
        out.append(f"{indent}<{tag}>")
        for child in children:
            _element(child, inner, out)
        out.append(f"{indent}</{tag}>")
    elif tag == "mig_devices":
        out += [f"{indent}<{tag}>", f"{indent}\tNone", f"{indent}</{tag}>"]
    elif value[0] == "\n":
        out += [f"{indent}<{tag}>", f"{indent}</{tag}>"]
    else:
        safe = value[0].replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
        out.append(f"{indent}<{tag}>{safe}</{tag}>")
