"""`./invoke` answers the same to every caller, and so does each program that it starts."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from kiln.base.paths import ROOT
from kiln.cloud import aws
from lab import control
from lab.settings import Lab
from lab.target import LabTarget
from tests import surroundings

Answer = tuple[int, str, str]


def answer(*arguments: str, umask: int = 0o022, **environment: str) -> Answer:
    """Exit status and output of `./invoke`, as a caller with this environment starts it."""
    done = subprocess.run(
        [ROOT / "invoke", *arguments],
        env={**os.environ, **environment},
        umask=umask,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.fixture(scope="module")
def usual() -> dict[str, Answer]:
    return {task: answer(task, "--json") for task in ("list", "check")}


@pytest.mark.parametrize("caller", surroundings.CALLERS)
def test_every_caller_gets_the_same_answer(caller: str, usual: dict[str, Answer]) -> None:
    for task, expected in usual.items():
        assert answer(task, "--json", **surroundings.CALLERS[caller]) == expected


def test_files_are_readable_whatever_the_umask(tmp_path: Path) -> None:
    """Some go into images: apt's own user reads its keyring there."""
    written = tmp_path / "packer"
    assert answer("render", umask=0o077, KILN_PACKER_DIR=str(written))[0] == 0
    private = [path for path in written.rglob("*") if path.stat().st_mode & 0o044 != 0o044]
    assert next(written.rglob("*.hcl"))
    assert private == []


def test_lab_is_asked_without_the_users_aws_configuration(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lab = Lab(17, tmp_path)
    target = LabTarget("a test", "eu-west-1", lab.endpoint)
    for name, text in {k: v for row in surroundings.CALLERS.values() for k, v in row.items()}:
        monkeypatch.setenv(name, text)
    target.check_region("eu-west-1", "--region")
    aws._client.cache_clear()
    assert aws.ec2(target).meta.endpoint_url == lab.endpoint


def test_lab_and_guests_are_reached_without_proxy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lab = Lab(17, tmp_path)
    monkeypatch.setenv("NO_PROXY", "internal.example,127.0.0.1")
    monkeypatch.delenv("no_proxy", raising=False)
    assert control.environment(lab)["NO_PROXY"] == "internal.example,127.0.0.1,10.218.0.0/16"
