"""The table of `nvidia-smi` without options, in the driver's layout.

There are three layouts: to 529 (77 columns inside), 530-549 (87), from 550 (89). Widths and spacing
are taken from public tables of 510, 535, 550, 570 and 580.
"""

from __future__ import annotations

import time

from . import box, mig
from .gpus import Gpu, Lab
from .snapshot import snapshot

TYPE_CHECKING = False  # typing itself costs start-up time
if TYPE_CHECKING:
    from typing import Any

STAND_IN = "AMI Kiln lab stand-in for nvidia-smi: there is no GPU behind this table."


def render(lab: Lab, gpus: list[Gpu]) -> str:
    """The whole table."""
    era = 0 if lab.branch < 530 else 1 if lab.branch < 550 else 2
    inner = (77, 87, 89)[era]
    middle = (22, 22, 24)[era]
    first = inner - middle - 24
    rule = "+" + "-" * inner + "+"
    cells = "+".join("-" * width for width in (first, middle, 22))
    version, cuda = lab.driver["version"], lab.driver["cuda"]
    head = (
        f" NVIDIA-SMI {version:<{(13, 23, 23)[era]}}Driver Version: {version:<{(13, 13, 15)[era]}}"
    )
    lines = [
        time.strftime("%a %b %e %H:%M:%S %Y") + "       ",
        rule,
        f"|{head}CUDA Version: {cuda:<9}|",
        ("+" if lab.branch >= 580 else "|") + cells + "+",
    ]
    lines += _headings(era)
    lines.append("|" + "+".join("=" * width for width in (first, middle, 22)) + "|")
    for gpu in gpus:
        lines += _rows(snapshot(lab, gpu), era)
        lines.append("+" + cells + "+")
    blank = "" if lab.branch >= 570 else " " * (inner + 2)
    if any(gpu.state["mig"] for gpu in gpus):
        lines += ["" if era == 2 else blank, *_mig_box(lab, gpus, era, rule)]
    lines += [blank, *_process_box(lab, gpus, era, rule), STAND_IN]
    return "\n".join(lines) + "\n"


def _headings(era: int) -> list[str]:
    if era == 0:
        return [
            "| GPU  Name        Persistence-M| Bus-Id        Disp.A | Volatile Uncorr. ECC |",
            "| Fan  Temp  Perf  Pwr:Usage/Cap|         Memory-Usage | GPU-Util  Compute M. |",
            "|                               |                      |               MIG M. |",
        ]
    pad = "  " if era == 2 else ""
    return [
        f"| GPU  Name                 Persistence-M | Bus-Id        {pad}Disp.A | Volatile Uncorr. ECC |",
        f"| Fan  Temp   Perf          Pwr:Usage/Cap |         {pad}Memory-Usage | GPU-Util  Compute M. |",
        f"|                                         |                      {pad}|               MIG M. |",
    ]


def _rows(v: dict[str, Any], era: int) -> list[str]:
    name, longest = str(v["name"]), 18 if era == 0 else 27
    if len(name) > longest:
        name = name[: longest - 3] + "..."
    on = "On" if v["persistence_mode"] == "Enabled" else "Off"
    fan = "N/A" if v["fan.speed"] is None else f"{v['fan.speed']}%"
    mode = v.get("mig.mode.current", "N/A")
    faults = "On" if mode == "Enabled" else "Off"
    ecc = v["ecc.errors.uncorrected.volatile.total"]
    if mode != "Enabled":
        faults = "Off" if ecc is None else str(ecc)
    used, total = v["memory.used"], v["memory.total"]
    util = "N/A" if v["utilization.gpu"] is None else f"{v['utilization.gpu']}%"
    watts, cap = round(v["power.draw"]), round(v["power.limit"])
    heat = f"{fan:>4}{v['temperature.gpu']:>5}C{v['pstate']:>6}"
    if era == 0:
        first = f"{v['index']:>4}  {name:<18}  {on:<3}  "
        power, bus = f"{watts:>6}W / {cap:>3}W ", f" {v['pci.bus_id']} Off "
    else:
        first = f"{v['index']:>4}  {name:<31}{on:<3} "
        power = f"{watts:>16}W / {cap:>3}W " if era == 1 else f"{watts:>15}W / {cap:>4}W "
        bus = f" {v['pci.bus_id']} Off ".rjust(22 + 2 * (era == 2))
    memory = f"{used:>7}MiB / {total:>5}MiB " if era < 2 else f"{used:>8}MiB / {total:>6}MiB "
    empty = " " * len(first)
    return [
        f"|{first}|{bus}|{faults:>21} |",
        f"|{heat}{power}|{memory}|{util:>8} {v['compute_mode']:>12} |",
        f"|{empty}|{' ' * len(memory)}|{mode:>21} |",
    ]


