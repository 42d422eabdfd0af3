"""Each fact names a source that a stranger can open, or says that nobody confirmed it.

A source is one or more references, separated by "; ". A reference begins with
  https://…                           a page or a file
  github:owner/name path @commit      a file at a commit (40 hexadecimal digits)
  this repository: path               a file here, which names its own sources
  measured: …                         our own measurement, described so that it can be repeated
  ours: …                             our own decision, not a fact about the world
  seen by …                           a bake of ours on AWS, which recorded it
and may go on with words. A page of a repository is at a commit or at a release's tag: a branch says
something else tomorrow, and a repository's front page is its branch. A word alone is a name in the
`sources` of the same file. An entry whose source is none of these says `confirmed: false`; `check`
then warns where a row rests on it.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from kiln.base.paths import KNOWLEDGE, ROOT

_COMMIT = r"[0-9a-f]{40}\b"
_SHORT_COMMIT = re.compile(r"(?:^|[\s(])@[0-9a-f]{7,39}\b")
_REFERENCE = re.compile(
    rf"https?://[\w.-]+\.\w+/\S+"
    rf"|github:[\w.-]+/[\w.-]+ \S+ @{_COMMIT}"
    rf"|this repository: (?P<path>[^\s;]+)"
    rf"|(measured|ours): \S|seen by \S"
)
_VAGUE = re.compile(
    r"find_string|stored (index|copy|GitHub)|public (script|consumer|note|inventory|record)s?"
    r"|from memory|source: memory|source\b.*(?<![\w.-])\d{9,12}(?![\w.])"
)

# A file or folder of a repository at a commit, tag or branch, which are the group.
_AT = re.compile(
    r"https?://github\.com/[\w.-]+/[\w.-]+/(?:blob|tree|raw|blame|edit|commits)/([^\s/#?)]+)"
    r"|https?://raw\.githubusercontent\.com/[\w.-]+/[\w.-]+/([^\s/#?)]+)/"
    r"|https?://[\w.-]+/\S+/-/(?:blob|tree|raw|blame)/([^\s/#?)]+)"
    r"|https?://[\w.-]+/\S+/src/(?:branch/)?([^\s/#?)]+)/"
    r"|https?://[\w.-]+/\S*[?&;]h=([^\s&;#)]+)"
)
# A release's branch looks like a tag: release-1.30, v1.2-stable.
_BRANCH = r"(?:release|rel|branch|stable)[-_/]?v?\d+(?:\.\d+)?$|[\w.-]*[-_](?:stable|branch|dev|x)$"
_FIXED = re.compile(rf"(?!{_BRANCH})(?:[0-9a-f]{{12,40}}|[a-zA-Z_-]*v?\d+(\.\d+)+[\w.-]*|\{{.*)")
_FRONT_PAGE = re.compile(
    r"https?://(?:github|gitlab)\.com/[\w.-]+/[\w.-]+/?(?:[#?]\S*)?(?=[\s;,)]|$)"
)

# What is called `source` and is none: Packer's plugin, and fields of a recipe.
_OTHER = {"/plugin/source"}
_FIELDS = {"cuda", "driver"}

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


class _Text(yaml.CSafeLoader):
    """Scalars stay text, so that 2.10 is not 2.1."""


_Text.yaml_implicit_resolvers = {
    letter: [pair for pair in pairs if not pair[0].endswith((":float", ":timestamp"))]
    for letter, pairs in yaml.CSafeLoader.yaml_implicit_resolvers.items()
}


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def followable(text: str, named: Any = ()) -> bool:
    """Is each part of a source a reference that a stranger can open, or a name in `named`?"""
    parts = text.split("; ")
    for part in (part.strip() for part in parts):
        match = _REFERENCE.match(part)
        if match is None and part not in named:
            return False
        if match and match["path"] and not (ROOT / match["path"]).exists():
            return False
    return not branches(text) and not _FRONT_PAGE.search(text)


def branches(text: str) -> list[str]:
    """The branches whose pages a text cites."""
    cited = (next(filter(None, match.groups())) for match in _AT.finditer(text))
    return [name for name in cited if not _FIXED.fullmatch(name)]


def sources(data: Any, at: str = "") -> Iterator[tuple[str, Any, bool]]:
    """Each source in a document: where it stands, what it says, and whether its entry says
    `confirmed: false`. `x_source` belongs to `x`, whose mark is `x_confirmed`."""
    if isinstance(data, dict):
        for key, value in data.items():
            what, _, kind = str(key).rpartition("_")
            if (
                kind in {"source", "sources"}
                and f"{at}/{key}" not in _OTHER
                and what not in _FIELDS
            ):
                marks = {"confirmed", f"{what}_confirmed"} if what else {"confirmed"}
                yield f"{at}/{key}", value, any(data.get(mark) is False for mark in marks)
            else:
                yield from sources(value, f"{at}/{key}")
    elif isinstance(data, list):
        for index, value in enumerate(data):
            yield from sources(value, f"{at}/{index}")


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
            bad = [
                f"{key}: {text}"
                for key, text in value.items()
                if not followable(str(text), () if at == "/sources" else named)
            ]
        else:
            texts = value if isinstance(value, list) else [value]
            bad = [str(text) for text in texts if not followable(str(text), named)]
        lines += [f"{at}: {text}" for text in bad]
    return lines


@cache
def load(path: Path) -> Any:
    text = path.read_text(encoding="utf-8")
    return json.loads(text) if path.suffix == ".json" else yaml.load(text, _Text)


@pytest.mark.parametrize("path", DATA, ids=name)
def test_every_source_can_be_followed_or_is_marked_unconfirmed(path):
    assert wrong(load(path), unpublished=path == LOCK) == []


@pytest.mark.parametrize("path", sorted(KNOWLEDGE.glob("*.yaml")), ids=name)
def test_every_file_of_knowledge_names_a_source(path):
    assert any(True for _ in sources(load(path)))


# Keys at the top of a file that hold no facts about the world.
_ABOUT_THE_FILE = {"schema", "as_of", "sources"}

FACTS = [
    *sorted(KNOWLEDGE.glob("*.yaml")),
    ROOT / "lab/vendors/mirror/catalogue.yaml",
    *sorted((ROOT / "lab/vendors/packages").glob("*.yaml")),
    ROOT / "lab/rootfs/basefiles/distros.yaml",
    ROOT / "lab/moto/public_images.yaml",
]


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


@pytest.mark.parametrize("path", FACTS, ids=name)
def test_every_block_of_facts_has_a_source_or_is_marked_unconfirmed(path):
    assert unsourced(load(path)) == []


# A reference in a comment: no test holds it, no reader of the data sees it. An address with a
# <name> to fill in is a form.
_CITED = re.compile(rf"(?:^|\s)#.*(?:https?://(?!\S*<)|github:|\bsource: \S|@{_COMMIT})")


def cited_in_comments(text: str) -> list[int]:
    """The numbers of the lines whose comment cites a source."""
    lines = enumerate(text.splitlines(), 1)
    return [number for number, line in lines if _CITED.search(line)]


@pytest.mark.parametrize("path", FACTS, ids=name)
def test_a_source_stands_in_a_field_and_not_in_a_comment(path):
    assert cited_in_comments(path.read_text(encoding="utf-8")) == []


def test_a_source_in_a_comment_is_found():
    lines = ["# source: a script", "a: 1  # https://example.com/a", "# plain", "# https://a/<b>/"]
    assert cited_in_comments("\n".join(lines)) == [1, 2]


def test_the_sources_of_single_fields_are_those_of_fields_that_exist():
    data = load(KNOWLEDGE / "instances.yaml")
    fields = {field for entry in data["gpus"].values() for field in entry}
    assert set(data["field_sources"]) <= fields


@pytest.mark.parametrize(
    "document",
    [
        {"source": "https://example.com/a", "block": {"a": 1}},
        {"block": {"a": 1, "source": "https://example.com/a"}},
        {"block": {"a": {"x": 1, "source": "https://example.com/a"}}},
        {"block": [{"x": 1, "confirmed": False}]},
        {"block": {"1.0": {"x": 1}}, "block_source": "https://example.com/a"},
        {"block": {"1.0": {"x": 1}}, "block_confirmed": False},
        {"schema": "kiln/x v1", "sources": {"notes": "https://example.com/n"}},
    ],
)
def test_a_source_counts_for_all_that_stands_beside_and_below_it(document):
    assert unsourced(document) == []


@pytest.mark.parametrize(
    ("document", "where"),
    [
        ({"block": {"1.0": 1}}, "/block/1.0"),
        ({"sources": {"notes": "https://example.com/n"}, "block": 1}, "/block"),
        ({"block": [{"x": 1, "source": "https://example.com/a"}, {"x": 2}]}, "/block/1/x"),
        ({"block": 1, "block_confirmed": True}, "/block"),
        ({"block": 1, "other_source": "https://example.com/a"}, "/block"),
        ({"block": {"x": 1, "source": None}}, "/block/x"),
        ({"block": 1, "block_source": None}, "/block"),
    ],
)
def test_a_block_without_a_source_is_named(document, where):
    assert unsourced(document) == [where]


@pytest.mark.parametrize("key", load(KNOWLEDGE / "keys.yaml")["keys"])
def test_a_signing_key_has_two_independent_sources_or_is_marked_unconfirmed(key):
    entry = load(KNOWLEDGE / "keys.yaml")["keys"][key]
    assert trusted(entry) or entry.get("confirmed") is False


def trusted(entry: dict[str, Any]) -> bool:
    """Do two sources of different origin (host or repository) name the key's fingerprint?"""
    texts = entry.get("sources", [])
    if not isinstance(texts, list) or not all(followable(text) for text in texts):
        return False
    return len({_origin(text) for text in texts}) >= 2


