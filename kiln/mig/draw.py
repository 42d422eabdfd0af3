"""Drawings of a plan: text for the terminal, and SVG."""

from __future__ import annotations

from html import escape
from typing import Any

# Fill and text, by compute slices. Colour-blind safe (Okabe and Ito 2008); text at 4.5:1 or more.
COLOURS = {
    1: ("#56b4e9", "#000000"), 2: ("#009e73", "#000000"), 3: ("#e69f00", "#000000"),
    4: ("#cc79a7", "#000000"), 7: ("#0072b2", "#ffffff"),
}  # fmt: skip
OTHER = ("#999999", "#000000")
FONT = "system-ui, 'Segoe UI', Helvetica, Arial, 'DejaVu Sans', sans-serif"
LETTER = 8.2  # px of the widest of these fonts at 13 px
SMALL = 'font-size="11" fill="#595959"'
SAMPLE = 118  # px a colour takes in the legend


def draw_text(plan: dict[str, Any]) -> str:
    """One row per GPU, one cell per memory slice; `.` is an unused slice."""
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
        lines.append(f"  GPU {gpu['gpu']}  {row}  {_used(plan, gpu)} slices")
    return "\n".join([*lines, *(f"  {remark}" for remark in _remarks(plan))])


def _instances(plan: dict[str, Any]) -> list[dict[str, Any]]:
    return [instance for gpu in plan["gpus"] for instance in gpu["instances"]]


def _free(slices: int, cell: int) -> str:
    return (" " + "." * (cell - 2) + " ") * slices


def _name(instance: dict[str, Any]) -> str:
    """The profile, with the number of its compute instances if it has several."""
    pieces = len(instance["compute_instances"])
    return f"{instance['profile']} in {pieces}" if pieces > 1 else str(instance["profile"])


def _used(plan: dict[str, Any], gpu: dict[str, Any]) -> str:
    compute = sum(i["compute_slices"] for i in gpu["instances"])
    memory = sum(i["memory_slices"] for i in gpu["instances"])
    return f"{compute}/{plan['compute_slices']} compute, {memory}/{plan['memory_slices']} memory"


def _remarks(plan: dict[str, Any]) -> list[str]:
    missing = [f"missing: {plan['reason']}"] if plan["reason"] else []
    return missing + [f"warning: {w}" for w in plan["warnings"]]


def draw_svg(plan: dict[str, Any]) -> str:
    """The plan as a standalone SVG: x is the memory slice, colour the number of compute slices.

    Below the GPUs: a legend, what is missing, and warnings.
    """
    names = [(len(_name(i)) * LETTER + 14) / i["memory_slices"] for i in _instances(plan)]
    wide, high, left, top = round(max([48, *names])), 34, 70, 58
    right = left + wide * plan["memory_slices"]
    legend = top + (high + 8) * len(plan["gpus"]) + 14
    remarks = _remarks(plan)
    title = f"{plan['instance_type']}: {plan['used']} of {plan['available']} × {plan['gpu']} cut"
    sizes = sorted({i["compute_slices"] for i in _instances(plan)})
    used = max((len(_used(plan, gpu)) for gpu in plan["gpus"]), default=0)
    lengths = [20 + LETTER * len(line) for line in remarks]
    width = round(max(right + 22 + LETTER * used, left + SAMPLE * (len(sizes) + 1), *lengths))
    height = legend + 24 + 20 * len(remarks)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="{FONT}" font-size="13" role="img">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        _text(10, 24, title, 'font-size="16" font-weight="bold"'),
        _text(right + 12, top - 8, "slices used", SMALL),
    ]
    for s in range(plan["memory_slices"]):
        at = left + s * wide + wide // 2
        parts.append(_text(at, top - 8, str(s), SMALL + ' text-anchor="middle"'))
    for row, gpu in enumerate(plan["gpus"]):
        parts += _row(plan, gpu, left, top + row * (high + 8), wide, high)
    at = left
    for size in sizes:
        parts += _sample(at, legend, COLOURS.get(size, OTHER)[0], f"{size} compute")
        at += SAMPLE
    parts += _sample(at, legend, "#f2f2f2", "left over")
    for line, remark in enumerate(remarks):
        parts.append(_text(10, legend + 34 + 20 * line, remark, 'fill="#a40000"'))
    return "\n".join([*parts, "</svg>", ""])


def _row(
    plan: dict[str, Any], gpu: dict[str, Any], left: int, y: int, wide: int, high: int
) -> list[str]:
    """One GPU: its memory slices, the instances over them, and how much they use."""
    parts = [_text(10, y + 22, f"GPU {gpu['gpu']}")]
    parts += [
        f'<rect x="{left + s * wide}" y="{y}" width="{wide}" height="{high}" '
        'fill="#f2f2f2" stroke="#cccccc"/>'
        for s in range(plan["memory_slices"])
    ]
    for i in gpu["instances"]:
        x, w = left + i["start"] * wide, i["memory_slices"] * wide
        fill, ink = COLOURS.get(i["compute_slices"], OTHER)
        parts.append(
            f'<rect x="{x + 2}" y="{y + 2}" width="{w - 4}" height="{high - 4}" rx="4" '
            f'fill="{fill}"/>'
        )
        parts.append(_text(x + w // 2, y + 22, _name(i), f'fill="{ink}" text-anchor="middle"'))
    right = left + wide * plan["memory_slices"]
    parts.append(_text(right + 12, y + 22, _used(plan, gpu), 'fill="#595959"'))
    return parts


def _sample(x: int, y: int, fill: str, meaning: str) -> list[str]:
    return [
        f'<rect x="{x}" y="{y}" width="14" height="14" rx="3" fill="{fill}" stroke="#cccccc"/>',
        _text(x + 20, y + 12, meaning),
    ]


def _text(x: float, y: float, text: str, more: str = "") -> str:
    return f'<text x="{x:g}" y="{y:g}"{" " if more else ""}{more}>{escape(text)}</text>'
