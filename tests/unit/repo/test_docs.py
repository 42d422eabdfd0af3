"""What the pages name exists: tasks, flags, variables, files, rows, messages, keys of records."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable

import pytest

import tasks
from devel import links
from kiln.base import account
from kiln.base.paths import ROOT
from kiln.cli.task import flag
from kiln.matrix.flags import select
from kiln.matrix.load import load_recipes
from kiln.pipeline.record import Record
from tests.unit import shown

PAGES = {str(path.relative_to(ROOT)): path.read_text() for path in links.pages(ROOT)}
FOLDERS = ("devel", "kiln", "lab", "provisioners", "runtime", "templates", "setup")
# A call ends where the shell's next word is another's, or the inline code ends.
CALL = re.compile(r"\./invoke((?: +(?![|&>;#])[^\s`|&;)]+)*)")
FLAG = re.compile(r"--?[a-z][\w-]*")
TASKS = {
    "": {"--help", "--list", "--version"},
    **{
        name: {flag(each.name) for each in task.get_arguments()} | {"--help"}
        for name, task in tasks.ns.tasks.items()
    },
}


def code(*folders: str) -> str:
    """The project's source, literals that stand side by side joined as Python joins them."""
    files = [ROOT / "invoke", ROOT / "tasks.py"]
    for folder in folders:
        kinds = {".py", ".sh", ".yaml", ".j2"}
        files += [path for path in (ROOT / folder).rglob("*") if path.suffix in kinds]
    text = "\n".join(path.read_text(errors="replace") for path in files)
    return re.sub(r'"\s*\n\s*\+?\s*f?"', "", text)


CODE = code(*FOLDERS)
VARIABLES = {*re.findall(r"\bKILN_\w+", CODE + code("tests"))} - {"KILN_MATRICES"}
VARIABLES |= {each for name in account.SETTINGS for each in account.variables(name)}


def calls(text: str) -> list[tuple[str, set[str]]]:
    """Each ./invoke in a text: the task and its flags."""
    result = []
    for words in (match.group(1).split() for match in CALL.finditer(text)):
        plain = [word for word in words if not word.startswith("-")]
        if words[:1] in (["help"], ["--help"]):
            result.append((plain[-1] if plain and plain != ["help"] else "", set()))
        elif words:
            name = "" if words[0].startswith("-") else words[0]
            result.append((name, {found[0] for word in words if (found := FLAG.match(word))}))
    return result


def wrong_calls(text: str) -> list[str]:
    """The calls of a text that `./invoke` would refuse."""
    return [
        f"{name} {' '.join(sorted(flags - TASKS.get(name, set())))}"
        for name, flags in calls(text)
        if name not in TASKS or flags - TASKS[name]
    ]


def unread_variables(text: str) -> list[str]:
    return sorted({*re.findall(r"\bKILN_[A-Z_]*[A-Z]\b", text)} - VARIABLES)


# A whole word: not the end of a longer path, not a pattern, not a placeholder.
TOP = "|".join((*FOLDERS, "tests", "docs", "packer"))
QUOTED_PATH = re.compile(rf"`((?:{TOP}|\.ci)/[\w./*-]*)`")
BLOCK_PATH = re.compile(rf"(?<![^\s`'\"(=])((?:{TOP})/[\w./-]+)(?![\w./*<{{$-])")
BLOCK = re.compile(r"^ *```[^\n]*\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
# x and acme-baseline are any component.
EXAMPLE = re.compile(r"[/_](x|acme[-_]baseline)\.\w+$")


def missing_files(text: str) -> list[str]:
    """The repository's files that a page names, in its text or its blocks, and has not."""
    named = QUOTED_PATH.findall(text)
    named += [path for block in BLOCK.findall(text) for path in BLOCK_PATH.findall(block)]
    paths = [path.rstrip("./") for path in named if not EXAMPLE.search(path)]
    return [path for path in paths if not list(ROOT.glob(path))]


@pytest.mark.parametrize("find", [wrong_calls, unread_variables, missing_files])
def test_every_name_on_a_page_exists(find: Callable[[str], list[str]]) -> None:
    wrong = {page: found for page, text in PAGES.items() if (found := find(text))}
    assert wrong == {}


@pytest.mark.parametrize(
    ("find", "text", "wrong"),
    [
        (wrong_calls, "(`./invoke build --distrib al2`)", ["build --distrib"]),
        (wrong_calls, "./invoke lab.up --no-install    # not --force", []),
        (unread_variables, "`KILN_MATRIX`, KILN_MATRICES=1", ["KILN_MATRICES"]),
        (missing_files, "```sh\nbash provisioners/gone.sh\n```\n", ["provisioners/gone.sh"]),
    ],
)
def test_wrong_name_on_a_page_is_found(
    find: Callable[[str], list[str]], text: str, wrong: list[str]
) -> None:
    assert find(text) == wrong


def test_troubleshooting_quotes_messages_of_the_program() -> None:
    headings = re.findall(r"^### (.*`.*)$", PAGES["docs/troubleshooting.md"], re.MULTILINE)
    assert headings
    for heading in headings:
        text = "…".join(re.findall(r"`([^`]+)`", heading))
        # Places, quoted values, names of rules and tags are examples.
        text = re.sub(r"^[\w.]+:\d+:\d+: |'[^']*'|\bDRV-\w+|\.zip|error: |kiln:\w+", "…", text)
        parts = [part.strip(" :(),[]") for part in text.split("…")]
        assert [part for part in parts if len(part) > 8 and part not in CODE] == [], heading


def test_records_page_explains_every_key() -> None:
    def explained(text: str) -> set[str]:
        rows = re.findall(r"^\| (`.*?) \|", text, re.MULTILINE)
        return {key for row in rows for key in re.findall(r"`(\w+)`", row)}

    record, version_info = PAGES["docs/records.md"].split("## version-info.json")
    assert explained(record) == {field.name for field in dataclasses.fields(Record)}
    schema = json.loads((ROOT / "docs/record.schema.json").read_text())
    assert explained(version_info.split("##")[0]) == {*schema["$defs"]["VersionInfo"]["properties"]}


def test_environment_page_lists_every_variable() -> None:
    read = set(re.findall(r"\bKILN_[A-Z0-9_]*[A-Z0-9]\b", code("kiln", "lab", "devel", "setup")))
    assert read - set(re.findall(r"\w+", PAGES["docs/environment.md"])) == set()


def test_build_on_a_page_is_of_a_single_row() -> None:
    # The rows of these are in the overlays that they show.
    others = {"docs/overlay.md", "docs/add-a-distribution.md", "CHANGELOG.md"}
    chosen = [flags for page in PAGES.keys() - others for flags in shown.selections(PAGES[page])]
    assert chosen
    for flags in chosen:
        assert len(select(load_recipes(ROOT / "amis.yaml"), **flags)) == 1