# AWS's documentation and the repositories that its pages were written in.
_AWS_DOCUMENTATION = re.compile(r"https?://docs\.aws\.amazon\.com/|github:awsdocs/")


def _origin(text: str) -> str:
    if _AWS_DOCUMENTATION.match(text):
        return "AWS's documentation"
    return re.match(r"https?://[^/]+|github:\S+|\S+", text)[0]


def lines_of_all_texts() -> Iterator[tuple[str, str]]:
    """(file and number, line) of each text that git knows here, besides this one."""
    kinds = [f"*.{kind}" for kind in ("yaml", "json", "jsonl", "py", "sh", "md", "j2", "conf")]
    listed = subprocess.run(
        ["git", "ls-files", *kinds, "runtime"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    for path in listed:
        if path != name(Path(__file__)) and (ROOT / path).is_file():
            text = (ROOT / path).read_text(encoding="utf-8")
            for number, line in enumerate(text.splitlines(), 1):
                yield f"{path}:{number}", line


def test_no_text_cites_what_nobody_can_open():
    vague = [
        f"{at}: {line.strip()[:120]}" for at, line in lines_of_all_texts() if _VAGUE.search(line)
    ]
    assert vague == []


def test_a_text_cites_a_commit_in_full():
    short = [f"{at}: {line.strip()}" for at, line in lines_of_all_texts() if shortened(line)]
    assert short == []


def test_a_shortened_commit_is_found():
    assert shortened("# github:a/b c/d.go @99984adb6164")
    assert not shortened("# github:a/b c/d.go @99984adb6164ece593c0728523b7f497ea61d60e")


def shortened(line: str) -> bool:
    return _SHORT_COMMIT.search(line) is not None


def test_no_text_cites_a_branch_which_changes_every_day():
    assert [(at, branches(line)) for at, line in lines_of_all_texts() if branches(line)] == []


@pytest.mark.parametrize(
    "text",
    [
        "https://docs.nvidia.com/deploy/xid-errors/index.html",
        "github:aws/amazon-ecs-ami a/b.sh @0123456789abcdef0123456789abcdef01234567",
        "https://example.com/a (the table); github:a/b c @0123456789abcdef0123456789abcdef01234567",
        "measured: compiled on 2026-11-20",
        "ours: a wording",
        "this repository: docs/design.md",
        "https://github.com/hashicorp/packer/blob/v1.15.1/CHANGELOG.md",
        "https://github.com/a/b/tree/17a2f4ef4e522853d2157dc3b31a444197f1a68b/c (the folder)",
        "https://github.com/a/b/issues/4; https://github.com/a/b/tags",
    ],
)
def test_a_source_that_can_be_followed_is_accepted(text):
    assert followable(text)


@pytest.mark.parametrize(
    "text",
    [
        "a public script",
        "find_string 70180730188",
        "70180730188",
        "github:aws/amazon-ecs-ami scripts/enable-services.sh",
        "github:aws/amazon-ecs-ami @a2532d3503f2",
        "github:aws/amazon-ecs-ami scripts/enable-services.sh @a2532d3503f2",
        "aws/amazon-ecs-ami",
        "https://example.com/a; and a public script",
        "this repository: docs/nowhere.md",
        "memory",
        "",
        "https://github.com/a/b/blob/main/c.md",
        "https://github.com/a/b/blob/release-1.30/c.md",
        "https://github.com/a/b/tree/v1.2-stable/c",
        "https://github.com/a/b/blob/535/c.md",
        "https://example.com/a; https://github.com/a/b/tree/master/c (the folder)",
        "https://raw.githubusercontent.com/a/b/HEAD/c.md",
        "https://gitlab.com/a/b/-/blob/main/c.md",
        "https://git.example.com/a/b/src/branch/trunk/c.md",
        "https://git.example.com/a.git/tree/c?h=stable",
        "https://github.com/a/b#build",
        "https://github.com/a/b",
    ],
)
def test_a_source_that_nobody_can_open_is_refused(text):
    assert not followable(text)


def test_an_entry_without_a_followable_source_passes_only_when_it_is_marked():
    assert wrong({"facts": [{"value": 1, "source": "a public script"}]}) == [
        "/facts/0/source: a public script"
    ]
    assert wrong({"facts": [{"value": 1, "source": "hearsay", "confirmed": False}]}) == []
    assert wrong({"sources": {"notes": "https://example.com/n"}, "a": {"source": "notes"}}) == []
    assert wrong({"sources": {"notes": "somebody"}}) == ["/sources: notes: somebody"]


@pytest.mark.parametrize(
    ("document", "line"),
    [
        ({"al2023": {"first": "1.25.0", "source": None}}, "/al2023/source: None"),
        ({"floors": {"12.4": "550"}, "floors_source": None}, "/floors_source: None"),
        ({"key": {"sources": [None]}}, "/key/sources: None"),
        ({"sources": {"notes": None}}, "/sources: notes: None"),
    ],
)
def test_a_source_that_is_null_is_refused(document, line):
    assert wrong(document) == [line]


def test_the_lock_may_say_with_null_that_no_hash_was_published():
    assert wrong({"artifacts": [{"sha256": None, "source": None}]}, unpublished=True) == []


@pytest.mark.parametrize(
    "entry",
    [
        {"sources": ["https://example.com/key"]},
        {"sources": ["https://example.com/key", "https://example.com/other"]},
        {"sources": ["https://example.com/key", "two public scripts"]},
        {"source": "https://example.com/key"},
        {
            "sources": [
                "https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-start.html",
                "github:awsdocs/a-guide doc_source/a.md @0147f878dcbad26b1151a12701a773743f0cd496",
            ]
        },
    ],
)
def test_a_key_with_fewer_than_two_independent_sources_is_not_trusted(entry):
    assert not trusted(entry)
