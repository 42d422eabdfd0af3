"""A plan as a picture: for the terminal, and as SVG."""

from __future__ import annotations

import html
from typing import Any

# Colour-blind safe (Okabe and Ito 2008), by compute slices.
COLOURS = {1: "#56b4e9", 2: "#009e73", 3: "#e69f00", 4: "#cc79a7", 7: "#0072b2"}


def draw_text(plan: dict[str, Any]) -> str:
    """One row per GPU, one cell per memory slice; `.` is a slice nobody can use or wants."""
    cell = max([9, *(-(-(len(_name(i)) + 2) // i["memory_slices"]) for i in _instances(plan))])
    lines = [f"{plan['instance_type']}: {plan['used']} of {plan['available']} {plan['gpu']} in use"]
    for gpu in plan["gpus"]:
        row, at = "", 0
        for instance in gpu["instances"]:
            row += _free(instance["start"] - at, cell)
            width = cell * instance["memory_slices"] - 2
            row += "[" + _name(instance).center(width) + "]"
            at = instance["start"] + instance["memory_slices"]
        row += _free(plan["memory_slices"] - at, cell)
        lines.append(f"  GPU {gpu['gpu']}  {row}  {_used(plan, gpu)}")
    if plan["reason"]:
        lines.append(f"  missing: {plan['reason']}")
    lines += [f"  warning: {w}" for w in plan["warnings"]]
    return "\n".join(lines)


def _instances(plan: dict[str, Any]) -> list[dict[str, Any]]:
    return [instance for gpu in plan["gpus"] for instance in gpu["instances"]]


def _free(slices: int, cell: int) -> str:
    return (" " + "." * (cell - 2) + " ") * slices


def _name(instance: dict[str, Any]) -> str:
    """The profile; with the number of its compute instances where it has several."""
    pieces = len(instance["compute_instances"])
    return f"{instance['profile']}/{pieces}" if pieces > 1 else str(instance["profile"])


def _used(plan: dict[str, Any], gpu: dict[str, Any]) -> str:
    compute = sum(i["compute_slices"] for i in gpu["instances"])
    memory = sum(i["memory_slices"] for i in gpu["instances"])
    of_compute, of_memory = plan["compute_slices"], plan["memory_slices"]
    return f"{compute}/{of_compute} compute, {memory}/{of_memory} memory slices"


def draw_svg(plan: dict[str, Any]) -> str:
    """The same as a standalone SVG: x is the memory slice, colour the number of compute slices."""
    wide, high, left = 90, 34, 70
    width = left + wide * plan["memory_slices"] + 10
    height = 40 + (high + 8) * len(plan["gpus"]) + 10
    title = f"{plan['instance_type']}: {plan['used']} of {plan['available']} × {plan['gpu']}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'font-family="sans-serif" font-size="13" role="img">',
        f"<title>{html.escape(title)}</title>",
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        f'<text x="10" y="24" font-size="15">{html.escape(title)}</text>',
    ]
    for row, gpu in enumerate(plan["gpus"]):
        y = 40 + row * (high + 8)
        parts.append(f'<text x="10" y="{y + 22}">GPU {gpu["gpu"]}</text>')
        parts += [
            f'<rect x="{left + s * wide}" y="{y}" width="{wide}" height="{high}" '
            'fill="#f2f2f2" stroke="#cccccc"/>'
            for s in range(plan["memory_slices"])
        ]
        for i in gpu["instances"]:
            x, w = left + i["start"] * wide, i["memory_slices"] * wide
            colour = COLOURS.get(i["compute_slices"], "#999999")
            parts.append(
                f'<rect x="{x + 2}" y="{y + 2}" width="{w - 4}" height="{high - 4}" rx="4" '
                f'fill="{colour}"/>'
                f'<text x="{x + w / 2:g}" y="{y + 22}" text-anchor="middle">'
                f"{html.escape(_name(i))}</text>"
            )
    return "\n".join([*parts, "</svg>", ""])
