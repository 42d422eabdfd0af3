"""The light EFA collector: what it reads from sysfs is what arrives at the agent's statsd port."""

import contextlib
import importlib.machinery
import importlib.util
import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from kiln.telemetry.settings import telemetry_facts
from tests import surroundings

PROGRAM = Path(__file__).parents[2] / "runtime/opt/kiln/lib/kiln-efa-statsd"
# 3.7 is the oldest that an image has (Amazon Linux 2).
PYTHONS = list(surroundings.pythons().values()) or [sys.executable]


@pytest.fixture
def agent():
    """A UDP port that takes what the agent would."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))
        sock.settimeout(0.2)
        yield sock


def counters(machine: Path, device: str = "rdmap16s27", **values: int) -> None:
    folder = machine / "sys" / device / "ports/1/hw_counters"
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in values.items():
        (folder / name).write_text(f"{value}\n")


def run(machine: Path, agent: socket.socket, python: str = sys.executable) -> list[str]:
    port = agent.getsockname()[1]
    subprocess.run(
        [
            *(python, str(PROGRAM), "--sysfs", str(machine / "sys")),
            *("--state", str(machine / "run/efa.json"), "--statsd", f"127.0.0.1:{port}"),
        ],
        check=True,
    )
    lines = []
    with contextlib.suppress(TimeoutError):
        while True:
            lines.append(agent.recv(1500).decode())
    return lines


def test_the_first_reading_sends_nothing(tmp_path, agent):
    counters(tmp_path, rx_bytes=1000)
    assert run(tmp_path, agent) == []


@pytest.mark.parametrize("python", PYTHONS, ids=lambda python: Path(python).parts[-3])
def test_what_was_counted_since_is_sent_with_device_and_port(tmp_path, agent, python):
    counters(tmp_path, rx_bytes=1000, rx_drops=3)
    run(tmp_path, agent, python)
    counters(tmp_path, rx_bytes=1512, rx_drops=3)
    assert run(tmp_path, agent, python) == [
        "efa_rx_bytes:512|c|#device:rdmap16s27,port:1",
        "efa_rx_dropped:0|c|#device:rdmap16s27,port:1",
    ]


def test_a_counter_that_began_anew_is_skipped_once(tmp_path, agent):
    counters(tmp_path, tx_bytes=5000)
    run(tmp_path, agent)
    counters(tmp_path, tx_bytes=10)
    assert run(tmp_path, agent) == []
    counters(tmp_path, tx_bytes=30)
    assert run(tmp_path, agent) == ["efa_tx_bytes:20|c|#device:rdmap16s27,port:1"]


def test_devices_are_told_apart_and_a_new_one_waits_a_minute(tmp_path, agent):
    counters(tmp_path, tx_bytes=0)
    run(tmp_path, agent)
    counters(tmp_path, tx_bytes=1)
    counters(tmp_path, "rdmap32s27", tx_bytes=900)
    assert run(tmp_path, agent) == ["efa_tx_bytes:1|c|#device:rdmap16s27,port:1"]


def test_a_torn_state_file_is_a_first_reading(tmp_path, agent):
    counters(tmp_path, tx_bytes=7)
    run(tmp_path, agent)
    (tmp_path / "run/efa.json").write_text('{"rdmap16s')
    assert run(tmp_path, agent) == []
    assert json.loads((tmp_path / "run/efa.json").read_text()) == {"rdmap16s27/1/tx_bytes": 7}


def test_its_counters_are_those_of_the_knowledge():
    loader = importlib.machinery.SourceFileLoader("kiln_efa_statsd", str(PROGRAM))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.dont_write_bytecode, kept = True, sys.dont_write_bytecode
    loader.exec_module(module)
    sys.dont_write_bytecode = kept
    known = {counter["sysfs"]: counter["agent"] for counter in telemetry_facts()["efa"]["counters"]}
    assert known == module.COUNTERS
