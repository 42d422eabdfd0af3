"""Do the links of a Markdown page lead somewhere in this checkout?"""

from __future__ import annotations

import re
from pathlib import Path

_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)(?:\s+\"[^\"]*\")?\)")
_CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)


def pages(root: Path) -> list[Path]:
    """The Markdown pages for people: those at the root, and docs/."""
    return [*sorted(root.glob("*.md")), *sorted((root / "docs").glob("*.md"))]


def broken(page: Path, root: Path) -> list[str]:
    """`file:line: what` for each link of a page to a file or heading that is not there.

    Links to the web are checked for their form alone: a test must not need the network.
    """
    text = page.read_text(encoding="utf-8")
    found = []
    for match in _LINK.finditer(_blanked(text)):
        target = match.group(1)
        line = text.count("\n", 0, match.start()) + 1
        why = _wrong(target, page)
        if why:
            found.append(f"{page.relative_to(root)}:{line}: {target}: {why}")
    return found


def headings(page: Path) -> set[str]:
    """The anchors of a page, as GitHub makes them from its headings."""
    anchors = set()
    for line in _blanked(page.read_text(encoding="utf-8"), inline=False).splitlines():
        match = re.match(r"#+\s+(.*)", line)
        if match:
            plain = re.sub(r"[^\w\- ]", "", match.group(1).strip().lower())
            anchors.add(plain.replace(" ", "-"))
    return anchors


def _wrong(target: str, page: Path) -> str:
    if re.match(r"[a-z]+:", target):
        return "" if re.match(r"(https://[\w.-]+\.[a-z]+(/|$|#)|mailto:)", target) else "not https"
    path, _, anchor = target.partition("#")
    file = page if not path else (page.parent / path)
    if not file.exists():
        return "no such file"
    if anchor and file.suffix == ".md" and anchor not in headings(file):
        return "no such heading"
    return ""


def _blanked(text: str, *, inline: bool = True) -> str:
    """The text with code replaced by blanks, so that places stay."""

    def blank(match: re.Match[str]) -> str:
        if not inline and not match.group().startswith("```"):
            return match.group()
        return re.sub(r"[^\n]", " ", match.group())

    return _CODE.sub(blank, text)
