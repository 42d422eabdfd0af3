"""The readable values of a GPU, by --query-gpu's names; None means "not available"."""

from __future__ import annotations

import time

from . import box, mig
from .gpus import Gpu, Lab

TYPE_CHECKING = False  # typing itself costs start-up time
if TYPE_CHECKING:
    from typing import Any

DEPRECATED = "Requested functionality has been deprecated"


def now(form: str = "%Y/%m/%d %H:%M:%S") -> str:
    """The local time with milliseconds, as in nvidia-smi's CSV."""
    at = time.time()
    return time.strftime(form, time.localtime(at)) + f".{int(at * 1000) % 1000:03d}"


def snapshot(lab: Lab, gpu: Gpu) -> dict[str, Any]:
    """Every readable value of the GPU. A missing key means "not available"."""
    m, state, branch = gpu.model, gpu.state, lab.branch
    in_mig = state["mig"]
    bus, device = gpu.bus_id[9:11], gpu.bus_id[12:14]
    watts = [float(w) for w in m["watts"]]
    sm_idle, sm_max, mem_idle, mem_max, video_idle, video_max = m["mhz"]
    heat = list(m["celsius"]) + [None] * 6
    app = state["app"] or m["app"]
    limit = watts[1]
    total, reserved, bar1 = m["mib"]
    instances = mig.devices(gpu, branch) if in_mig else []
    used = sum(16 for _ in instances)
    power = watts[0]
    gsp = m.get("gsp") and (lab.driver["kernel_module"] == "open" or m["arch"] not in ("Turing",))
    old_clocks = branch < 590
    hmm = branch >= 535 and lab.driver["kernel_module"] == "open"
    margin = 87 - heat[0] if m.get("tlimit") else None
    averages = m["arch"] in ("Ada Lovelace", "Hopper", "Blackwell")
    v: dict[str, Any] = {
        **box.data("constants"), "timestamp": now(), "driver_version": lab.driver["version"],
        "count": len(lab.gpus), "name": m["product"], "architecture": m["arch"],
        "serial": gpu.serial, "uuid": gpu.uuid, "index": gpu.index, "minor_number": gpu.index,
        "pdi": "0x" + gpu.uuid.replace("-", "")[3:19], "hostname": None,
        "board_id": "0x" + f"{int(bus + device, 16):x}", "board_part_number": m["board"],
        "gpu_part_number": m["part"], "vbios_version": m["vbios"],
        "inforom.img": m["board"].split("-")[1][1:] + ".0200.00.05" if "-" in m["board"] else None,
        "inforom.ecc": m["ecc"], "pci.bus_id": gpu.bus_id, "pci.bus": "0x" + bus,
        "pci.device": "0x" + device, "pci.device_id": "0x" + m["pci"],
        "pci.sub_device_id": "0x" + m["sub"], "pcie.link.gen.current": m["pcie"],
        "pcie.link.gen.gpucurrent": m["pcie"], "pcie.link.gen.max": m["pcie"],
        "pcie.link.gen.gpumax": m["pcie"],
        "display_mode": DEPRECATED if branch >= 580 else "Enabled" if branch >= 530 else "Disabled",
        "persistence_mode": "Enabled" if state["pm"] else "Disabled",
        "addressing_mode": "HMM" if hmm else "None",
        "reset_status.reset_required": DEPRECATED if branch >= 570 else "No",
        "reset_status.drain_and_reset_recommended": DEPRECATED if branch >= 570 else "No",
        "gpu_recovery_action": "Reset" if _reset_needed(gpu) else "None",
        "pstate": "P0" if m["mhz"][3] == m["mhz"][2] else "P8", "fan.speed": m.get("fan"),
        "memory.total": total, "memory.reserved": reserved, "memory.used": used,
        "memory.free": total - reserved - used, "bar1.total": bar1, "bar1.free": bar1 - 1,
        "compute_cap": m["cc"], "retired_pages.pending": None if m.get("remapper") else "No",
        "retired_pages.single_bit_ecc.count": None if m.get("remapper") else 0,
        "retired_pages.double_bit.count": None if m.get("remapper") else 0,
        "temperature.gpu": heat[0], "temperature.shutdown": heat[1],
        "temperature.slowdown": heat[2], "temperature.max": heat[3], "temperature.memory": heat[4],
        "temperature.memory.max": heat[5], "temperature.gpu.tlimit": margin,
        "power.management": "Enabled" if branch >= 580 else "Supported", "power.draw": power,
        "power.draw.instant": power, "power.draw.average": power if averages else None,
        "power.draw.memory": m.get("memory_watts"), "power.limit": limit,
        "enforced.power.limit": limit, "power.default_limit": watts[1], "power.min_limit": watts[2],
        "power.max_limit": watts[3], "power_state": "P0" if branch < 590 else DEPRECATED,
        "clocks.current.graphics": sm_idle, "clocks.current.sm": sm_idle,
        "clocks.current.memory": mem_idle, "clocks.current.video": video_idle,
        "clocks.applications.graphics": app[1] if old_clocks else DEPRECATED,
        "clocks.applications.memory": app[0] if old_clocks else DEPRECATED,
        "clocks.default_applications.graphics": m["app"][1] if old_clocks else DEPRECATED,
        "clocks.default_applications.memory": m["app"][0] if old_clocks else DEPRECATED,
        "clocks.max.graphics": sm_max, "clocks.max.sm": sm_max, "clocks.max.memory": mem_max,
        "clocks.max.video": video_max,
        "gsp_firmware_version": lab.driver["version"] if gsp else None,
        "gsp.mode.current": "Enabled" if gsp else "Disabled",
        "gsp.mode.default": "Enabled" if gsp else "Disabled", "c2c.mode": m.get("c2c"),
        "sparse_operation_mode": m.get("sparse"), "platform.module_id": gpu.index + 1,
    }  # fmt: skip
    for key in ("bus", "device", "domain", "device_id", "sub_device_id"):
        v[f"pci.{key}.bare"] = v[f"pci.{key}"][2:]
    for key in ("gpu", "memory", "encoder", "decoder", "jpeg", "ofa"):
        # In MIG mode nvidia-smi reports no utilization.
        v[f"utilization.{key}"] = None if in_mig else 0
    if gpu.mig is not None:
        v["mig.mode.current"] = "Enabled" if in_mig else "Disabled"
        v["mig.mode.pending"] = "Enabled" if state["mig_pending"] else "Disabled"
    _errors(v, bool(m.get("remapper")))
    if m.get("remapper") and not instances:
        # NVML does not report remapped rows while MIG instances exist.
        _remapped_rows(v, m["remapper"])
    _fabric(v, gpu)
    for key, value in box.faults().get("values", {}).get(str(gpu.index), {}).items():
        v[key] = value
    return v


