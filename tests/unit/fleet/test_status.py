"""`fleet.status` of a large fleet: how often it asks AWS, and what becomes of the answers."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.paginate import PageIterator

from kiln.cloud import aws
from kiln.cloud.target import Target
from kiln.fleet import install, machines, status
from kiln.telemetry.settings import Telemetry

AWS = Target("a test", "us-east-1", account="123456789012")
IDS = [f"i-{number:017x}" for number in range(200)]
SAID = "driver=580.1\nagent=1.300064.0b1337\nimage=yes\n"
# What a page holds at most: of each call's API reference.
PAGE = {
    "describe_instances": 1000,
    "describe_instance_information": 50,
    "get_metric_data": 500,
    "describe_log_streams": 50,
    "filter_log_events": 10_000,
    "list_command_invocations": 50,
}


class Account:
    """AWS with these instances, of which those of `online` answer Systems Manager; what is asked of
    it is counted; `measured`: minutes since the last metric."""

    exceptions = SimpleNamespace(ResourceNotFoundException=KeyError)

    def __init__(
        self, online: list[str], events: tuple[str, ...] = (), *, measured: int | None = 1
    ) -> None:
        self.online, self.calls, self.events = online, Counter[str](), events
        self.measured = measured
        self.commands: list[list[str]] = []

    def get_paginator(self, call: str) -> Any:
        return Pages(self, call)

    def send_command(self, **asked: Any) -> Any:
        self.calls["send_command"] += 1
        self.commands.append(asked["Targets"][0]["Values"])
        return {"Command": {"CommandId": str(len(self.commands) - 1)}}

    def answers(self, call: str, asked: dict[str, Any]) -> tuple[str, list[Any]]:
        """The key of an answer's list, and all of it."""
        if call == "describe_instances":
            machine = {"ImageId": "ami-1", "InstanceType": "g4dn.xlarge"}
            machine |= {"State": {"Name": "running"}, "IamInstanceProfile": {"Arn": "a/gpu"}}
            return "Reservations", [{"Instances": [machine | {"InstanceId": key}]} for key in IDS]
        if call == "describe_instance_information":
            listed = [key for key in asked["Filters"][0]["Values"] if key in self.online]
            return "InstanceInformationList", [
                {"InstanceId": key, "PingStatus": "Online"} for key in listed
            ]
        if call == "get_metric_data":
            now, minutes = datetime.now(timezone.utc), self.measured
            times = [] if minutes is None else [now - timedelta(minutes=minutes)]
            return "MetricDataResults", [
                {"Id": query["Id"], "Timestamps": times} for query in asked["MetricDataQueries"]
            ]
        if call == "describe_log_streams":
            newest = int(time.time() * 1000)
            return "logStreams", [
                {"logStreamName": key, "lastEventTimestamp": newest} for key in IDS
            ]
        if call == "list_command_invocations":
            done = {"Status": "Success", "StatusDetails": "Success"}
            done |= {"CommandPlugins": [{"Status": "Success", "Output": SAID}]}
            ids = self.commands[int(asked["CommandId"])]
            return "CommandInvocations", [done | {"InstanceId": key} for key in ids]
        return "events", [
            {"logStreamName": IDS[0], "message": text, "timestamp": 1_790_000_000_000}
            for text in self.events
        ]


class Answers(PageIterator):
    """Pages that are there already; `search` is botocore's."""

    def __init__(self, pages: Iterable[dict[str, Any]]) -> None:
        self.pages = pages

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.pages)


class Pages:
    def __init__(self, account: Account, call: str) -> None:
        self.account, self.call = account, call

    def paginate(self, **asked: Any) -> Answers:
        return Answers(self._pages(asked))

    def _pages(self, asked: dict[str, Any]) -> Iterator[dict[str, Any]]:
        key, found = self.account.answers(self.call, asked)
        for start in range(0, max(len(found), 1), PAGE[self.call]):
            self.account.calls[self.call] += 1
            yield {key: found[start : start + PAGE[self.call]]}


def asked(
    monkeypatch: pytest.MonkeyPatch,
    online: list[str],
    events: tuple[str, ...] = (),
    *,
    profile: str = "compute",
    measured: int | None = 1,
) -> tuple[Counter[str], list[status.FleetStatus]]:
    """The calls for a status of all instances, and what it is."""
    account = Account(online, events, measured=measured)
    monkeypatch.setattr(aws, "client", lambda *_: account)
    monkeypatch.setattr(machines.time, "sleep", lambda seconds: None)
    found = machines.find_machines(AWS, machines.parse_targets("all"))
    return account.calls, status.fleet_status(
        AWS, found, Telemetry(profile=profile), lambda text: None
    )


