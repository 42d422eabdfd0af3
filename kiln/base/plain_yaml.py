"""Our own YAML files as plain data: fast, and strict about duplicate keys.

`kiln.base.located` reads what users write and reports lines and columns; both refuse the same.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from kiln.base.errors import KilnError
from kiln.base.findings import Place


class _Loader(yaml.CSafeLoader):
    """YAML's own types; a mapping with a duplicate key is refused, where PyYAML takes the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """See PyYAML. Raises yaml.constructor.ConstructorError for a duplicate key."""
        seen: set[str] = set()
        for key, _ in node.value:
            if key.value == "<<" or not isinstance(key, yaml.ScalarNode):
                continue
            if key.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"{key.value!r} is a duplicate key", key.start_mark
                )
            seen.add(key.value)
        return super().construct_mapping(node, deep)


class _TextLoader(_Loader):
    """Keeps versions and dates as text: 580.10 must not become 580.1."""


_TextLoader.yaml_implicit_resolvers = {
    letter: [(tag, regex) for tag, regex in resolvers if not tag.endswith((":float", ":timestamp"))]
    for letter, resolvers in yaml.CSafeLoader.yaml_implicit_resolvers.items()
}


@cache
def _with_tags(loader: Any, tagged: Tagged) -> Any:
    """A loader that also knows local tags."""

    def construct(reader: Any, tag: str, node: yaml.Node) -> Any:
        if isinstance(node, yaml.ScalarNode):
            return tagged(tag, reader.construct_scalar(node))
        if isinstance(node, yaml.SequenceNode):
            return tagged(tag, reader.construct_sequence(node, deep=True))
        return tagged(tag, reader.construct_mapping(node, deep=True))

    made = type("_TaggedLoader", (loader,), {})
    made.add_multi_constructor("!", construct)  # type: ignore[attr-defined]
    return made


def read_plain(path: Path, *, versions_as_text: bool = False) -> Any:
    """The plain data of a YAML file; with `versions_as_text` numbers with a dot and dates are text.

    Raises KilnError (exit status 2) with file and line for invalid YAML and a duplicate key.
    """
    return parse_plain(
        path.read_text(encoding="utf-8"), path.name, versions_as_text=versions_as_text
    )


# A local tag such as Ref of `!Ref x`, and the tagged value → what stands in its place.
Tagged = Callable[[str, Any], Any]


def parse_plain(
    text: str, name: str, *, versions_as_text: bool = False, tagged: Tagged | None = None
) -> Any:
    """Like `read_plain`, from text. `name` is how errors call the file.

    `tagged` gives the values of local tags; without it they are refused. Raises KilnError (exit
    status 2) with file and line for invalid YAML and a duplicate key.
    """
    loader: Any = _TextLoader if versions_as_text else _Loader
    if tagged is not None:
        loader = _with_tags(loader, tagged)
    try:
        return yaml.load(text, Loader=loader)  # noqa: S506 (a safe loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = Place(name, mark.line + 1, mark.column + 1) if mark else Place(name)
        raise KilnError(f"{place}: not valid YAML: {error.problem}", place=place) from None
    except yaml.YAMLError as error:
        raise KilnError(f"{name}: not valid YAML: {error}", place=Place(name)) from None
