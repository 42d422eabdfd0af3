"""YAML: read as plain data or with the place of each value, checked by a model, and written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError

from kiln.base.errors import Finding, KilnError, Place, did_you_mean
from kiln.base.vocabulary import masked, quoted

Path_ = tuple[str | int, ...]
Mark = tuple[int, int]


class _Loader(yaml.CSafeLoader):
    """YAML's own types; a duplicate key is refused, where PyYAML takes the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: dict[str, yaml.Mark] = {}
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value != "<<":
                if key.value in seen:
                    first = seen[key.value]
                    what = f"{key.value!r} is a duplicate key (first at line {first.line + 1})"
                    raise yaml.constructor.ConstructorError(None, None, what, key.start_mark)
                seen[key.value] = key.start_mark
        return super().construct_mapping(node, deep)


class _TextLoader(_Loader):
    """Keeps versions and dates as text: 580.10 must not become 580.1."""


_TextLoader.yaml_implicit_resolvers = {
    letter: [(tag, regex) for tag, regex in resolvers if not tag.endswith((":float", ":timestamp"))]
    for letter, resolvers in yaml.CSafeLoader.yaml_implicit_resolvers.items()
}


class _LocatedLoader(_TextLoader):
    """Keeps keys as text, too, and refuses those that are no single word."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.value == "<<":
                what = "a key must be one word: is a colon missing?"
                raise yaml.constructor.ConstructorError(None, None, what, key.start_mark)
            key.tag = "tag:yaml.org,2002:str"
        return super().construct_mapping(node, deep)


class _TemplateLoader(_Loader):
    """Reads CloudFormation's short forms as the long ones: `!Sub x` is {"Fn::Sub": "x"}."""


def _long_form(loader: Any, tag: str, node: yaml.Node) -> dict[str, Any]:
    if isinstance(node, yaml.ScalarNode):
        text = loader.construct_scalar(node)
        value = text.split(".", 1) if tag == "GetAtt" else text
    elif isinstance(node, yaml.SequenceNode):
        value = loader.construct_sequence(node, deep=True)
    else:
        value = loader.construct_mapping(node, deep=True)
    return {tag if tag == "Ref" else f"Fn::{tag}": value}


_TemplateLoader.add_multi_constructor("!", _long_form)


@dataclass(frozen=True)
class Located:
    """A YAML document: its plain data, and line and column (from 1) of every value and key."""

    file: str
    data: Any
    node: yaml.Node | None

    def __contains__(self, path: Path_) -> bool:
        value = self.data
        try:
            for part in path:
                value = value[part]
        except (KeyError, IndexError, TypeError):
            return False
        return True

    def mark(self, path: Path_, *, key: bool = False) -> Mark:
        """Line and column of the value at `path`, or of its key; of the nearest parent that exists
        if it does not."""
        node = self.node
        found = (1, 1) if node is None else _start(node)
        for part in path:
            if isinstance(node, yaml.SequenceNode) and part in range(len(node.value)):
                node = node.value[int(part)]
                found = _start(node)
                continue
            pairs = node.value if isinstance(node, yaml.MappingNode) else ()
            pair = next((pair for pair in pairs if pair[0].value == part), None)
            if pair is None:
                return found
            name, node = pair
            if key and part is path[-1]:
                return _start(name)
            # A missing value belongs behind its key's colon; libyaml marks the next token.
            empty = node.start_mark.index == node.end_mark.index
            behind = (name.end_mark.line + 1, name.end_mark.column + 2)
            found = behind if empty else _start(node)
        return found

    def place(self, path: Path_) -> Place:
        """Return the place of the value at `path`."""
        return Place(self.file, *self.mark(path), dotted(path))

    def key_place(self, path: Path_) -> Place:
        """Return the place of the key at `path`, of its value if it has no key."""
        return Place(self.file, *self.mark(path, key=True), dotted(path))


def _start(node: yaml.Node) -> Mark:
    return (node.start_mark.line + 1, node.start_mark.column + 1)


def dotted(path: Path_) -> str:
    """A path as people write it: stacks.lts.driver. A URL in it has no user and password."""
    return masked(".".join(map(str, path)), whole=True)


