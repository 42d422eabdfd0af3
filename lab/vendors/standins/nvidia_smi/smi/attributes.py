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

# What each -d type shows, by top-level XML tag. Source: nvidia-smi's man page, -d, and our own
# recording of 580.159.04 (tests/data/nvidia-smi).
DISPLAY = {
    "MEMORY": ("fb_memory_usage", "bar1_memory_usage", "cc_protected_memory_usage"),
    "UTILIZATION": ("utilization", "-gpu_util_samples", "-memory_util_samples",
                    "-encoder_util_samples", "-decoder_util_samples", "-jpeg_util_samples",
                    "-ofa_util_samples"),
    "ECC": ("ecc_mode", "ecc_errors"),
    "TEMPERATURE": ("temperature",),
    "POWER": ("power_readings", "gpu_power_readings", "-power_samples",
              "gpu_memory_power_readings", "module_power_readings"),
    "CLOCK": ("clocks", "applications_clocks", "default_applications_clocks", "deferred_clocks",
              "max_clocks", "max_customer_boost_clocks", "-sm_clock_samples", "-mem_clock_samples",
              "clock_policy"),
    "COMPUTE": ("compute_mode",),
    "PIDS": ("processes",),
    "PERFORMANCE": ("performance_state", "clocks_throttle_reasons", "clocks_event_reasons",
                    "clocks_event_reasons_counters", "sparse_operation_mode"),
    "SUPPORTED_CLOCKS": ("supported_clocks",),
    "PAGE_RETIREMENT": ("retired_pages",),
    "ACCOUNTING": ("accounting_mode", "accounting_mode_buffer_size", "accounted_processes"),
    "ENCODER_STATS": ("encoder_stats",),
    "SUPPORTED_GPU_TARGET_TEMP": ("supported_gpu_target_temp",),
    "VOLTAGE": ("voltage",),
    "FBC_STATS": ("fbc_stats",),
    "ROW_REMAPPER": ("remapped_rows",),
    "RESET_STATUS": ("gpu_reset_status",),
    "GSP_FIRMWARE_VERSION": ("gsp_firmware_version",),
    "POWER_SMOOTHING": ("power_smoothing",),
    "POWER_PROFILES": ("power_profiles",),
}  # fmt: skip
# What -q shows only when -d asks for it.
ON_REQUEST = {"supported_clocks", "supported_gpu_target_temp", "accounted_processes"}


def display(branch: int) -> dict[str, tuple[str, ...]]:
    """The -d types of a driver: 580 has no RESET_STATUS any more."""
    return {k: v for k, v in DISPLAY.items() if branch < 580 or k != "RESET_STATUS"}


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
            out.extend(PARTS[value[1:]](lab, gpu, tag, label))
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


def _mig_devices(lab: Lab, gpu: Gpu, _tag: str, _label: str) -> list[Node]:
    devices = mig.devices(gpu, lab.branch) if gpu.state["mig"] else []
    if not devices:
        return [("mig_devices", "-", ("None", ""), ())]
    shared = "Shared " if lab.branch >= 570 else ""
    out: list[Node] = []
    for device in devices:
        p, total = device["profile"], mig.mib(device["profile"])
        bar1 = gpu.model["mib"][2] * p["memory"] // (gpu.mig or {})["memory_slices"] - 1
        out.append(("mig_device", "MIG Device", None, [
            _leaf("index", "Index", device["index"]),
            _leaf("gpu_instance_id", "GPU Instance ID", device["gi"]),
            _leaf("compute_instance_id", "Compute Instance ID", device["ci"]),
            ("device_attributes", "Device Attributes", None, [
                ("shared", "Shared", None, [
                    _leaf("multiprocessor_count", "Multiprocessor count", device["sm"]),
                    _leaf("copy_engine_count", "Copy Engine count", p["ce"]),
                    _leaf("encoder_count", "Encoder count", p["enc"]),
                    _leaf("decoder_count", "Decoder count", p["dec"]),
                    _leaf("ofa_count", "OFA count", p["ofa"]),
                    _leaf("jpg_count", "JPG count", p["jpeg"]),
                ]),
            ]),
            ("ecc_error_count", "ECC Errors", None, [
                ("volatile_count", "Volatile", None, [
                    _leaf("sram_uncorrectable", "SRAM Uncorrectable", 0),
                ]),
            ]),
            ("fb_memory_usage", shared + "FB Memory Usage", None, [
                _leaf("total", "Total", f"{total} MiB"), _leaf("reserved", "Reserved", "0 MiB"),
                _leaf("used", "Used", "15 MiB"), _leaf("free", "Free", f"{total - 15} MiB"),
            ]),
            ("bar1_memory_usage", shared + "BAR1 Memory Usage", None, [
                _leaf("total", "Total", f"{bar1} MiB"), _leaf("used", "Used", "0 MiB"),
                _leaf("free", "Free", f"{bar1} MiB"),
            ]),
        ]))  # fmt: skip
    return [("mig_devices", "-", None, out)]


