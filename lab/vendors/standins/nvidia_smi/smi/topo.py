"""`topo -m` and `nvlink -s`."""

from __future__ import annotations

from .gpus import Gpu, Lab

LEGEND = """
Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
  NODE = Connection traversing PCIe as well as the interconnect between PCIe Host Bridges within a NUMA node
  PHB  = Connection traversing PCIe as well as a PCIe Host Bridge (typically the CPU)
  PXB  = Connection traversing multiple PCIe bridges (without traversing the PCIe Host Bridge)
  PIX  = Connection traversing at most a single PCIe bridge
  NV#  = Connection traversing a bonded set of # NVLinks
"""


def matrix(lab: Lab) -> str:
    """topo -m: NVLink between GPUs behind an NVSwitch, else the NUMA nodes."""
    gpus = lab.gpus
    numa = lab.branch >= 530
    names = [f"GPU{gpu.index}" for gpu in gpus]
    head = ["", *names, "CPU Affinity", "NUMA Affinity"] + (["GPU NUMA ID"] if numa else [])
    if numa:  # underlined, whether a terminal reads it or not
        head[1], head[-1] = f"\x1b[4m{head[1]}", f"{head[-1]}\x1b[0m"
    lines = ["\t".join(head)]
    for row in gpus:
        cells = [f"GPU{row.index}", *(_link(row, column, len(gpus)) for column in gpus)]
        cells += [_cpus(lab, row), str(_node(row, len(gpus)))]
        lines.append("\t".join(cells) + ("\t\tN/A" if numa else ""))
    return "\n".join(lines) + "\n" + LEGEND


def _node(gpu: Gpu, count: int) -> int:
    return int(count >= 4 and gpu.index >= count // 2)


def _link(a: Gpu, b: Gpu, count: int) -> str:
    if a is b:
        return " X "
    if a.fabric and not a.state["mig"] and not b.state["mig"]:
        return f"NV{a.model['nvlink'][0]}"
    return "PHB" if _node(a, count) == _node(b, count) else "SYS"


def _cpus(lab: Lab, gpu: Gpu) -> str:
    count = int(lab.machine["vcpus"])
    if len(lab.gpus) < 4:
        return f"0-{count - 1}"
    quarter = count // 4  # two sockets, two threads per core: 0-23,48-71 and 24-47,72-95 on p4d
    low = quarter * _node(gpu, len(lab.gpus))
    return f"{low}-{low + quarter - 1},{2 * quarter + low}-{2 * quarter + low + quarter - 1}"


def nvlink(gpus: list[Gpu]) -> str:
    """nvlink -s"""
    out = ""
    for gpu in gpus:
        if not gpu.model.get("nvlink") or not gpu.fabric:
            continue
        links, speed = gpu.model["nvlink"]
        out += f"GPU {gpu.index}: {gpu.model['product']} (UUID: {gpu.uuid})\n"
        out += "".join(
            f"\t Link {n}: {'<inactive>' if gpu.state['mig'] else f'{speed:g} GB/s'}\n"
            for n in range(links)
        )
    return out
