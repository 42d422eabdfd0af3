"""CodeBuild's API, in front of moto: projects, by account's region; JSON 1.1 in and out."""

from __future__ import annotations

import functools
import json
import re
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import botocore.session
from botocore.validate import ParamValidator
from moto.core import DEFAULT_ACCOUNT_ID

from lab.access import bodies

Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]
_SCOPE = re.compile(r"Credential=[^/]+/[0-9]+/([^/]+)/codebuild/")
_TARGET = "CodeBuild_20161006."
# What these keep is shown again; no build reads it.
BOOKED = ("CreateProject", "UpdateProject", "DeleteProject", "BatchGetProjects", "ListProjects")
# https://docs.aws.amazon.com/codebuild/latest/APIReference/API_CreateProject.html (minutes)
_DEFAULTS = {"timeoutInMinutes": 60, "queuedTimeoutInMinutes": 480}


class _RefusedError(Exception):
    """An error of CodeBuild's: code and message."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code, self.message = code, message


class CodeBuild:
    """The projects of all regions."""

    def __init__(self) -> None:
        self._regions: dict[str, dict[str, dict[str, Any]]] = defaultdict(dict)
        self._lock = threading.Lock()

    def over(self, moto: Application) -> Application:
        """`moto`, with CodeBuild's calls answered here."""

        def application(environ: Any, start_response: Callable[..., Any]) -> Iterable[bytes]:
            scope = _SCOPE.search(str(environ.get("HTTP_AUTHORIZATION", "")))
            call = str(environ.get("HTTP_X_AMZ_TARGET", ""))
            if scope is None or not call.startswith(_TARGET):
                return moto(environ, start_response)
            body = bodies.peeked(environ)
            status, answer = self._answer(call.removeprefix(_TARGET), scope[1], body)
            data = json.dumps(answer).encode()
            headers = [("Content-Type", "application/x-amz-json-1.1")]
            start_response(status, [*headers, ("Content-Length", str(len(data)))])
            return [data]

        return application

    def _answer(self, call: str, region: str, body: bytes) -> tuple[str, dict[str, Any]]:
        try:
            parameters = _checked(call, body)
            with self._lock:
                return "200 OK", _CALLS[call](self._regions[region], region, parameters)
        except _RefusedError as error:
            return "400 Bad Request", {"__type": error.code, "message": error.message}


def _checked(call: str, body: bytes) -> dict[str, Any]:
    """The parameters of a call that the lab has, in the form that CodeBuild's model gives them."""
    if call not in BOOKED:
        raise _RefusedError(
            "UnknownOperationException",
            f"AMI Kiln lab: {call} is not implemented: no build runs in the lab's CodeBuild",
        )
    try:
        parameters = json.loads(body or b"{}")
    except ValueError:
        raise _RefusedError("SerializationException", "the body is not JSON") from None
    shape: Any = _model().operation_model(call).input_shape
    wrong = ParamValidator().validate(parameters, shape)
    if wrong.has_errors():
        raise _RefusedError("InvalidInputException", wrong.generate_report())
    return dict(parameters)


@functools.cache
def _model() -> Any:
    return botocore.session.get_session().get_service_model("codebuild")


def _create(kept: dict[str, Any], region: str, parameters: dict[str, Any]) -> dict[str, Any]:
    name, now = parameters["name"], time.time()
    arn = f"arn:aws:codebuild:{region}:{DEFAULT_ACCOUNT_ID}:project/{name}"
    if name in kept:
        raise _RefusedError("ResourceAlreadyExistsException", f"Project already exists: {arn}")
    kept[name] = {**_DEFAULTS, **parameters, "arn": arn, "created": now, "lastModified": now}
    return {"project": kept[name]}


def _update(kept: dict[str, Any], region: str, parameters: dict[str, Any]) -> dict[str, Any]:
    project = _there(kept, region, parameters["name"])
    project |= {**parameters, "lastModified": time.time()}
    return {"project": project}


def _there(kept: dict[str, Any], region: str, name: str) -> dict[str, Any]:
    if name not in kept:
        arn = f"arn:aws:codebuild:{region}:{DEFAULT_ACCOUNT_ID}:project/{name}"
        raise _RefusedError("ResourceNotFoundException", f"Project cannot be found: {arn}")
    project: dict[str, Any] = kept[name]
    return project


def _delete(kept: dict[str, Any], region: str, parameters: dict[str, Any]) -> dict[str, Any]:
    kept.pop(parameters["name"], None)  # of one that is not there, CodeBuild says the same
    return {}


def _get(kept: dict[str, Any], region: str, parameters: dict[str, Any]) -> dict[str, Any]:
    names = [name.rpartition("/")[2] for name in parameters["names"]]
    missing = [
        identifier
        for identifier, name in zip(parameters["names"], names, strict=True)
        if name not in kept
    ]
    return {
        "projects": [kept[name] for name in names if name in kept],
        "projectsNotFound": missing,
    }


def _list(kept: dict[str, Any], region: str, parameters: dict[str, Any]) -> dict[str, Any]:
    return {"projects": sorted(kept)}


_CALLS: dict[str, Callable[[dict[str, Any], str, dict[str, Any]], dict[str, Any]]] = {
    "CreateProject": _create,
    "UpdateProject": _update,
    "DeleteProject": _delete,
    "BatchGetProjects": _get,
    "ListProjects": _list,
}
