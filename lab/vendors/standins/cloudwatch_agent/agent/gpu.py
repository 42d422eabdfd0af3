"""GPU measurements from `nvidia-smi -q -x`.

github:aws/amazon-cloudwatch-agent plugins/inputs/nvidia_smi/{nvidia_smi.go,schema_v11,schema_v12,
common/setters.go} @ab55b8daa204e95c42c0267ee5aa49ec3b3a7317
"""

from __future__ import annotations

import re
import subprocess
import time
import xml.etree.ElementTree

TYPE_CHECKING = False  # typing itself costs start-up time
if TYPE_CHECKING:
    from typing import Dict, Tuple

    Gpu = Tuple[Dict[str, str], Dict[str, float], float]

PROGRAM = "/usr/bin/nvidia-smi"
TIMEOUT = 5
_SAME = {
    "fan_speed": "fan_speed",
    "memory_total": "fb_memory_usage/total",
    "memory_used": "fb_memory_usage/used",
    "memory_free": "fb_memory_usage/free",
    "temperature_gpu": "temperature/gpu_temp",
    "utilization_gpu": "utilization/gpu_util",
    "utilization_memory": "utilization/memory_util",
    "pcie_link_gen_current": "pci/pci_gpu_link_info/pcie_gen/current_link_gen",
    "pcie_link_width_current": "pci/pci_gpu_link_info/link_widths/current_link_width",
    "encoder_stats_session_count": "encoder_stats/session_count",
    "encoder_stats_average_fps": "encoder_stats/average_fps",
    "encoder_stats_average_latency": "encoder_stats/average_latency",
    "clocks_current_graphics": "clocks/graphics_clock",
    "clocks_current_sm": "clocks/sm_clock",
    "clocks_current_memory": "clocks/mem_clock",
    "clocks_current_video": "clocks/video_clock",
}
# Field → its elements; of several the last one that has a value counts.
_V11 = dict(
    {name: [path] for name, path in _SAME.items()}, power_draw=["power_readings/power_draw"]
)
_V12 = dict(
    _V11,
    power_draw=[
        "power_readings/power_draw",
        "power_readings/instant_power_draw",
        "gpu_power_readings/power_draw",
        "gpu_power_readings/instant_power_draw",
    ],
)
FIELDS = tuple(_V12)
# Tags that become dimensions; the translator excludes compute_mode, pstate and uuid.
_TAGS_V11 = {"name": "product_name"}
_TAGS_V12 = {"name": "product_name", "arch": "product_architecture"}


def ask() -> str:
    """nvidia-smi's XML. Raises OSError when it fails or takes longer than the agent waits."""
    try:
        done = subprocess.run(
            [PROGRAM, "-q", "-x"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=TIMEOUT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise OSError(f'calling "{PROGRAM}" failed: command timed out') from None
    if done.returncode:
        raise OSError(f'calling "{PROGRAM}" failed: exit status {done.returncode}')
    return done.stdout.decode("utf-8", "replace")


def read(text: str, now: float) -> list[Gpu]:
    """The GPUs of nvidia-smi's XML: (dimensions, field → value, seconds since 1970).

    Raises ValueError for what is not its XML.
    """
    schema = re.search(r'<!DOCTYPE[^>]*"nvsmi_device_(v[0-9]+)\.dtd"', text)
    old = schema is None or schema[1] in ("v10", "v11")
    try:
        log = xml.etree.ElementTree.fromstring(text)  # noqa: S314 -- of this machine's program
    except xml.etree.ElementTree.ParseError as error:
        raise ValueError(str(error)) from None
    moment = now if old else _moment(log.findtext("timestamp", ""), now)
    gpus: list[Gpu] = []
    for index, gpu in enumerate(log.findall("gpu")):
        dimensions = {"index": str(index)}
        for name, path in (_TAGS_V11 if old else _TAGS_V12).items():
            value = gpu.findtext(path)
            if value:
                dimensions[name] = value
        fields: dict[str, float] = {}
        for name, paths in (_V11 if old else _V12).items():
            for path in paths:
                number = _number(name, gpu.findtext(path, ""))
                if number is not None:
                    fields[name] = number
        gpus.append((dimensions, fields, moment))
    return gpus


def _number(name: str, text: str) -> float | None:
    words = text.split()
    if not words:
        return None
    word = words[0]
    if name == "pcie_link_width_current" and word.endswith("x"):
        word = word[:-1]
    try:
        return float(word) if name == "power_draw" else int(word)
    except ValueError:
        return None


def _moment(text: str, now: float) -> float:
    try:
        return time.mktime(time.strptime(text, "%a %b %d %H:%M:%S %Y"))
    except ValueError:
        return now