def load_yaml(path: Path, shown_as: str | None = None) -> Located:
    """Read a YAML file that a user writes; errors name it by `shown_as`."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise KilnError(f"{path}: cannot be read: {why}", place=Place(str(path))) from None
    return parse_yaml(text, shown_as or path.name)


# A publication asks for the matrix in each region.
@lru_cache(maxsize=16)
def parse_yaml(text: str, name: str) -> Located:
    """YAML with its places. Keys, dates and numbers with a dot stay text, so that a version is kept
    as written. The same text gives the same document, which must not be changed."""
    node, data = _read(text, name, _LocatedLoader)
    return Located(name, {} if node is None else data, node)


def read_plain(path: Path, *, versions_as_text: bool = False) -> Any:
    """The plain data of a YAML file; with `versions_as_text` decimals and dates are text."""
    text = path.read_text(encoding="utf-8")
    return parse_plain(text, path.name, versions_as_text=versions_as_text)


def parse_plain(text: str, name: str, *, versions_as_text: bool = False) -> Any:
    """Like `read_plain`, from text. `name` is how errors call the file."""
    return _read(text, name, _TextLoader if versions_as_text else _Loader)[1]


def parse_template(text: str) -> dict[str, Any]:
    """A CloudFormation template as plain data, in the long form: `!Ref x` is {"Ref": "x"}."""
    return dict(_read(text, "the template", _TemplateLoader)[1])


def _read(text: str, name: str, kind: type[_Loader]) -> tuple[yaml.Node | None, Any]:
    """The first node of a document and its data."""
    place, loader = Place(name), None
    try:
        loader = kind(text)
        # Else a value that an alias puts into itself is made, and every walk through it is endless.
        loader.deep_construct = True
        node = loader.get_single_node()
        return node, None if node is None else loader.construct_document(node)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        what = str(error).splitlines()[0]
        if isinstance(error, yaml.MarkedYAMLError):
            mark = error.problem_mark or error.context_mark
            place = Place(name, mark.line + 1, mark.column + 1) if mark else place
            what = error.problem or error.context or what
            if what == "found unconstructable recursive node":
                what = "this value contains itself, by an alias"
        finding = Finding("error", "yaml", f"not valid YAML: {what}").at(place)
        message = f"{place}: {finding.message}"
        raise KilnError(message, place=place, findings=[finding]) from None
    finally:
        if loader is not None:
            loader.dispose()


_Model = TypeVar("_Model", bound=BaseModel)


def validated(
    model: type[_Model],
    document: Located,
    data: Any = None,
    *,
    context: Any = None,
    locate: Callable[[Path_], Path_] = lambda path: path,
) -> _Model:
    """The document, or `data` in its place, as a model. Every mistake is a finding with its place,
    and all are in one error. `locate` turns a path in `data` into one in the document."""
    try:
        return model.model_validate(document.data if data is None else data, context=context)
    except ValidationError as error:
        problems: list[Any] = error.errors()
        # Pydantic counts what is right: a list of one wrong value is not empty for its author.
        meant = [each for each in problems if each["type"] != "too_short" or not each["input"]]
        raise invalid(
            _finding(model, document, each, locate) for each in meant or problems
        ) from None


def invalid(findings: Iterable[Finding]) -> KilnError:
    """The error for mistakes in a file: a line for each, in the file's order, each once."""
    listed = sorted(
        dict.fromkeys(findings), key=lambda each: (each.file or "", each.line or 0, each.column)
    )
    lines = [f"{finding.place}: {finding.message}" for finding in listed]
    return KilnError("\n".join(lines), place=listed[0].place, findings=listed)


def mistake(place: Place, message: str) -> Finding:
    """A mistake in a YAML file: where, and in one line what is wrong."""
    return Finding("error", "matrix", message).at(place)


_SHAPES = {
    "model_type": "a mapping, like {key: value}",
    "dict_type": "a mapping, like {key: value}",
    "tuple_type": "a list, like [a, b]",
    "list_type": "a list, like [a, b]",
}


def _finding(
    model: type[BaseModel],
    document: Located,
    problem: Mapping[str, Any],
    locate: Callable[[Path_], Path_],
) -> Finding:
    """A problem that pydantic has found: where it is, and what is wrong."""
    kind, wrong = problem["type"], problem["input"]
    inside = tuple(part for part in problem["loc"] if part != "[key]")
    path = locate(inside)
    place = document.place(path)
    if kind == "extra_forbidden" or "[key]" in problem["loc"]:
        place = document.key_place(path)
    what = str(problem["msg"]).removeprefix("Value error, ")
    if kind == "missing":
        path = locate(inside[:-1])
        return mistake(document.place(path), f"{dotted((*path, inside[-1]))} is missing")
    if kind == "extra_forbidden":
        known = did_you_mean(str(inside[-1]), _keys_at(model, inside[:-1]))
        what = f"there is no such key here: {known}"
    elif wrong is None:
        what = "is empty: give it a value, or remove the line"
    elif kind in _SHAPES:
        what = f"must be {_SHAPES[kind]}, not {quoted(wrong)}"
    elif kind != "value_error":
        quotes = "; put it in quotes" if kind == "string_type" and type(wrong) is int else ""
        what = f"{what} (it is {quoted(wrong)}){quotes}"
    return mistake(place, masked(f"{dotted(path)}: {what}" if path else what))


def _keys_at(kind: Any, path: Path_) -> list[str]:
    """The keys that a model has at a path in it."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        if not path:
            return list(kind.model_fields)
        return _keys_at(kind.model_fields[str(path[0])].annotation, path[1:])
    inner = get_args(kind)
    if get_origin(kind) in (Union, UnionType):
        return next((keys for each in inner if (keys := _keys_at(each, path))), [])
    if get_origin(kind) is Annotated:
        return _keys_at(inner[0], path)
    # Of a list the type of its items, of a mapping that of its values.
    if not inner or not path:
        return []
    return _keys_at(inner[1 if get_origin(kind) is dict else 0], path[1:])


class _Dumper(yaml.CSafeDumper):
    """Without aliases; texts of several lines stay as they are."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.CSafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def as_yaml(data: Any) -> str:
    """Data as YAML, for people and for programs that take no aliases."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, width=100)
