"""A run that EC2 refuses to answer ends at once, with the error that EC2 gave."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError, EndpointConnectionError

from kiln.base.errors import KilnError, operation_failed
from kiln.base.stopping import Stop, StoppedError
from kiln.cloud import aws, watch
from kiln.cloud.aws_target import AwsTarget
from kiln.cloud.target import Target
from lab.target import LabTarget


class Ec2:
    """Answers DescribeInstances with each of `answers` in turn, the last again and again."""

    def __init__(self, *answers: Exception | None) -> None:
        self.answers = list(answers)
        self.asked = threading.Semaphore(0)

    def describe_instances(self, **query: Any) -> dict[str, Any]:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        self.asked.release()
        if answer:
            raise answer
        return {}

    def describe_images(self, **query: Any) -> dict[str, Any]:
        return {}


def refused(code: str) -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": "no"}}, "DescribeInstances")


def watched(monkeypatch: pytest.MonkeyPatch, ec2: Ec2, questions: int) -> Stop:
    """The Stop of a run that asked this EC2 so many questions."""
    monkeypatch.setattr(watch.aws, "ec2", lambda target: ec2)
    stop = Stop()
    with watch.watching("run", AwsTarget("test", "us-east-1"), stop, every=0.001):
        for _ in range(questions):
            assert ec2.asked.acquire(timeout=60) or stop.is_set()
    return stop


def given_up(stop: Stop) -> bool:
    """Whether the watcher gave up; it notes that right after its question was answered."""
    for _ in range(600):
        if stop.is_given_up:
            return True
        threading.Event().wait(0.1)
    return False


@pytest.mark.parametrize("code", sorted(aws.PERMANENT))
def test_a_refusal_that_stays_ends_the_run(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    stop = watched(monkeypatch, Ec2(refused(code)), 2)
    assert given_up(stop)
    assert stop.grace <= 10
    with pytest.raises(KilnError, match=f"DescribeInstances answered {code}: no") as error:
        stop.check()
    assert error.value.exit_status == 1


@pytest.mark.parametrize(
    "answers",
    [
        (None,),
        (refused("RequestLimitExceeded"),),
        (refused("InternalError"),),
        (EndpointConnectionError(endpoint_url="x"),),
        (refused("UnauthorizedOperation"), None),
        (refused("AuthFailure"), None, refused("AuthFailure"), None),
    ],
    ids=["answer", "throttled", "error of EC2", "no network", "refused once", "now and then"],
)
def test_what_may_get_better_does_not_end_the_run(
    monkeypatch: pytest.MonkeyPatch, answers: tuple[Exception | None, ...]
) -> None:
    stop = watched(monkeypatch, Ec2(*answers), 6)
    assert not stop.is_set()


def rhythm(monkeypatch: pytest.MonkeyPatch, target: Target) -> float:
    """Seconds between two questions of a watched run."""
    waited: list[float] = []

    class Ended:
        """Ends the watch when it first waits."""

        def wait(self, seconds: float) -> bool:
            waited.append(seconds)
            return True

        def set(self) -> None:
            """It has."""

    monkeypatch.setattr(threading, "Event", Ended)
    monkeypatch.setattr(threading, "Thread", lambda target, daemon: SimpleNamespace(
        start=target))  # fmt: skip
    with watch.watching("run", target, SimpleNamespace(is_given_up=False)):  # type: ignore[arg-type]
        return waited[0]


def test_aws_is_asked_as_seldom_as_by_botocores_waiters(monkeypatch: pytest.MonkeyPatch) -> None:
    client = boto3.client("ec2", "us-east-1", aws_access_key_id="x", aws_secret_access_key="x")
    waiter: Any = client.get_waiter("image_available")
    place = AwsTarget("test", "us-east-1")
    assert place.wait_seconds == rhythm(monkeypatch, place) == waiter.config.delay == 15
    assert rhythm(monkeypatch, LabTarget("test")) < 15


def test_a_target_that_is_gone_ends_the_run_without_patience(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(AwsTarget, "gone", lambda self: "the lab is down")
    stop = watched(monkeypatch, Ec2(None), 0)
    with watch.watching("run", AwsTarget("test", "us-east-1"), stop, every=0.001):
        assert given_up(stop)
    assert stop.grace == 0
    with pytest.raises(KilnError, match="the lab is down"):
        stop.check()


def test_one_run_is_given_up_and_the_others_go_on() -> None:
    build = Stop()
    first, other = build.of_run(), build.of_run()
    first.give_up(operation_failed("first"), grace=1)
    first.give_up(operation_failed("second"), grace=2)
    assert (first.is_set(), other.is_set(), build.is_set()) == (True, False, False)
    with pytest.raises(KilnError, match="first"):
        first.check()
    assert first.grace == 1
    build.set()
    with pytest.raises(StoppedError):
        other.check()
