"""Refuses a call that lacks a required parameter, as its service does.

What is required is read from botocore's model of the service; `missing_parameters.yaml` has each
service's words. Policies are asked before: no source says which AWS judges first.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import botocore.session

from kiln.base import plain_yaml
from lab.access import bodies, questions, refusals

Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


@dataclass(frozen=True)
class Answer:
    """How a service refuses such a call: the entries of `services` in the file."""

    code: str
    message: str
    several: str
    source: str
    assumed: str = ""
    empty: bool = False
    nested: bool = True
    json: str = ""


@dataclass(frozen=True)
class Missing:
    """A parameter that is not there: as the request writes it (`Tags.member.1.Key`), and as the
    service's validation names it (`tags.1.member.key`)."""

    name: str
    path: str


@dataclass(frozen=True)
class _Place:
    """Where a value stands: see Missing. `empty` says whether an empty value is missing there."""

    name: str
    path: str
    empty: bool

    def member(self, name: str, written: str) -> _Place:
        path = name[:1].lower() + name[1:]
        if not self.name:
            return _Place(written, path, self.empty)
        return _Place(f"{self.name}.{written}", f"{self.path}.{path}", self.empty)

    def item(self, key: int | str, between: str) -> _Place:
        name = ".".join(part for part in (self.name, between, str(key)) if part)
        return _Place(name, f"{self.path}.{key}.member", self.empty)


def refusing(inner: Application) -> Application:
    """`inner`, which sees no call that lacks a required parameter."""

    def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        answer = _refusal(environ)
        if answer is None:
            return inner(environ, start_response)
        start_response(answer.status, list(answer.headers))
        return [answer.body]

    return application


@functools.cache
def answers() -> dict[str, Answer]:
    """How services answer, by their names in botocore."""
    return {service: Answer(**entry) for service, entry in _file()["services"].items()}


@functools.cache
def _file() -> Any:
    return plain_yaml.read_plain(Path(__file__).with_suffix(".yaml"))


def _refusal(environ: dict[str, Any]) -> refusals.Answer | None:
    service = questions.service(environ)
    if service == "s3":  # its parameters are paths and headers
        return None
    body = bodies.peeked(environ)
    call = questions.read(environ, body)
    answer = answers().get(call.service)
    shape = _input(call.service, call.action) if answer else None
    if answer is None or shape is None:
        return None
    begin = _Place("", "", answer.empty)
    if environ.get("HTTP_X_AMZ_TARGET"):
        readable = call.parameters or _is_object(body)
        lacking = _in_json(call.parameters, shape, begin) if readable else iter(())
    elif _takes_forms(call.service) and not str(environ["PATH_INFO"]).startswith("/service/"):
        lacking = _in_form(_Form(call.parameters, ec2=call.service == "ec2"), shape, begin)
    else:  # CBOR; and a form for SQS, whose model no longer has their names
        lacking = iter(())
    missing = [each for each in lacking if answer.nested or "." not in each.path]
    if not missing:
        return None
    named = _file()["names"].get(call.action, {}) if call.service == "ec2" else {}
    texts = [
        answer.message.format(name=named.get(each.name, {}).get("name", each.name), path=each.path)
        for each in missing
    ]
    code = (answer.code, answer.json or answer.code)
    return refusals.missing(service, code, _joined(answer, texts), environ, body)


def _joined(answer: Answer, texts: list[str]) -> str:
    if answer.several == "first":
        return texts[0]
    if answer.several == "line":
        return "\n".join(texts)
    return f"{len(texts)} validation error{'s' if texts[1:] else ''} detected: {'; '.join(texts)}"


@functools.cache
def _input(service: str, call: str) -> Any:
    """The shape of a call's parameters; None where the model has no such call, or none required."""
    model = _model(service)
    if call not in model.operation_names:
        return None
    shape: Any = model.operation_model(call).input_shape
    return shape if shape is not None and _requires(shape, set()) else None


