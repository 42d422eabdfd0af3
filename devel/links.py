"""Checks that the links of a Markdown page have a target in this checkout."""

from __future__ import annotations

import re
from pathlib import Path

_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)(?:\s+\"[^\"]*\")?\)")
_CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)


def pages(root: Path) -> list[Path]:
    """The Markdown pages for people: those at the root, and docs/."""
    return [*sorted(root.glob("*.md")), *sorted((root / "docs").glob("*.md"))]


def broken(page: Path, root: Path) -> list[str]:
    """`file:line: link: problem` for each link to a file or heading that does not exist.

    Links to the web are only checked for their form, because a test must not need the network.
    """
    text = page.read_text(encoding="utf-8")
    problems = []
    for match in _LINK.finditer(_blanked(text)):
        target = match.group(1)
        line = text.count("\n", 0, match.start()) + 1
        problem = _problem(target, page)
        if problem:
            problems.append(f"{page.relative_to(root)}:{line}: {target}: {problem}")
    return problems


def headings(page: Path) -> set[str]:
    """The anchors of a page, as GitHub makes them from its headings."""
    anchors = set()
    for line in _blanked(page.read_text(encoding="utf-8"), inline=False).splitlines():
        match = re.match(r"#+\s+(.*)", line)
        if match:
            plain = re.sub(r"[^\w\- ]", "", match.group(1).strip().lower())
            anchors.add(plain.replace(" ", "-"))
    return anchors


def _problem(target: str, page: Path) -> str:
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
    """The text with code replaced by blanks, so that positions stay the same."""

    def blank(match: re.Match[str]) -> str:
        if not inline and not match.group().startswith("```"):
            return match.group()
        return re.sub(r"[^\n]", " ", match.group())

    return _CODE.sub(blank, text)
