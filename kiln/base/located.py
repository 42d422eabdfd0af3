"""YAML that remembers where each value stands, so that an error can name line and column."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from kiln.base.errors import KilnError

Path_ = tuple[str | int, ...]
Mark = tuple[int, int]

# Versions are text: YAML would read `cuda: 12.10` as the number 12.1 and `510e3` as 510000.
_KEPT_AS_TEXT = {"tag:yaml.org,2002:float", "tag:yaml.org,2002:timestamp"}
# Far more than any file of ours; a thread with a small stack bears three times that.
_DEEP = 2000


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

    def at(self, path: Path_) -> str:
        """`file:line:column` of the value at `path`."""
        line, column = self.mark(path)
        return f"{self.file}:{line}:{column}"

    def at_key(self, path: Path_) -> str:
        """`file:line:column` of the key at `path`; of its value when it has no key."""
        line, column = self.keys.get(path, self.mark(path))
        return f"{self.file}:{line}:{column}"


def load(path: Path, shown_as: str | None = None) -> Located:
    """Read a YAML file.

    Raises KilnError (exit code 2) when the file is missing, is not YAML, or has a key twice.
    """
    name = shown_as or path.name
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise KilnError(
            f"{path}: no such file", hint="create it, or run from the checkout"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise KilnError(f"{path}: cannot be read: {error}") from None
    return parse(text, name)


def parse(text: str, name: str) -> Located:
    """Like `load`, from text. `name` is how errors call the file."""
    values: dict[Path_, Mark] = {}
    keys: dict[Path_, Mark] = {}
    try:
        node = yaml.compose(text, Loader=_loader(text))
        data = _plain(node, (), name, values, keys) if node is not None else {}
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{name}:{mark.line + 1}:{mark.column + 1}" if mark else name
        raise KilnError(
            f"{where}: not valid YAML: {error.problem or error.context}",
            hint="check indentation, quotes and colons on this line and the one above",
        ) from None
    except yaml.YAMLError as error:
        raise KilnError(f"{name}: not valid YAML: {str(error).splitlines()[0]}") from None
    except RecursionError:
        raise KilnError(
            f"{name}: it is nested too deep",
            hint="does an alias (*name) stand inside what it names?",
        ) from None
    return Located(name, data, values, keys)


def _loader(text: str) -> Any:
    """The quick loader, unless the text may be nested deeper than its C stack can bear."""
    deepest = text.count("[") + text.count("{") + 2 * max(map(len, text.splitlines()), default=0)
    return yaml.CSafeLoader if deepest < _DEEP else yaml.SafeLoader


def _plain(
    node: yaml.Node, path: Path_, name: str, values: dict[Path_, Mark], keys: dict[Path_, Mark]
) -> Any:
    values[path] = (node.start_mark.line + 1, node.start_mark.column + 1)
    if isinstance(node, yaml.MappingNode):
        mapping: dict[str, Any] = {}
        for key_node, value_node in node.value:
            mark = (key_node.start_mark.line + 1, key_node.start_mark.column + 1)
            at = f"{name}:{mark[0]}:{mark[1]}"
            if not isinstance(key_node, yaml.ScalarNode):
                raise KilnError(f"{at}: a key must be one word", hint="is a colon missing?")
            key = str(key_node.value)
            here = (*path, key)
            if key == "<<":
                raise KilnError(
                    f"{at}: merge keys (<<) are not supported",
                    hint="write the values out, or put them into `defaults`",
                )
            if key in mapping:
                line, column = keys[here]
                raise KilnError(
                    f"{at}: {key!r} stands twice (first at line {line}, column {column})",
                    hint="keep one of them",
                )
            keys[here] = mark
            mapping[key] = _plain(value_node, here, name, values, keys)
        return mapping
    if isinstance(node, yaml.SequenceNode):
        return [
            _plain(item, (*path, index), name, values, keys)
            for index, item in enumerate(node.value)
        ]
    if node.tag in _KEPT_AS_TEXT:
        return node.value
    try:
        return yaml.SafeLoader("").construct_object(node)
    except ValueError:  # a number of thousands of digits
        return node.value