@functools.cache
def _model(service: str) -> Any:
    return botocore.session.get_session().get_service_model(service)


def _is_object(body: bytes) -> bool:
    """Whether a body without members is one of JSON; the service refuses all others by itself."""
    try:
        return bool(json.loads(body or b"{}") == {})
    except (ValueError, RecursionError):
        return False


def _takes_forms(service: str) -> bool:
    """Whether the service's model says how a form names the parameters."""
    return bool({"ec2", "query"} & {*_model(service).metadata["protocols"]})


def _requires(shape: Any, seen: set[str]) -> bool:
    """Whether a shape that was not seen yet has a required member, at any depth."""
    if shape.name in seen:
        return False
    seen.add(shape.name)
    if shape.type_name == "structure":
        below = (_requires(member, seen) for member in shape.members.values())
        return bool(shape.required_members) or any(below)
    if shape.type_name == "list":
        return _requires(shape.member, seen)
    return shape.type_name == "map" and _requires(shape.value, seen)


def _in_json(value: Any, shape: Any, place: _Place) -> Iterator[Missing]:
    """What a JSON value lacks. A value of another type than the model's is left to the service."""
    if shape.type_name == "structure" and isinstance(value, dict):
        for name, member in shape.members.items():
            written = member.serialization.get("name", name)
            inner, there = value.get(written), place.member(name, written)
            if inner is None or (place.empty and inner in ("", [], {})):
                if name in shape.required_members:
                    yield Missing(there.name, there.path)
            else:
                yield from _in_json(inner, member, there)
    elif shape.type_name == "list" and isinstance(value, list):
        for number, item in enumerate(value, 1):
            yield from _in_json(item, shape.member, place.item(number, "member"))
    elif shape.type_name == "map" and isinstance(value, dict):
        for key, item in value.items():
            yield from _in_json(item, shape.value, place.item(key, "entry"))


class _Form:
    """The parameters of a request of the query protocol, or of EC2's form of it."""

    def __init__(self, fields: Mapping[str, str], *, ec2: bool) -> None:
        self.fields, self.ec2 = fields, ec2
        dots = ((name, dot.start()) for name in fields for dot in re.finditer(r"\.", name))
        self._begun = {name[:end] for name, end in dots}

    def has(self, member: Any, place: _Place) -> bool:
        """Whether there is a value at a place, or anything of a list or a structure."""
        value, empty = self.fields.get(place.name), place.empty
        if member.type_name == "list":
            first = self.item(member, place, 1).name
            if empty:
                return first in self._begun or bool(self.fields.get(first))
            # An empty list is sent as an empty value of its name.
            return first in self._begun or first in self.fields or value == ""
        if member.type_name in ("structure", "map"):
            return place.name in self._begun
        return value is not None and not (empty and value == "")

    def item(self, member: Any, place: _Place, number: int) -> _Place:
        between = "" if self.ec2 else member.member.serialization.get("name", "member")
        return place.item(number, between)

    def has_item(self, place: _Place) -> bool:
        return place.name in self._begun

    def written(self, member: Any, name: str) -> str:
        """The name of a structure's member in requests: see botocore's EC2Serializer."""
        own = member.serialization
        if not self.ec2:
            return str(own.get("name", name))
        located = own.get("name", name)
        return str(own.get("queryName") or located[:1].upper() + located[1:])


def _in_form(form: _Form, shape: Any, place: _Place) -> Iterator[Missing]:
    """What a structure of a form lacks."""
    for name, member in shape.members.items():
        there = place.member(name, form.written(member, name))
        if not form.has(member, there):
            if name in shape.required_members:
                yield Missing(there.name, there.path)
        elif member.type_name == "structure":
            yield from _in_form(form, member, there)
        elif member.type_name == "list" and member.member.type_name == "structure":
            number = 1
            while form.has_item(item := form.item(member, there, number)):
                yield from _in_form(form, member.member, item)
                number += 1
