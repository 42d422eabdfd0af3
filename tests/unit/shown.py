"""Compares what a page shows of a command with what the command prints."""

from __future__ import annotations

import re

# What differs from run to run → what stands for it.
_VARIES = (
    (r"\b\d{8}T\d{6}Z-[0-9a-f]{4}\b", "RUN"),
    (r"\b(ami|i|sg|subnet)-[0-9a-f]{8,17}\b", r"\1-ID"),
    (r"\b[0-9a-f]{64}\b", "DIGEST"),
    (r" +\d+\.\d s\b", " SECONDS"),
    # How many checks and facts there are changes with the project.
    (r"\b\d+ (passed|skipped|unconfirmed)\b", r"N \1"),
    (r"\S*/([a-z0-9]+-[\w.-]+/RUN/)", r"build/\1"),
)
# What changes with the matrix: its versions, and how many steps a bake has.
_OF_THE_MATRIX = (
    (r"(?<![\d.])\d+(\.\d+)+(?![\d.])", "VERSION"),
    (r"^ *\d+\. ", "N. "),
    (r" {2,}", "  "),
)
GAP = "…"


def plain(text: str, *, any_version: bool = False) -> list[str]:
    """The lines of an output without what differs from run to run, and without a run's remark that
    it is still waiting, which only a busy machine makes; with `any_version` also without what a
    new version of a stack, or a new component, changes."""
    for pattern, word in (*_VARIES, *(_OF_THE_MATRIX if any_version else ())):
        text = re.sub(pattern, word, text, flags=re.MULTILINE)
    return [
        line.rstrip() for line in text.splitlines() if not re.match(r" +waiting for .*: \d", line)
    ]


def difference(shown: str, printed: str, *, any_version: bool = False) -> str:
    """The first line of a page's block that the output does not have at that place; empty if it has
    all. A line `…` stands for any number of lines; with `any_version` a page may show the versions
    of an earlier day."""
    wanted = plain(shown, any_version=any_version)
    lines = plain(printed, any_version=any_version)
    at, gap = 0, False
    for line in wanted:
        if line.strip() == GAP:
            gap = True
            continue
        place = lines.index(line, at) if gap and line in lines[at:] else at
        if place >= len(lines) or lines[place] != line:
            return f"{line!r} is shown where this is printed: {lines[at : at + 1]}"
        at, gap = place + 1, False
    return "" if gap or at == len(lines) else f"this is printed at the end: {lines[at:]}"


def blocks(page: str) -> dict[str, str]:
    """Command → the output that a page shows below it, for each block of one command."""
    text = r"(?:(?!```).)*?"  # what the page says between the two
    command = r"^```\n(\./invoke [^\n]+)\n```\n"
    return dict(
        re.findall(rf"{command}\n(?:{text})```\n({text})^```", page, re.MULTILINE | re.DOTALL)
    )


_BUILD = re.compile(r"\./invoke build((?: +--[\w-]+(?: +(?!--)[\w.-]+)?)+)")
_FLAG = re.compile(r"--([\w-]+)(?: +(?!--)([\w.-]+))?")
_OF_ROWS = ("name", "distro", "driver", "cuda", "kernel-module", "flavor", "arch")


def selections(page: str) -> list[dict[str, str]]:
    """The flags that select a row in each `./invoke build` of a page, as `select` takes them;
    without those of `--all`, and of placeholders such as NAME."""
    chosen = []
    for words in _BUILD.findall(page):
        flags = dict(_FLAG.findall(words))
        row = {name.replace("-", "_"): flags[name] for name in _OF_ROWS if name in flags}
        if row and "all" not in flags and not any(value.isupper() for value in row.values()):
            chosen.append(row)
    return chosen