def _mig_box(lab: Lab, gpus: list[Gpu], era: int, rule: str) -> list[str]:
    inner = len(rule) - 2
    width = inner - 18 - 11 - 23 - 3
    shared = "Shared " if lab.branch >= 570 else ""
    cells = "+".join("-" * size for size in (18, width, 11, 23))
    if era == 0:
        kinds, units = "         Shared        ", " CE  ENC  DEC  OFA  JPG"
    elif lab.branch >= 570:
        kinds, units = "        Shared         ", " CE ENC  DEC  OFA  JPG "
    else:
        kinds, units = "      Shared           ", " CE ENC DEC OFA JPG    "
    tail = (1, 2, 4)[era]
    low_tail = 2 if era == 2 and lab.branch < 570 else tail
    lines = [
        rule,
        f"|{' MIG devices:':<{inner}}|",
        f"+{cells}+",
        f"| GPU  GI  CI  MIG |{shared + 'Memory-Usage':>{width - 1}} |        Vol|{kinds}|",
        f"|      ID  ID  Dev |{shared + 'BAR1-Usage':>{width - 1}} | SM     Unc|{units}|",
        f"|                  |{' ' * width}|        ECC|                       |",
        "|" + "+".join("=" * size for size in (18, width, 11, 23)) + "|",
    ]
    rows = [
        (gpu, device) for gpu in gpus if gpu.state["mig"] for device in mig.devices(gpu, lab.branch)
    ]
    for gpu, d in rows:
        p = d["profile"]
        total = mig.mib(p)
        bar1 = gpu.model["mib"][2] * p["memory"] // (gpu.mig or {})["memory_slices"] - 1
        high = f"15MiB / {total:>5}MiB" + " " * tail
        low = f"0MiB / {bar1:>5}MiB" + " " * low_tail
        lines += [
            f"|{gpu.index:>3}{d['gi']:>5}{d['ci']:>4}{d['index']:>4}  |{high:>{width}}"
            f"| {d['sm']:<3}{0:>6} |{p['ce']:>3}{p['enc']:>4}{p['dec']:>5}{p['ofa']:>5}{p['jpeg']:>5} |",
            f"|                  |{low:>{width}}|           |                       |",
            f"+{cells}+",
        ]
    if not rows:
        lines += [f"|{'  No MIG devices found':<{inner}}|", rule]
    return lines


def _process_box(lab: Lab, gpus: list[Gpu], era: int, rule: str) -> list[str]:
    inner = len(rule) - 2
    wide = 6 if lab.branch >= 580 else 0
    names = inner - 53 - wide
    lines = [
        rule,
        f"|{' Processes:':<{inner}}|",
        f"|  GPU   GI   CI {' ' * wide}       PID   Type   {'Process name':<{names + 6}}GPU Memory |",
        f"|        ID   ID {' ' * wide}                    {'':<{names + 6}}Usage      |",
        "|" + "=" * inner + "|",
    ]
    clients = [(g, c) for g in gpus for c in box.clients(g.index) if c["compute"]]
    for gpu, client in clients:
        left = f"{gpu.index:>5}   N/A  N/A{client['pid']:>{10 + wide}}      C   "
        room = inner - len(left) - 10
        lines.append(f"|{left}{client['name'][: room - 1]:<{room}}{4:>6}MiB |")
    if not clients:
        lines.append(f"|{'  No running processes found':<{inner}}|")
    return [*lines, rule]
