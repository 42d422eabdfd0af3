"""Drawings of `mig.makespan`: a table with bars for the terminal, and SVG."""

from __future__ import annotations

from html import escape
from typing import Any

from kiln.mig.draw import FONT, LETTER, SMALL

_BAR = 24  # characters of the longest bar
_FILL, _FILL_ASSUMED = "#0072b2", "#56b4e9"


def makespan_text(answer: dict[str, Any]) -> str:
    """A line for each way, the soonest first; `*` marks a slowdown that nobody measured."""
    ways = answer["ways"]
    rows = [
        (
            way["name"] + ("*" if way["assumed"] else ""),
            str(way["at_once"]),
            str(way["waves"]),
            f"{way['seconds']:.1f}",
            f"{way['gpu_hours']:.2f}",
            "?" if way["usd"] is None else f"{way['usd']:.2f}",
        )
        for way in ways
    ]
    head = ("way", "at once", "waves", "seconds", "GPU hours", "US$")
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    lines = [_title(answer)]
    for row, way in zip([head, *rows], [None, *ways], strict=True):
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        lines.append(("  " + "  ".join(cells) + "  " + _bar(way, ways)).rstrip())
    lines += [f"  {name}: {why}" for name, why in answer["refused"].items()]
    return "\n".join([*lines, *(f"  {remark}" for remark in _remarks(answer))])


def _bar(way: dict[str, Any] | None, ways: list[dict[str, Any]]) -> str:
    if way is None:
        return ""
    longest: float = max(way["seconds"] for way in ways)
    return "█" * max(1, round(_BAR * float(way["seconds"]) / longest))


def _title(answer: dict[str, Any]) -> str:
    need = f" with {answer['memory_gib']:g} GiB" if answer["memory_gib"] else ""
    return (
        f"{answer['instance_type']}: {answer['gpus']} × {answer['gpu']}; {answer['jobs']} jobs"
        f"{need}, each {answer['seconds']:.4g} s alone on a whole GPU"
    )


def _remarks(answer: dict[str, Any]) -> list[str]:
    remarks = []
    if any(way["assumed"] for way in answer["ways"]):
        remarks.append(
            "* assumed: slower by the compute slices that the slice lacks; measure a job on a "
            "slice and give --slowdown"
        )
    if answer["busy"] == 1 and any(way["name"].startswith("time") for way in answer["ways"]):
        remarks.append("time slicing helps jobs that leave the GPU idle: --busy says how much")
    price = answer["price"]
    if price["usd_per_hour"] is not None:
        remarks.append(
            f"US$: the whole instance on demand, Linux, {price['region']}, {price['as_of']}"
        )
    return remarks


def makespan_svg(answer: dict[str, Any]) -> str:
    """A bar for each way as a standalone SVG; lighter where a slowdown is assumed."""
    ways = answer["ways"]
    longest = max((way["seconds"] for way in ways), default=1)
    left = 24 + round(LETTER * max((len(way["name"]) for way in ways), default=10))
    high, step, top, wide = 18, 26, 46, 360
    remarks = _remarks(answer)
    title = _title(answer)
    width = round(max(left + wide + 250, 20 + LETTER * max(map(len, [title, *remarks]))))
    height = top + step * len(ways) + 20 * len(remarks) + 14
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="{FONT}" font-size="13" role="img">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        f'<text x="10" y="24" font-size="16" font-weight="bold">{escape(title)}</text>',
    ]
    for row, way in enumerate(ways):
        y = top + row * step
        bar = max(2, round(wide * way["seconds"] / longest))
        fill = _FILL_ASSUMED if way["assumed"] else _FILL
        usd = "" if way["usd"] is None else f", US$ {way['usd']:.2f}"
        many = "waves" if way["waves"] > 1 else "wave"
        label = f"{way['seconds']:.1f} s, {way['waves']} {many}{usd}"
        parts += [
            f'<text x="10" y="{y + 14}">{escape(way["name"])}</text>',
            f'<rect x="{left}" y="{y}" width="{bar}" height="{high}" rx="3" fill="{fill}"/>',
            f'<text x="{left + bar + 8}" y="{y + 14}" {SMALL}>{escape(label)}</text>',
        ]
    for line, remark in enumerate(remarks):
        y = top + step * len(ways) + 16 + 20 * line
        parts.append(f'<text x="10" y="{y}" {SMALL}>{escape(remark)}</text>')
    return "\n".join([*parts, "</svg>", ""])
