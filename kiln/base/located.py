"""YAML that remembers where each value stands, so that an error can name line and column."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.reader import ReaderError

from kiln.base.errors import KilnError
from kiln.base.findings import Finding, Place
from kiln.base.vocabulary import masked

Path_ = tuple[str | int, ...]
Mark = tuple[int, int]

# Versions are text: YAML would read `cuda: 12.10` as the number 12.1 and `510e3` as 510000.
_KEPT_AS_TEXT = ("tag:yaml.org,2002:float", "tag:yaml.org,2002:timestamp")


@dataclass(frozen=True)
class Located:
    """A YAML document: its plain data, and line and column (from 1) of every value and key."""

    file: str
    data: Any
    values: dict[Path_, Mark]
    keys: dict[Path_, Mark]

    def mark(self, path: Path_) -> Mark:
        """Line and column of the value at `path`, or of the nearest parent that exists."""
        for end in range(len(path), -1, -1):
            if path[:end] in self.values:
                return self.values[path[:end]]
        return (1, 1)

    def place(self, path: Path_) -> Place:
        """Where the value at `path` stands."""
        return Place(self.file, *self.mark(path), dotted(path))

    def key_place(self, path: Path_) -> Place:
        """Where the key at `path` stands; its value if it has no key."""
        return Place(self.file, *self.keys.get(path, self.mark(path)), dotted(path))

    def place_of_text(self, text: str) -> Place | None:
        """Where this text stands as a value, for the first time; None if it does not."""
        for path in self.values:
            value = self.data
            for part in path:
                value = value[part]
            if value == text:
                return self.place(path)
        return None

    def at(self, path: Path_) -> str:
        """`file:line:column` of the value at `path`."""
        return str(self.place(path))


def dotted(path: Path_) -> str:
    """A path as people write it: stacks.lts.driver. A URL in it has no user and password."""
    return masked(".".join(map(str, path)), whole=True)


def load_yaml(path: Path, shown_as: str | None = None) -> Located:
    """Read a YAML file.

    Raises KilnError (exit status 2) when the file is missing or is not the YAML that `parse` takes.
    """
    name = shown_as or path.name
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise KilnError(
            f"{path}: no such file",
            hint="create it, or run from the checkout",
            place=Place(str(path)),
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise KilnError(f"{path}: cannot be read: {error}", place=Place(str(path))) from None
    return parse_yaml(text, name)


# Reading the matrix takes a twentieth of a second; a publication asks for it in each region.
@lru_cache(maxsize=16)
def parse_yaml(text: str, name: str) -> Located:
    """Like `load`, from text. `name` is how errors call the file.

    The same text gives the same document, which must not be changed. Dates and numbers with a dot
    stay text, so that a version is kept as written. Raises KilnError (exit status 2) with
    `file:line:column` for invalid YAML, a duplicate key,
    a key that is not a scalar and a merge key.
    """
    yaml = YAML(typ="safe", pure=True)
    # The version whose `yes` and `on` are booleans, as most editors and tools expect.
    yaml.version = (1, 1)
    reading = _Reading(yaml, name)
    try:
        node = yaml.compose(text)
        data = reading.plain(node, ()) if node is not None else {}
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise _refused(
            Place(name, mark.line + 1, mark.column + 1) if mark else Place(name),
            f"not valid YAML: {error.problem or error.context}",
            "check indentation, quotes and colons on this line and the one above",
        ) from None
    except ReaderError as error:
        before = text[: error.position]
        column = len(before) - before.rfind("\n")
        raise _refused(
            Place(name, before.count("\n") + 1, column),
            f"not valid YAML: {str(error).splitlines()[0]}",
        ) from None
    except YAMLError as error:
        raise _refused(Place(name), f"not valid YAML: {str(error).splitlines()[0]}") from None
    return Located(name, data, reading.values, reading.keys)


@dataclass
class _Reading:
    """From ruamel.yaml's nodes to plain data, with the marks of values and keys beside it."""

    yaml: YAML
    name: str
    values: dict[Path_, Mark] = field(default_factory=dict)
    keys: dict[Path_, Mark] = field(default_factory=dict)

    def plain(self, node: Node, path: Path_, mark: Mark | None = None) -> Any:
        """The data of a node; an alias (`*name`) is expanded at each use.

        `mark` is where the value stands, if that is not where the node begins.
        """
        mark = mark or _start(node)
        self.values[path] = mark
        if isinstance(node, MappingNode):
            return self._mapping(node, path)
        if isinstance(node, SequenceNode):
            return [self.plain(item, (*path, index)) for index, item in enumerate(node.value)]
        return self._scalar(node)

    def _mapping(self, node: MappingNode, path: Path_) -> dict[str, Any]:
        mapping: dict[str, Any] = {}
        for key_node, value_node in node.value:
            place = Place(self.name, *_start(key_node))
            if not isinstance(key_node, ScalarNode):
                raise _refused(place, "a key must be one word", "is a colon missing?")
            key = str(key_node.value)
            here = (*path, key)
            if key == "<<":
                raise _refused(
                    place,
                    "merge keys (<<) are not supported",
                    "write the values out, or put them into `defaults`",
                )
            if key in mapping:
                line, column = self.keys[here]
                raise _refused(
                    place,
                    f"{key!r} is a duplicate key (first at line {line}, column {column})",
                    "keep one of them",
                )
            self.keys[here] = _start(key_node)
            mapping[key] = self.plain(value_node, here, _if_empty(value_node, key_node))
        return mapping

    def _scalar(self, node: Node) -> Any:
        if node.tag in _KEPT_AS_TEXT:
            return node.value
        try:
            return self.yaml.constructor.construct_object(node)
        except (ValueError, KeyError):  # a number of thousands of digits, `!!bool maybe`
            return node.value


def _start(node: Node) -> Mark:
    return (node.start_mark.line + 1, node.start_mark.column + 1)


def _if_empty(value: Node, key: Node) -> Mark | None:
    """Where a missing value belongs: behind its key's colon. ruamel.yaml marks the next token."""
    if value.start_mark.index != value.end_mark.index:
        return None
    return (key.end_mark.line + 1, key.end_mark.column + 2)


def _refused(place: Place, what: str, hint: str = "") -> KilnError:
    finding = Finding("error", "yaml", what, hint).at(place)
    return KilnError(f"{place}: {what}", hint=hint, place=place, findings=[finding])
