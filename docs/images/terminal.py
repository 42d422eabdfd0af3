"""Draw what a command printed as an SVG: `python docs/images/terminal.py "$ command" <output >svg`.

The text is drawn as it came, wrapped as a terminal of 110 columns would; only colors are added.
"""

import re
import sys
from xml.sax.saxutils import escape

COLUMNS = 110
ADVANCE, LINE, MARGIN = 8.43, 19, 16
COLORS = (
    (r"^\$ .*", "#ffffff"),
    (r"^ok(?= )", "#7ec699"),
    (r"^failed(?= )|[1-9]\d* failed", "#f47067"),
    (r"^  (contents|checks|facts|record|report|next)(?= )", "#6fb3d2"),
    (r"\d+ passed|(?<=  )verified", "#7ec699"),
    (r"^target: \w+", "#e2b86b"),
)


def wrapped(text: str) -> list[str]:
    """The lines of a text, those too long continued on the next."""
    return [
        line[start : start + COLUMNS]
        for line in text.splitlines()
        for start in range(0, max(len(line), 1), COLUMNS)
    ]


def spans(line: str) -> str:
    """A line as SVG, colored."""
    colors: list[str | None] = [None] * len(line)
    for pattern, color in COLORS:
        for match in re.finditer(pattern, line):
            colors[match.start() : match.end()] = [color] * len(match.group())
    parts, start = [], 0
    for end in range(1, len(line) + 1):
        if end == len(line) or colors[end] != colors[start]:
            fill = f' fill="{colors[start]}"' if colors[start] else ""
            parts.append(f"<tspan{fill}>{escape(line[start:end])}</tspan>")
            start = end
    return "".join(parts)


def svg(text: str) -> str:
    """The picture of a terminal that shows `text`."""
    lines = wrapped(text)
    width = round(COLUMNS * ADVANCE + 2 * MARGIN)
    height = len(lines) * LINE + 2 * MARGIN
    drawn = "\n".join(
        f'<text x="{MARGIN}" y="{MARGIN + 14 + number * LINE}" xml:space="preserve">'
        f"{spans(line)}</text>"
        for number, line in enumerate(lines)
        if line
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" font-family="ui-monospace, SFMono-Regular, Menlo, '
        'Consolas, DejaVu Sans Mono, monospace" font-size="14" fill="#c8ccd0">\n'
        f'<rect width="{width}" height="{height}" rx="8" fill="#1f2328"/>\n{drawn}\n</svg>\n'
    )


if __name__ == "__main__":
    sys.stdout.write(svg(f"{sys.argv[1]}\n{sys.stdin.read()}"))
