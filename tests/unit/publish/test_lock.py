"""A lock has one holder, however the calls of several takers fall between each other."""

from __future__ import annotations

import itertools
import json
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import pytest
from botocore.client import BaseClient

from kiln.base.errors import KilnError
from kiln.publish import lock, parameters
from kiln.publish.lock import exclusively, lock_parameter
from tests.unit.publish.channel import AWS

NAME = "nightly"
# Of a lock that neither is released nor fails.
CALLS = 4


@pytest.fixture(autouse=True)
def _of_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """No row demands tags of the lock's parameter: to read the matrix takes longer than a call."""
    monkeypatch.setattr(parameters, "tags_of_line", lambda line: {})


@dataclass
class Turns:
    """Lets the calls of some threads through in a given order; afterwards, one as the other."""

    order: list[str]
    inside: set[str] = field(default_factory=set)
    ended: set[str] = field(default_factory=set)
    most_inside: int = 0
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def wait(self) -> None:
        """Until it is this thread's turn."""
        name = threading.current_thread().name
        with self._changed:
            self._changed.wait_for(lambda: self._next() in (name, None))
            if self.order:
                self.order.pop(0)

    def _next(self) -> str | None:
        while self.order and self.order[0] in self.ended:
            self.order.pop(0)
        return self.order[0] if self.order else None

    def called(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def enter(self) -> None:
        with self._changed:
            self.inside.add(threading.current_thread().name)
            self.most_inside = max(self.most_inside, len(self.inside))

    def leave(self) -> None:
        with self._changed:
            self.inside.discard(threading.current_thread().name)

    def wait_for_the_end_of(self, threads: Sequence[threading.Thread]) -> None:
        """Until each has said that it ends, or has died."""
        names = {thread.name for thread in threads}
        with self._changed:
            while not names <= self.ended and any(thread.is_alive() for thread in threads):
                self._changed.wait(0.1)

    def end(self) -> None:
        with self._changed:
            self.ended.add(threading.current_thread().name)
            self._changed.notify_all()


@contextmanager
def in_turns(turns: Turns, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """While inside, calls of the threads of `turns` happen one at a time, in their order."""
    ask = BaseClient._make_api_call  # type: ignore[attr-defined]
    alone = threading.Lock()

    def in_turn(self: Any, name: str, given: Any) -> Any:
        if not threading.current_thread().name.startswith("taker"):
            return ask(self, name, given)
        turns.wait()
        try:
            with alone:
                return ask(self, name, given)
        finally:
            turns.called()

    with monkeypatch.context() as patched:
        patched.setattr(BaseClient, "_make_api_call", in_turn)
        yield


def taken_by(
    order: Sequence[str],
    monkeypatch: pytest.MonkeyPatch,
    until_released: bool,
) -> tuple[Turns, list[str]]:
    """Two takers whose calls fall in this order; who was inside."""
    turns = Turns(list(order))
    winners: list[str] = []
    stay = threading.Event()

    def take() -> None:
        with suppress(KilnError), exclusively(AWS, NAME):
            turns.enter()
            winners.append(threading.current_thread().name)
            if until_released:
                # Calls of the other may fall while this one is inside.
                turns.wait()
                turns.called()
            else:
                turns.end()
                stay.wait(60)
            turns.leave()
        turns.end()

    threads = [threading.Thread(target=take, name=f"taker {letter}") for letter in "ab"]
    with in_turns(turns, monkeypatch):
        for thread in threads:
            thread.start()
        turns.wait_for_the_end_of(threads)
        stay.set()
        for thread in threads:
            thread.join()
    return turns, winners


def orders(length: int) -> list[tuple[str, ...]]:
    """Every way in which the calls of two takers can fall; the first call is a's, as they do the
    same."""
    places = itertools.combinations(range(1, 2 * length), length - 1)
    return [
        tuple("taker a" if place in (0, *those) else "taker b" for place in range(2 * length))
        for those in places
    ]


@pytest.fixture
def dead(client: Callable[..., Any]) -> Callable[[], None]:
    """Leaves a lock of a process that has ended, and nothing else."""

    def left() -> None:
        ssm = client("ssm")
        with suppress(ssm.exceptions.ParameterNotFound):
            ssm.delete_parameter(Name=lock_parameter(NAME))
        holder = {"host": "elsewhere", "process": 7, "until": 1.0, "token": "dead"}
        write(client, holder, overwrite=False)

    return left


def write(client: Callable[..., Any], holder: dict[str, Any], *, overwrite: bool = True) -> None:
    client("ssm").put_parameter(
        Name=lock_parameter(NAME), Value=json.dumps(holder), Type="String", Overwrite=overwrite
    )


def test_of_two_that_take_a_dead_holders_lock_one_has_it(
    dead: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    for order in orders(CALLS):
        dead()
        turns, winners = taken_by(order, monkeypatch, until_released=False)
        assert (turns.most_inside, len(winners)) == (1, 1), order


def test_two_never_have_it_at_once_when_the_first_releases_it_meanwhile(
    dead: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    for order in random.Random(16).sample(orders(CALLS + 3), 80):
        dead()
        turns, winners = taken_by(order, monkeypatch, until_released=True)
        assert turns.most_inside == 1, order
        assert winners, order


def test_a_version_that_came_too_late_does_not_hide_who_has_the_lock(
    dead: Callable[[], None], client: Callable[..., Any]
) -> None:
    dead()
    with exclusively(AWS, NAME):
        # Somebody who read the dead holder too, wrote, and was killed.
        late = {"host": "late", "process": 8, "until": 4e9, "after": 1, "after_token": "dead"}
        write(client, late)
        with pytest.raises(KilnError, match="moved by process") as refused, exclusively(AWS, NAME):
            pass
        assert "late" not in refused.value.message
    with exclusively(AWS, NAME):
        pass


def test_a_version_that_followed_a_lock_that_is_gone_is_not_a_lock(
    dead: Callable[[], None], client: Callable[..., Any]
) -> None:
    dead()
    client("ssm").delete_parameter(Name=lock_parameter(NAME))
    late = {"host": "late", "process": 8, "until": 4e9, "after": 1, "after_token": "dead"}
    write(client, late)
    with exclusively(AWS, NAME):
        pass
    # The same number as the one that it read, but another lock.
    with exclusively(AWS, NAME):
        write(client, late)
        with pytest.raises(KilnError, match="moved by process") as refused, exclusively(AWS, NAME):
            pass
        assert "late" not in refused.value.message


def test_a_lock_that_expired_and_was_taken_is_left_to_its_new_holder(
    client: Callable[..., Any],
) -> None:
    with exclusively(AWS, NAME, seconds=-1):
        (mine,) = client("ssm").get_parameters(Names=[lock_parameter(NAME)])["Parameters"]
        token = json.loads(mine["Value"])["token"]
        theirs = {"host": "elsewhere", "process": 7, "until": 4e9, "space": ""}
        theirs |= {"token": "theirs", "after": 1, "after_token": token}
        write(client, theirs)
    (left,) = client("ssm").get_parameters(Names=[lock_parameter(NAME)])["Parameters"]
    assert json.loads(left["Value"]) == theirs
    with pytest.raises(KilnError, match="moved by process 7 on elsewhere"), exclusively(AWS, NAME):
        pass


def test_a_lock_that_may_have_expired_elsewhere_is_freed_and_not_deleted(
    client: Callable[..., Any],
) -> None:
    with exclusively(AWS, NAME, seconds=lock._SKEW / 2):
        pass
    (left,) = client("ssm").get_parameters(Names=[lock_parameter(NAME)])["Parameters"]
    assert json.loads(left["Value"])["until"] == 0
    with exclusively(AWS, NAME):
        pass
    assert not client("ssm").get_parameters(Names=[lock_parameter(NAME)])["Parameters"]


FORGED = (
    '{"host": "h", "process": %s, "until": %s, "space": "", "after": %s, "after_token": "dead"}'
)


@pytest.mark.parametrize(
    "value",
    [
        "{",
        "[]",
        "[" * 4000,
        FORGED % (1, "Infinity", 1),
        FORGED % (1, "NaN", 1),
        FORGED % (1, "-1", 1),
        FORGED % (1, 10**300, 1),
        FORGED % ("Infinity", 4e9, 1),
        FORGED % (10**30, 4e9, 1),
        FORGED % (-1, 4e9, 1),
        FORGED % (0, 4e9, 1),
        FORGED % (1, 4e9, "Infinity"),
        FORGED % (1, 4e9, "[]"),
    ],
)
def test_a_damaged_lock_is_nobodys(
    dead: Callable[[], None], client: Callable[..., Any], value: str
) -> None:
    dead()
    client("ssm").put_parameter(Name=lock_parameter(NAME), Value=value, Overwrite=True)
    with exclusively(AWS, NAME):
        pass


def test_the_version_after_one_that_ssm_has_forgotten_still_counts() -> None:
    holder = lock.Holder("here", 1, 4e9, after=99, after_token="forgotten")
    assert lock.counting_holder({100: holder}) == holder
    assert lock.counting_holder({101: holder}) is None


def test_who_has_the_nights_lock_is_said_and_until_when() -> None:
    doing = "a night's rows are being built"
    with (
        exclusively(AWS, NAME, seconds=12 * 3600, doing=doing),
        pytest.raises(KilnError) as refused,
        exclusively(AWS, NAME, doing=doing),
    ):
        pass
    assert refused.value.message.startswith(f"{doing} by process ")
    assert refused.value.hint == "wait for it; if it is dead, its lock ends in 12.0 h"