def _leaf(tag: str, label: str, value: object) -> Node:
    return (tag, label, (str(value), str(value)), ())


def _pagelist(lab: Lab, gpu: Gpu, tag: str, _label: str) -> list[Node]:
    return [(tag, "-", ("N/A" if gpu.model.get("remapper") else "\n", ""), ())]


def _supported_clocks(lab: Lab, gpu: Gpu, tag: str, _label: str) -> list[Node]:
    low, high, idle, top = gpu.model["mhz"][:4]
    rates = [("supported_graphics_clock", "Graphics", mhz) for mhz in range(high, low - 1, -15)]
    out: list[Node] = []
    for memory in dict.fromkeys((top, idle)):
        out.append((
            "supported_mem_clock", "-", None,
            [("value", "Memory", (f"{memory} MHz",) * 2, ())]
            + [(t, ">" + name, (f"{mhz} MHz",) * 2, ()) for t, name, mhz in rates],
        ))  # fmt: skip
    return [(tag, "Supported Clocks", None, out)]


def _processes(lab: Lab, gpu: Gpu, tag: str, _label: str) -> list[Node]:
    clients = [c for c in box.clients(gpu.index) if c["compute"]]
    if not clients:
        return [(tag, "Processes", ("\n", "None"), ())]
    rows = [
        ("process_info", "-", None, [
            _leaf("gpu_instance_id", "GPU instance ID", "N/A"),
            _leaf("compute_instance_id", "Compute instance ID", "N/A"),
            _leaf("pid", "Process ID", client["pid"]), _leaf("type", ">Type", "C"),
            _leaf("process_name", ">Name", client["name"]),
            _leaf("used_memory", ">Used GPU Memory", "4 MiB"),
        ])
        for client in clients
    ]  # fmt: skip
    return [(tag, "Processes", None, rows)]


PARTS: dict[str, Callable[[Lab, Gpu, str, str], list[Node]]] = {
    "mig_devices": _mig_devices,
    "retired_pagelist": _pagelist,
    "supported_clocks": _supported_clocks,
    "processes": _processes,
    "empty": lambda _lab, _gpu, tag, label: [(tag, label, ("\n", "None"), ())],
}


def text(lab: Lab, gpus: list[Gpu], kinds: list[str]) -> str:
    """The report of -q, or of -q -d KINDS."""
    width = 55 if lab.branch >= 580 else 42
    stamp = time.strftime("%a %b %e %H:%M:%S %Y")
    lines = ["", "==============NVSMI LOG==============", ""]
    for label, value in (
        ("Timestamp", stamp), ("Driver Version", lab.driver["version"]),
        ("CUDA Version", lab.driver["cuda"]),
    ):  # fmt: skip
        lines.append(f"{label:<{width - 1}} : {value}")
    lines += ["", f"{'Attached GPUs':<{width - 1}} : {len(lab.gpus)}"]
    wanted = {tag for kind in kinds for tag in DISPLAY[kind]}
    for gpu in gpus:
        lines.append(f"GPU {gpu.bus_id}")
        for node in tree(lab, gpu):
            asked_only = node[0] in ON_REQUEST or node[0].startswith("-")
            if node[0] in wanted if kinds else not asked_only:
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
    if tag.startswith("-"):
        return
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
