"""`./invoke` answers the same to every caller, and so does each program that it starts."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from kiln.base.paths import ROOT
from kiln.cloud import aws
from lab.api import session_token
from lab.base.settings import Lab
from lab.daemon import control
from lab.target import LabTarget
from tests import surroundings
from tests.unit import caches, commands

pytestmark = pytest.mark.slow
TASKS = ("list --json", "check --json", "list")


def answers(environment: dict[str, str], *tasks: str) -> list[tuple[int, str]]:
    """Exit status and output of each task, without what colors a terminal."""
    done = [commands.invoke(*task.split(), env={**os.environ, **environment}) for task in tasks]
    return [(one.returncode, re.sub(r"\x1b\[[0-9;]*m", "", one.stdout)) for one in done]


@pytest.fixture(scope="module")
def usual() -> list[tuple[int, str]]:
    return answers({}, *TASKS)


# All variables that can be together, and the others.
OTHERS = ("no-colors", "unknown-profile", "region", "turkish")
CALLERS = {"odd": surroundings.ODD, **{name: surroundings.CALLERS[name] for name in OTHERS}}


@pytest.mark.parametrize("caller", CALLERS)
def test_every_caller_gets_the_same_answer(caller: str, usual: list[tuple[int, str]]) -> None:
    # All three where all variables are together.
    tasks = TASKS if caller == "odd" else TASKS[:1]
    assert answers(CALLERS[caller], *tasks) == usual[: len(tasks)]


def test_files_are_readable_whatever_the_umask(tmp_path: Path) -> None:
    """Some go into images: apt's own user reads its keyring there."""
    written = tmp_path / "packer"
    environment = {**os.environ, "KILN_PACKER_DIR": str(written)}
    subprocess.run([ROOT / "invoke", "render"], env=environment, umask=0o077, check=True)
    private = [path for path in written.rglob("*") if path.stat().st_mode & 0o044 != 0o044]
    assert next(written.rglob("*.hcl"))
    assert private == []


def test_lab_is_asked_without_the_users_aws_configuration(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lab = Lab(17, tmp_path)
    target = LabTarget("a test", "eu-west-1", endpoint=lab.endpoint)
    for variables in surroundings.CALLERS.values():
        for name, text in variables.items():
            monkeypatch.setenv(name, text)
    assert target.in_region("eu-west-1") == target
    monkeypatch.setattr(session_token, "require", lambda lab: "a-token")
    caches.forget_clients()
    assert aws.ec2(target).meta.endpoint_url == lab.endpoint


def test_lab_and_guests_are_reached_without_proxy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lab = Lab(17, tmp_path)
    monkeypatch.setenv("NO_PROXY", "internal.example,127.0.0.1")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.setattr(session_token, "require", lambda lab: "a-token")
    assert control.environment(lab)["NO_PROXY"] == "internal.example,127.0.0.1,10.218.0.0/16"
