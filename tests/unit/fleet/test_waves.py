"""Waves of an installation: what follows when instances fail or are silent, or AWS is away."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from kiln.cloud.target import Target
from kiln.fleet import install
from kiln.fleet.machines import NOT_ENDED, CommandAnswer, FleetMachine
from kiln.fleet.status import FleetStatus, MachineState
from kiln.telemetry.settings import Telemetry

AWS = Target("a test", "us-east-1", account="123456789012")
IDS = [f"i-{number:017x}" for number in range(6)]
MACHINES = {key: FleetMachine(key, "ami-1", "g4dn.xlarge", "running", "gpu", "") for key in IDS}
BUNDLE = "0" * 64
DOCUMENT = {"DocumentName": "ours", "DocumentVersion": "1", "DocumentHash": "0"}


@dataclass
class Account:
    """Instances with an agent of their own. Those of `broken` fail to install, of `late` never
    end, of `unseen` send no
    metric, of `unheard` no event; `lost` are gone; those of `states` report."""

    broken: Sequence[str] = ()
    late: Sequence[str] = ()
    unseen: Sequence[str] = ()
    unheard: Sequence[str] = ()
    lost: dict[str, str] = field(default_factory=dict)
    bare: Sequence[str] = ()
    metric_before: datetime | None = None
    lacks: dict[str, dict[str, str]] = field(default_factory=dict)
    states: dict[str, MachineState] = field(default_factory=dict)
    done: list[tuple[str, str, tuple[str, ...]]] = field(default_factory=list)

    def status(self, instance_id: str) -> FleetStatus:
        agent = "" if instance_id in self.bare else "1.300031.0b313"
        return FleetStatus(
            MACHINES[instance_id],
            state=self.states.get(instance_id, MachineState(agent=agent)),
            last_metric=self.metric_before,
            reports=instance_id in self.states,
            missing=self.lacks.get(instance_id, {}),
        )

    def run(self, target: Any, document: Any, batches: Any, **_: Any) -> dict[str, CommandAnswer]:
        answers = {}
        for ids, parameters in batches:
            (action,) = parameters["action"]
            (package,) = parameters.get("package", ["Keep"])
            if ids:
                self.done.append((action, package, tuple(ids)))
            for instance_id in ids:
                bad = action == "install" and instance_id in self.broken
                late = action == "install" and instance_id in self.late
                answer = CommandAnswer(not bad, why="it broke" if bad else "")
                answers[instance_id] = NOT_ENDED if late else answer
        return answers


Install = Callable[..., install.Installation]


@pytest.fixture
def account() -> Account:
    return Account()


@pytest.fixture
def messages() -> list[str]:
    return []


@pytest.fixture
def installing(account: Account, messages: list[str], monkeypatch: pytest.MonkeyPatch) -> Install:
    fakes: dict[str, Any] = {
        "bundle_script": lambda settings: "",
        "publish_document": lambda target: DOCUMENT,
        "store_bundle": lambda *_: ("https://bucket/key", BUNDLE),
        "fleet_status": lambda target, machines, *_, **__: [
            account.status(m.instance_id) for m in machines
        ],
        "run_command": account.run,
        "lost_machines": lambda target, ids: {k: v for k, v in account.lost.items() if k in ids},
    }

    def last_metrics(target: Any, settings: Any, ids: list[str], since: Any) -> dict[str, Any]:
        return {key: since for key in ids if key not in account.unseen}

    fakes["last_metrics"] = last_metrics
    fakes["arrived_tests"] = lambda *_: {key for key in IDS if key not in account.unheard}
    for name, fake in fakes.items():
        monkeypatch.setattr(install, name, fake)
    monkeypatch.setattr(install.time, "sleep", lambda seconds: None)

    def run(waves: str = "1,2,100%", **more: Any) -> install.Installation:
        how = install.HowToInstall(Telemetry(), waves, patience=0.05, **more)
        return install.install_fleet(AWS, list(MACHINES.values()), how, messages.append)

    return run


def test_all_waves_run_when_everybody_reports(
    account: Account, installing: Install, messages: list[str]
) -> None:
    done = installing()
    assert not [line for line in messages if "could not" in line or "failed i-" in line]
    assert [wave.ok for wave in done.waves] == [IDS[:1], IDS[1:3], IDS[3:]]
    assert (done.stopped, done.left) == (False, [])
    assert account.done[:2] == [
        ("install", "Keep", tuple(IDS[:1])),
        ("confirm", "Keep", tuple(IDS[:1])),
    ]
    assert {action for action, _, _ in account.done} == {"install", "confirm"}


def test_unconfirmed_install_reruns(account: Account, installing: Install) -> None:
    """Its last metrics are those from before."""
    account.states = {
        IDS[0]: MachineState(bundle=BUNDLE),
        IDS[1]: MachineState(bundle=BUNDLE, unconfirmed="yes"),
    }
    done = installing(waves="100%")
    assert done.already == [IDS[0]]
    assert done.waves[0].ok == IDS[1:]


def test_failed_instance_is_put_back_alone(account: Account, installing: Install) -> None:
    account.broken = IDS[1:2]
    done = installing()
    assert (done.waves[1].ok, done.waves[1].failed) == (IDS[2:3], IDS[1:2])
    assert done.waves[1].rolled_back == IDS[1:2]
    assert (done.stopped, done.left) == (True, IDS[3:])
    assert account.done[-2:] == [("confirm", "Keep", (IDS[2],)), ("put-back", "Keep", (IDS[1],))]


def test_so_many_may_fail_over_all_waves(account: Account, installing: Install) -> None:
    account.broken = [IDS[0], IDS[2]]
    done = installing(max_errors="1")
    assert ([len(wave.failed) for wave in done.waves], done.stopped) == ([1, 1], True)
    done = installing(max_errors="2")
    assert ([len(wave.failed) for wave in done.waves], done.stopped) == ([1, 1, 0], False)


def test_unusable_instance_is_skipped(account: Account, installing: Install) -> None:
    why = "nvidia-smi does not answer"
    account.lacks = {IDS[0]: {"no driver": why, "no agent": "none"}, IDS[1]: {"no agent": "none"}}
    account.metric_before = datetime.now(timezone.utc) - timedelta(seconds=1)
    done = installing()
    assert done.skipped == {IDS[0]: f"no driver: {why}"}
    assert done.waves[0].why[IDS[1]].startswith("no GPU metric"), "a metric from before"


@pytest.mark.parametrize(
    ("what", "missing"),
    [
        ("unseen", "no GPU metric in CWAgent in"),
        ("unheard", "no test event in /ec2/accelerated/accel-event-log in"),
    ],
)
def test_metrics_and_test_event_must_arrive(
    account: Account, installing: Install, what: str, missing: str
) -> None:
    setattr(account, what, IDS[:1])
    done = installing()
    assert done.waves[0].failed == done.waves[0].rolled_back == IDS[:1]
    assert done.waves[0].why[IDS[0]].startswith(missing)


def test_agent_package_comes_and_goes(account: Account, installing: Install) -> None:
    account.bare = account.broken = IDS[1:2]
    installing()
    assert [call for call in account.done[2:] if call[0] != "confirm"] == [
        ("install", "Keep", (IDS[2],)),
        ("install", "Install", (IDS[1],)),
        ("put-back", "Uninstall", (IDS[1],)),
    ]


def test_terminated_instance_is_not_put_back(account: Account, installing: Install) -> None:
    account.broken, account.lost = IDS[:1], {IDS[0]: "terminated"}
    (wave,) = installing().waves
    assert (wave.rolled_back, wave.not_put_back) == ([], {IDS[0]: "it is terminated"})


def test_running_installation_is_not_put_back(account: Account, installing: Install) -> None:
    account.late = IDS[:1]
    (wave,) = installing().waves
    assert (wave.failed, wave.rolled_back) == (IDS[:1], [])
    assert "may still run" in wave.not_put_back[IDS[0]]
    assert [action for action, _, _ in account.done] == ["install"]
