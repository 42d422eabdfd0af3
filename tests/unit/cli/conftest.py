"""`./invoke` in this process: what a person types, and what they read."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import tasks
from kiln.cli import main
from tests.unit import caches


class Done(NamedTuple):
    """How a call ended."""

    status: int
    out: str
    err: str


@pytest.fixture
def run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Callable[..., Done]]:
    """Run a task with folders of its own and no AWS but what a test gives."""
    for name in [name for name in os.environ if name.startswith(("AWS_", "KILN_"))]:
        if name != "KILN_PACKER":
            monkeypatch.delenv(name)
    own = {
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": f"{tmp_path}/aws/config",
        "AWS_SHARED_CREDENTIALS_FILE": f"{tmp_path}/aws/credentials",
        "HOME": str(tmp_path),
        "KILN_BUILD_DIR": f"{tmp_path}/build",
        "KILN_LAB_STATE": f"{tmp_path}/lab",
        "KILN_LAB_INDEX": "50",
    }

    def call(*words: str, **environment: str) -> Done:
        for name, text in (own | environment).items():
            monkeypatch.setenv(name, text)
        caches.forget()
        capsys.readouterr()
        status = main.run(["./invoke", *words], tasks.ns)
        return Done(status, *capsys.readouterr())

    yield call
    caches.forget()
