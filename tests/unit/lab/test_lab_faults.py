"""Injected failures: what is asked for wrongly is refused with a message."""

from __future__ import annotations

import io
import json
import re
from typing import Any

import pytest
from invoke import Context

from kiln.base.errors import KilnError
from lab import tasks as lab_tasks
from lab.api.dispatch import Api
from lab.api.faults import Fault, Faults
from lab.daemon import control

GOOD = {"action": "RunInstances", "code": "InternalError"}


def ask(body: bytes) -> tuple[str, Any]:
    """The status and answer of `/_lab/faults`, behind the check of signatures."""
    ordered = Faults()

    def admin(path: str, asked: Any) -> Any:
        ordered.order(Fault(**asked))
        return ordered.to_dict()

    answer = []
    environ = {
        "PATH_INFO": "/_lab/faults",
        "CONTENT_LENGTH": str(len(body)),
        "wsgi.input": io.BytesIO(body),
    }
    app = Api(lambda *_: [], ordered, admin)
    content = app(environ, lambda status, headers: answer.append(status))
    return answer[0], json.loads(b"".join(content))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (GOOD | {"tims": 5}, "'tims'"),
        ({"action": "boot", "code": "x"}, "the code of a boot failure must be"),
        ({"action": "RunInstances", "code": "x"}, "unknown error code x: it needs a message"),
        ([], "must be a mapping"),
    ],
)
def test_a_wrong_failure_is_refused_with_a_message(body: Any, message: str) -> None:
    status, answer = ask(json.dumps(body).encode())
    assert status.startswith("400")
    assert message in answer["error"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "specify --action and --code, or --clear"),
        (GOOD | {"match": ["x"]}, "--match x is not PARAMETER=VALUE"),
        (GOOD, "the lab says no"),
    ],
)
def test_the_task_refuses_an_unknown_failure(
    arguments: dict[str, Any],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(lab: object, path: str, body: object) -> None:
        raise ValueError("the lab says no")

    monkeypatch.setattr(control, "call", refuse)
    with pytest.raises(KilnError, match=re.escape(message)):
        lab_tasks.fault(Context(), **{"match": [], **arguments})


def test_a_failure_is_taken_as_often_as_it_was_ordered() -> None:
    assert ask(json.dumps(GOOD | {"times": 2}).encode())[1][0]["times"] == 2
    ordered = Faults()
    ordered.order(Fault(**GOOD, times=2))
    assert [bool(ordered.take("RunInstances", {})) for _ in range(3)] == [True, True, False]
