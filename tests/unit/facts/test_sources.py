"""Each fact names a source that a stranger can open, or says that nobody confirmed it.

A source is one or more references, separated by "; ". A reference begins with
  https://…                           a page or a file
  github:owner/name path @commit      a file at a commit (40 hexadecimal digits)
  this repository: path               a file here, which names its own sources
  measured: …                         our own measurement, described so that it can be repeated
  ours: …                             our own decision, not a fact about the world
  seen by …                           a bake of ours on AWS, which recorded it
and may go on with words. A page of a repository is at a commit or at a release's tag. A word alone
is a name in the `sources` of the same file. An entry whose source is none of these says
`confirmed: false`; `check --strict` then lists it where a row rests on it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from kiln.base.paths import KNOWLEDGE, ROOT
from kiln.base.yaml_files import parse_plain

_REFERENCE = re.compile(
    r"https?://[\w.-]+\.\w+/\S+"
    r"|github:[\w.-]+/[\w.-]+ \S+ @[0-9a-f]{40}\b"
    r"|this repository: (?P<path>[^\s;]+)"
    r"|(measured|ours): \S|seen by \S"
)
# A page of a branch, which says something else tomorrow.
_BRANCH = re.compile(r"/(?:blob|tree|raw|branch)/(?:main|master|HEAD|trunk|develop|release-)")
# What is called `source` and is none: Packer's plugin, and fields of a recipe.
_OTHER = {"/plugin/source"}
_FIELDS = {"cuda", "driver"}
# Keys at the top of a file that hold no facts about the world.
_ABOUT_THE_FILE = {"schema", "as_of", "sources"}
LOCK = ROOT / "amis.lock.yaml"
# What holds facts: kiln's knowledge, the lab's tables, the lock, and what ships on an AMI.
DATA = [
    *sorted(
        path
        for pattern in ("*.yaml", "*.json")
        for folder in (KNOWLEDGE, ROOT / "lab", ROOT / "runtime")
        for path in folder.rglob(pattern)
        # Templates of packages and payloads of stand-ins hold no facts and are not plain YAML.
        if not {"recipes", "payloads"} & set(path.parts)
    ),
    LOCK,
]
FACTS = [
    *sorted(KNOWLEDGE.glob("*.yaml")),
    ROOT / "lab/vendors/mirror/catalog.yaml",
    *sorted((ROOT / "lab/vendors/packages").glob("*.yaml")),
    ROOT / "lab/rootfs/basefiles/distros.yaml",
    ROOT / "lab/moto/public_images.yaml",
]


@cache
def load(path: Path) -> Any:
    return parse_plain(path.read_text(encoding="utf-8"), path.name, versions_as_text=True)


def followable(text: str, named: Any = ()) -> bool:
    """Is each part of a source a reference that a stranger can open, or a name in `named`?"""
    for part in (part.strip() for part in text.split("; ")):
        match = _REFERENCE.match(part)
        if match is None and part not in named:
            return False
        if match and match["path"] and not (ROOT / match["path"]).exists():
            return False
    return not _BRANCH.search(text)


def sources(data: Any, at: str = "") -> Iterator[tuple[str, Any, bool]]:
    """Each source in a document: where it stands, what it says, and whether its entry says
    `confirmed: false`. `x_source` belongs to `x`, whose mark is `x_confirmed`."""
    if isinstance(data, list):
        for index, value in enumerate(data):
            yield from sources(value, f"{at}/{index}")
    for key, value in data.items() if isinstance(data, dict) else ():
        what, _, kind = str(key).rpartition("_")
        is_source = kind in {"source", "sources"} and what not in _FIELDS
        if is_source and f"{at}/{key}" not in _OTHER:
            marks = {"confirmed", f"{what}_confirmed"} if what else {"confirmed"}
            yield f"{at}/{key}", value, any(data.get(mark) is False for mark in marks)
        else:
            yield from sources(value, f"{at}/{key}")


def wrong(document: Any, unpublished: bool = False) -> list[str]:
    """The sources of a document that cannot be followed and are not marked, one line each.

    `unpublished`: null is accepted, with which the lock says that nothing was published.
    """
    named = document.get("sources", {}) if isinstance(document, dict) else {}
    lines = []
    for at, value, unconfirmed in sources(document):
        if unconfirmed or (unpublished and value is None):
            continue
        if isinstance(value, dict):  # the file's own names, or one source per field
            names = () if at == "/sources" else named
            texts = [text for text in value.values() if not followable(str(text), names)]
        else:
            each = value if isinstance(value, list) else [value]
            texts = [text for text in each if not followable(str(text), named)]
        lines += [f"{at}: {text}" for text in texts]
    return lines


def unsourced(value: Any, at: str = "") -> list[str]:
    """The parts of a document that neither name a source nor say `confirmed: false`.

    A `source` counts for all that stands beside and below it, `x_source` and `x_confirmed` for x;
    null counts for nothing.
    """
    if isinstance(value, list) and value:
        return [line for n, item in enumerate(value) for line in unsourced(item, f"{at}/{n}")]
    if not isinstance(value, dict) or not value:
        return [at]
    own = {"source", "default_source"} | ({"sources"} if at else set())
    if any(value.get(key) for key in own) or value.get("confirmed") is False:
        return []
    return [
        line
        for key, item in value.items()
        if (at or key not in _ABOUT_THE_FILE)
        and key not in own
        and not str(key).endswith(("_source", "_confirmed"))
        and not value.get(f"{key}_source")
        and value.get(f"{key}_confirmed") is not False
        for line in unsourced(item, f"{at}/{key}")
    ]


def test_every_source_can_be_followed_or_is_unconfirmed() -> None:
    found = {path: wrong(load(path), unpublished=path == LOCK) for path in DATA}
    assert {path: lines for path, lines in found.items() if lines} == {}


def test_every_fact_has_a_source_or_is_unconfirmed() -> None:
    found = {path: unsourced(load(path)) for path in FACTS}
    assert {path: lines for path, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    ("text", "good"),
    [
        ("github:aws/amazon-ecs-ami a/b.sh @0123456789abcdef0123456789abcdef01234567", True),
        ("github:aws/amazon-ecs-ami scripts/enable-services.sh @a2532d3503f2", False),
        ("https://example.com/a; measured: compiled on 2026-11-20", True),
        ("https://example.com/a; and a public script", False),
        ("https://github.com/a/b/blob/release-1.30/c.md", False),
        ("this repository: docs/nowhere.md", False),
    ],
)
def test_source_is_one_that_a_stranger_can_open(text: str, good: bool) -> None:
    assert wrong({"facts": [{"value": 1, "source": text, "confirmed": False}]}) == []
    assert (wrong({"facts": [{"value": 1, "source": text}]}) == []) is good
    assert unsourced({"block": [{"x": 1, "source": text}, {"x": 2}]}) == ["/block/1/x"]
