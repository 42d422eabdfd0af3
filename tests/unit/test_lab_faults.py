"""Injected failures: what is asked for wrongly is refused with a message."""

from __future__ import annotations

import io
import json
import re
from typing import Any

import pytest
from invoke import Context

from kiln.base.errors import KilnError
from kiln.cli import lab as lab_tasks
from lab.api import entry, faults
from lab.api.faults import Fault, Faults
from lab.daemon import control

GOOD = {"action": "RunInstances", "code": "InternalError"}


def ask(body: bytes) -> tuple[str, Any]:
    """The status and answer of `/_lab/faults`, behind the check of signatures."""
    ordered = Faults()

    def admin(path: str, asked: Any) -> Any:
        ordered.order(faults.parse(asked))
        return ordered.as_json()

    answer = []
    environ = {
        "PATH_INFO": "/_lab/faults",
        "CONTENT_LENGTH": str(len(body)),
        "wsgi.input": io.BytesIO(body),
    }
    app = entry.wrap(lambda *_: [], ordered, admin)
    content = app(environ, lambda status, headers: answer.append(status))
    return answer[0], json.loads(b"".join(content))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (GOOD | {"times": "x"}, '`times` must be a whole number from 1, not "x"'),
        (GOOD | {"times": 0}, "`times` must be a whole number from 1, not 0"),
        (GOOD | {"times": True}, "`times` must be"),
        (GOOD | {"times": 1.5}, "`times` must be"),
        (GOOD | {"match": "x"}, "`match` must be an object of texts"),
        (GOOD | {"match": {"InstanceType": 5}}, "`match` must be an object of texts"),
        (GOOD | {"message": 5}, "`message` must be a text"),
        (GOOD | {"tims": 5}, "unknown fields: tims"),
        ({"code": "InternalError"}, "`action` is missing"),
        ({"action": "RunInstances", "code": []}, "`code` is missing"),
        ({"action": "boot", "code": "x"}, "the code of a boot failure must be"),
        ({"action": "RunInstances", "code": "x"}, "unknown error code x: it needs a message"),
        ([], "a failure is a JSON object"),
        ("x", "a failure is a JSON object"),
    ],
)
def test_a_wrong_failure_is_refused_with_a_message(body: Any, message: str) -> None:
    status, answer = ask(json.dumps(body).encode())
    assert status.startswith("400")
    assert message in answer["error"]


def test_text_that_is_not_json_is_refused() -> None:
    for body in (b"{", b"\xff", b"[" * 100_000):
        assert ask(body)[0].startswith("400")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "specify --action and --code, or --clear"),
        ({"clear": True, "code": "InternalError"}, "specify --action and --code, or --clear"),
        (GOOD | {"match": ["x"]}, "--match x is not PARAMETER=VALUE"),
        (GOOD | {"match": ["=x"]}, "--match =x is not PARAMETER=VALUE"),
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


def test_the_task_sends_what_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Any] = []
    monkeypatch.setattr(control, "call", lambda lab, *asked: sent.append(asked) or [])
    lab_tasks.fault(Context(), match=["InstanceType=p5.48xlarge"], times=10, **GOOD)
    lab_tasks.fault(Context(), match=[], clear=True)
    match = {"InstanceType": "p5.48xlarge"}
    ordered = GOOD | {"times": 10, "match": match, "message": ""}
    assert sent == [("faults", ordered), ("faults/clear", {})]


def test_a_failure_is_taken_as_often_as_it_was_ordered() -> None:
    assert ask(json.dumps(GOOD | {"times": 2}).encode())[1][0]["times"] == 2
    ordered = Faults()
    ordered.order(Fault(**GOOD, times=2))
    assert [bool(ordered.take("RunInstances", {})) for _ in range(3)] == [True, True, False]