def _reset_needed(gpu: Gpu) -> bool:
    return bool(gpu.ampere and gpu.state["mig"] != gpu.state["mig_pending"])


def _errors(v: dict[str, Any], remapper: bool) -> None:
    """Counts of 0; a card that remaps rows counts other parts than one that retires pages."""
    parts = ["dram", "sram", "total", "device_memory"]
    if not remapper:
        parts += ["register_file", "l1_cache", "l2_cache", "texture_memory", "cbu"]
    for kind in ("corrected", "uncorrected"):
        for span in ("volatile", "aggregate"):
            v.update({f"ecc.errors.{kind}.{span}.{part}": 0 for part in parts})
    if remapper:
        for part in ("parity", "secded", "l2", "sm", "mcu", "pcie", "other"):
            v[f"ecc.errors.uncorrected.aggregate.sram.{part}"] = 0
        for part in ("parity", "secded"):
            v[f"ecc.errors.uncorrected.volatile.sram.{part}"] = 0
        v["ecc.errors.uncorrected.aggregate.sram.thresholdExceeded"] = "No"


def _remapped_rows(v: dict[str, Any], banks: int) -> None:
    for kind in ("correctable", "uncorrectable"):
        v[f"remapped_rows.{kind}"] = v[f"remapped_rows.{kind}_inactive"] = 0
    v["remapped_rows.pending"] = v["remapped_rows.failure"] = "No"
    v["remapped_rows.histogram.max"] = banks
    for part in ("high", "partial", "low", "none"):
        v["remapped_rows.histogram." + part] = 0


def _fabric(v: dict[str, Any], gpu: Gpu) -> None:
    registers = gpu.model["arch"] in ("Hopper", "Blackwell") and (
        gpu.fabric or gpu.model.get("c2c") == "Enabled"
    )
    if not registers:
        return
    up = not gpu.fabric or box.alive("nv-fabricmanager")
    v["fabric.state"] = "Completed" if up else "In Progress"
    v["fabric.status"] = "Success" if up else None
    if up:
        v["fabric.cliqueId"] = 0
        v["fabric.clusterUuid"] = "00000000-0000-0000-0000-000000000000"
    if gpu.model["arch"] == "Blackwell":
        v["fabric.health.summary"] = "Healthy" if up else None
        v["platform.host_id"], v["platform.peer_type"] = 1, "Switch Connected"
        v["platform.gpu_fabric_guid"] = "0x" + gpu.uuid.replace("-", "")[5:21]