def test_200_instances_are_asked_for_in_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    events = ('{"xid": 79, "count": 3}', '{"xid": 79, "count": -2}', '{"xid": 79}')
    calls, rows = asked(monkeypatch, online=[], events=events)
    assert calls == {
        "describe_instances": 1, "describe_instance_information": 4,
        "get_metric_data": 1, "describe_log_streams": 4, "filter_log_events": 1,
    }  # fmt: skip
    assert [row.machine.instance_id for row in rows] == IDS
    assert all(row.reports for row in rows)
    assert {what for row in rows for what in row.missing} == {"no SSM"}
    assert rows[0].xids == {"79": 5}, "each line counts once at least"
    calls, rows = asked(monkeypatch, online=IDS)
    assert calls["send_command"] == calls["list_command_invocations"] == 4, "50 at once"
    assert calls.total() == 11 + 8
    shown = [row.to_dict() for row in rows]
    assert {(row["driver"], row["configuration"], *row["missing"]) for row in shown} == {
        ("580.1", "AMI Kiln's image")
    }


def test_events_alone_report_without_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    _, rows = asked(monkeypatch, online=IDS, profile="none", measured=None)
    assert all(row.reports and not row.missing for row in rows)
    for minutes in (None, 11):
        _, rows = asked(monkeypatch, online=IDS, measured=minutes)
        assert not any(row.reports for row in rows)
        assert {what for row in rows for what in row.missing} == {"no metrics"}


def test_stopped_instance_fails_uninstall(monkeypatch: pytest.MonkeyPatch) -> None:
    states = {"i-1": "running", "i-2": "stopped", "i-3": "terminated"}
    chosen = [
        machines.FleetMachine(key, "ami-1", "g4dn.xlarge", state, "gpu", "")
        for key, state in states.items()
    ]
    monkeypatch.setattr(install, "managed_machines", lambda target, ids: {})
    monkeypatch.setattr(install, "publish_document", lambda target: {"DocumentName": "theirs"})
    answers = install.uninstall_fleet(AWS, chosen, lambda text: None)
    assert {key: (answer.ok, answer.why) for key, answer in answers.items()} == {
        "i-2": (False, "it is stopped")
    }


def step(status: str, output: str) -> dict[str, str]:
    return {"Status": status, "Output": output}


FAILED = "half done\n----------ERROR-------\nkiln-fleet: ERROR: no space\nfailed to run commands: 1"


class Commands:
    """Run Command: what each instance has answered at each look; the last one is for all later."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *looks: dict[str, tuple[str, Any]]) -> None:
        self.looks, self.sent, self.cancelled = list(looks), dict[str, Any](), list[str]()
        monkeypatch.setattr(aws, "ssm", lambda target: self)
        monkeypatch.setattr(machines.time, "sleep", lambda seconds: None)

    def run(self, ids: list[str], patience: float = 60) -> dict[str, machines.CommandAnswer]:
        batches: Any = [(ids, {}), ([], {})]
        ours = {"DocumentName": "ours"}
        return machines.run_command(AWS, ours, batches, patience=patience, say=print)

    def send_command(self, **asked: Any) -> Any:
        self.sent = asked
        return {"Command": {"CommandId": "c"}}

    def cancel_command(self, CommandId: str) -> None:  # noqa: N803
        self.cancelled.append(CommandId)

    def get_paginator(self, call: str) -> Any:
        return self

    def paginate(self, **asked: Any) -> Any:
        look = self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]
        invocations = [
            {"InstanceId": key, "Status": status, "StatusDetails": status, "CommandPlugins": steps}
            for key, (status, steps) in look.items()
        ]
        return Answers([{"CommandInvocations": invocations}])


def test_each_instance_answers_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = {
        "i-1": ("Success", [step("Success", "all done\n----------ERROR-------\na warning")]),
        "i-2": ("Failed", [step("Success", "fetched"), step("Failed", FAILED)]),
        "i-3": ("Cancelled", []),
    }
    client = Commands(monkeypatch, {"i-1": ("InProgress", [])}, ended)
    answers = client.run([*ended])
    assert client.sent["Targets"] == [{"Key": "InstanceIds", "Values": [*ended]}]
    assert {key: (answer.ok, answer.output, answer.why) for key, answer in answers.items()} == {
        "i-1": (True, "all done", ""),
        "i-2": (False, "fetched\nhalf done", "no space"),
        "i-3": (False, "", "Cancelled"),
    }


RUNS = {"i-1": ("Success", []), "i-2": ("InProgress", [])}


@pytest.mark.parametrize(
    ("looks", "second"),
    [
        (
            [RUNS, RUNS, RUNS | {"i-2": ("Cancelled", [])}],
            machines.CommandAnswer(False, why="Cancelled"),
        ),
        ([RUNS], machines.NOT_ENDED),
    ],
)
def test_late_command_is_cancelled(
    monkeypatch: pytest.MonkeyPatch, looks: Any, second: machines.CommandAnswer
) -> None:
    client = Commands(monkeypatch, *looks)
    monkeypatch.setattr(machines, "_CANCELLING", 0.05)
    assert client.run(["i-1", "i-2"], 0) == {"i-1": machines.CommandAnswer(True), "i-2": second}
    assert client.cancelled == ["c"]


def test_terminated_instance_fails_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Commands(monkeypatch, RUNS)
    monkeypatch.setattr(machines, "_LOOK", 0)
    monkeypatch.setattr(machines, "lost_machines", lambda target, ids: {ids[0]: "terminated"})
    answers = client.run(["i-1", "i-2"])
    assert answers["i-2"] == machines.CommandAnswer(False, why="it is terminated")
    assert client.cancelled == []
