"""Checks the English of the pages in docs/, and how docstrings begin."""

from __future__ import annotations

import re
from pathlib import Path

# Words a page may have; others 2,600. A page above its limit is two pages.
LIMITS = {"README.md": 480, "CONTRIBUTING.md": 1300, "CHANGELOG.md": 600}
_PAGE_LIMIT = 2_600
_SENTENCE_LIMIT = 30
# Code and the targets of links, which are no prose.
_CODE = re.compile(r"```.*?```|^    .*?$|`[^`\n]*`|\]\([^)]*\)", re.DOTALL | re.MULTILINE)
_GENERATED = {"docs/xid.md", "docs/cli.md"}
_RULES = {
    r"\b(is|are) refused\b": "name who rejects it",
    r"\bso far\b": "no history",
    r"^#+ (What|Who)\b.*": "a heading names a thing",
    r"\b(flavour|catalogue[sd]?|behaviour|colour|licence|honour|favour)\b": "US spelling",
}
# A docstring names a thing or begins with an imperative.
_QUESTION = re.compile(
    r'^ *"""(What|Who|Wh(?:ether|ich|ere|en|y)|How|Of|Those|Is|Has|Does)\b.*', re.M
)


def questions(root: Path) -> list[str]:
    """Return the docstrings that begin like a question."""
    files = (f for d in ("kiln", "lab", "devel", "runtime") for f in root.glob(f"{d}/**/*.py"))
    return [f"{file}:{each[0]}" for file in files for each in _QUESTION.finditer(file.read_text())]


def problems(page: Path, root: Path) -> list[str]:
    """Return `file:line: text: what is wrong` for each sentence or word."""
    name = str(page.relative_to(root))
    text = page.read_text(encoding="utf-8")
    found = []
    words = len(text.split())
    if name not in _GENERATED and words > (limit := LIMITS.get(name, _PAGE_LIMIT)):
        found.append(f"{name}: {words} words; at most {limit}")
    if name in _GENERATED:
        return found
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
