"""Checks the English of the pages (length, spelling, style), and how docstrings begin."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

# Words that are planned for a page; one above 110 % is two pages. README may have no more.
PLAN = {
    **{"CONTRIBUTING": 900, "CHANGELOG": 550, "SECURITY": 190, "index": 150, "first-image": 700},
    **{"first-aws-image": 1000, "matrix": 700, "overlay": 900, "add-a-distribution": 450},
    **{"your-account": 1000, "publish": 1400, "catalog": 400, "nightly": 1000, "launch": 800},
    **{"mig": 1650, "telemetry-xid": 1500, "telemetry-cloudwatch": 1800, "telemetry-stack": 600},
    **{"fleet": 650, "verify": 450, "edit-loops": 450, "ci": 650, "preflight": 400, "lab": 1800},
    **{"uninstall": 200, "troubleshooting": 1800, "iam": 650, "records": 1350, "security": 1300},
    **{"provisioners": 900, "compatibility": 650, "comparison": 600, "design": 2400},
    **{"lab-stand-ins": 2400},
}
README_LIMIT = 450
# Of all pages but xid.md, and of the generated ones among them.
TOTAL, GENERATED_TOTAL = 43_000, 8_000
_SENTENCE_LIMIT = 30
# Code and the targets of links, which are no prose.
_CODE = re.compile(r"```.*?```|^    .*?$|`[^`\n]*`|\]\([^)]*\)", re.DOTALL | re.MULTILINE)
_XID = "docs/xid.md"
_GENERATED = {
    *("docs/amis-yaml.md", "docs/cli.md", "docs/components.md", "docs/environment.md"),
    *("docs/rules.md", "docs/test-status.md", _XID),
}
_RULES = {
    r"\b(is|are) refused\b": "name who rejects it",
    r"\bso far\b": "no history",
    r"^#+ (What|Who)\b.*": "a heading names a thing",
    r"\b(flavour|catalogue[sd]?|behaviour|colour|licence|honour|favour)\b": "US spelling",
}
# A docstring names a thing or begins with an imperative.
_QUESTION = re.compile(r'^ *"""(Wh(at|o|ether|ich|ere|en|y)|How|Of|Those|Is|Has|Does)\b.*', re.M)


def questions(root: Path) -> list[str]:
    """Return the docstrings that begin like a question."""
    files = (f for d in ("kiln", "lab", "devel", "runtime") for f in root.glob(f"{d}/**/*.py"))
    return [f"{file}:{each[0]}" for file in files for each in _QUESTION.finditer(file.read_text())]


def problems(page: Path, root: Path) -> list[str]:
    """Return `file:line: text: what is wrong` for each sentence or word."""
    name = str(page.relative_to(root))
    text = page.read_text(encoding="utf-8")
    found: list[str] = []
    if name == _XID:  # NVIDIA's words
        return found
    limit = README_LIMIT if name == "README.md" else PLAN.get(page.stem, 0) * 11 // 10
    if name not in _GENERATED and (words := len(text.split())) > limit:
        found.append(f"{name}: {words} words; at most {limit} (devel/prose.py)")
    prose = _CODE.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)
    for pattern, advice in _RULES.items():
        for match in re.finditer(pattern, prose, re.MULTILINE | re.IGNORECASE):
            line = prose.count("\n", 0, match.start()) + 1
            found.append(f"{name}:{line}: {match[0].strip()}: {advice}")
    for paragraph in re.finditer(r"(?:^[^\n|#].*\n?)+", prose, re.MULTILINE):
        for sentence in re.split(r"(?<=[.:;?!])\s|\n- |\n\d+\. ", paragraph[0]):
            if (count := len(sentence.split())) > _SENTENCE_LIMIT:
                line = prose.count("\n", 0, paragraph.start()) + 1
                found.append(
                    f"{name}:{line}: a sentence of {count} words: {' '.join(sentence.split())[:60]}"
                )
    return found


def too_long(pages: Iterable[Path], root: Path) -> list[str]:
    """Return what is wrong with the length of all pages together."""
    words = {
        name: len(page.read_text(encoding="utf-8").split())
        for page in pages
        if (name := str(page.relative_to(root))) != _XID
    }
    generated = sum(count for name, count in words.items() if name in _GENERATED)
    return [
        f"{what}: {count} words; at most {limit}"
        for what, count, limit in (
            ("all pages", sum(words.values()), TOTAL),
            ("generated pages", generated, GENERATED_TOTAL),
        )
        if count > limit
    ]
