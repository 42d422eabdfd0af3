"""What the unit tests share: what they would only compute again is kept.

No setting here changes what a program does, and a process that a test starts has none of it.
"""

from __future__ import annotations

import copy
import gc
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest

from kiln import facts
from kiln.base import vocabulary
from kiln.cli.output import FORMAT
from kiln.cloud import network
from kiln.facts import tables
from lab.api import botocore_data
from tests import surroundings
from tests.unit import caches

surroundings.replace()
# Support of distributions and drivers ends: the tests' day is the same on every day.
vocabulary.today = lambda: surroundings.TODAY
# The modules that tests import are not garbage; searching them again and again took a twentieth of
# the whole run.
gc.set_threshold(100_000, 50, 50)
# moto makes a session for each test.
botocore_data.read_once()
caches.read_facts_once()
# A shell ignores SIGINT for what it starts in the background, and so would the programs that the
# tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)
# And nohup ignores SIGHUP.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
# The signals that `./invoke` takes.
_TAKEN = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)


def pytest_collection_finish() -> None:
    """What was collected is not garbage either; pytest searches it five times at its end."""
    gc.freeze()


@pytest.fixture(autouse=True)
def _process_as_before() -> Iterator[None]:
    """A test leaves the process as it was, whichever file comes next: a program that runs in it
    takes signals, and has a folder and a umask of its own."""
    FORMAT.json = False
    handlers = {number: signal.getsignal(number) for number in _TAKEN}
    hook, folder, mask = sys.unraisablehook, Path.cwd(), os.umask(0o022)
    os.umask(mask)
    yield
    os.umask(mask)
    os.chdir(folder)
    sys.unraisablehook = hook
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture(autouse=True, scope="package")
def _own_machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The machine's lab folder is not theirs, and they need no network."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KILN_LAB_STATE", str(tmp_path_factory.mktemp("lab")))
        for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
            patch.delenv(name)
        yield


@pytest.fixture(autouse=True, scope="module")
def _no_clients_of_another_file() -> Iterator[None]:
    """A client keeps the keys and the endpoint of the environment in which it was made."""
    yield
    caches.forget_clients()


@pytest.fixture
def ec2(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """An account of moto's, in eu-central-1; a client of its EC2."""
    from moto import mock_aws  # as slow to import as all other modules of most tests

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    # moto's thousand public AMIs take most of a second a test.
    monkeypatch.setenv("MOTO_EC2_LOAD_DEFAULT_AMIS", "false")

    monkeypatch.setattr(network, "public_address", lambda: "192.0.2.7")
    monkeypatch.setattr(network, "address_towards", lambda block: f"10.0.0.9 for {block}")
    with mock_aws():
        yield boto3.client("ec2", "eu-central-1")


@pytest.fixture
def marked(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Change fields of a table of facts for one test: of the mapping that `keys` lead to, or of
    each entry of the list."""

    def change(table: str, *keys: str | int, **fields: Any) -> None:
        data = copy.deepcopy(facts.table(table))
        rows: Any = data
        for key in keys:
            rows = rows[key]
        for row in rows if isinstance(rows, list) else [rows]:
            row.update(fields)
        read_table = tables.read_table
        monkeypatch.setattr(
            tables, "read_table", lambda path: data if path.stem == table else read_table(path)
        )
        caches.forget()

    yield change
    caches.forget()
