"""kiln-gpu-clocks: which application clocks it asks nvidia-smi for, and what it lets pass."""

from __future__ import annotations

import sys

import pytest

from kiln.base.paths import RUNTIME
from kiln.facts import instances

sys.path.insert(0, str(RUNTIME / "opt/kiln/lib"))

from gpu_boot import clocks

SUPPORTED = 'Applications clocks set to "(MEM 5001, SM 1590)" for GPU 00000000:00:1E.0\nAll done.\n'


class Smi:
    """An nvidia-smi that shows GPUs as (name, device id, memory clock, graphics clock)."""

    def __init__(self, *gpus: tuple[str, str, str, str], answer: str = SUPPORTED, code: int = 0):
        rows = [
            f"{index}, {name}, 0x{device.upper()}10DE, {memory}, {graphics}"
            for index, (name, device, memory, graphics) in enumerate(gpus)
        ]
        self.query = (0, "\n".join(rows) + "\n")
        self.answer = (code, answer)
        self.changes: list[tuple[str, ...]] = []

    def __call__(self, *arguments: str) -> tuple[int, str]:
        if arguments[0].startswith("--query-gpu="):
            return self.query
        self.changes.append(arguments)
        return self.answer


T4 = ("Tesla T4", "1eb8", "5001", "585")


@pytest.mark.parametrize("name", instances())
def test_every_instance_type_gets_the_clocks_that_the_facts_name(name: str) -> None:
    entry = instances()[name]
    smi = Smi(*[(entry.product, entry.pci_device_ids[0], "1000", "1000")] * 2)
    assert clocks.main([], smi) == 0
    asked = [change for change in smi.changes if "-ac" in change]
    if entry.application_clocks is None:
        assert asked == []
    else:
        pair = ",".join(map(str, entry.application_clocks))
        assert asked == [("-i", "0", "-ac", pair), ("-i", "1", "-ac", pair)]


def test_gpu_is_known_by_its_device_id() -> None:
    smi = Smi(
        ("NVIDIA L40S", "26b9", "9001", "2520"),
        ("NVIDIA A100-SXM4-80GB", "20b2", "1593", "1275"),
        ("NVIDIA X1000", "ffff", "1000", "1000"),  # undocumented
    )
    assert clocks.main([], smi) == 0
    assert [change[-1] for change in smi.changes] == ["9001,2520", "1593,1410"]


def test_auto_boost_is_turned_off_where_there_is_one() -> None:
    smi = Smi(("Tesla K80", "102d", "2505", "562"), T4)
    clocks.main([], smi)
    assert ("-i", "0", "--auto-boost-default=0") in smi.changes
    assert ("-i", "1", "--auto-boost-default=0") not in smi.changes


@pytest.mark.parametrize("shown", ["[N/A]", "[Requested functionality has been deprecated]"])
def test_a_driver_that_shows_no_application_clocks_is_left_alone(
    shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    smi = Smi(("NVIDIA H200", "2335", shown, shown))
    assert clocks.main([], smi) == 0
    assert smi.changes == []
    assert f"reports no application clocks ({shown}); not changed" in capsys.readouterr().out


def test_a_refusal_is_a_warning_and_no_failure(capsys: pytest.CaptureFixture[str]) -> None:
    text = "Setting applications clocks is not supported for GPU 00000000:00:1E.0.\nAll done.\n"
    assert clocks.main([], Smi(T4, answer=text)) == 0
    output = capsys.readouterr().out
    assert output.startswith("<4>GPU 0 (Tesla T4): 5001,1590 MHz refused, not changed: Setting")


def test_an_nvidia_smi_that_fails_is_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    smi = Smi(T4)
    smi.query = (9, "NVIDIA-SMI has failed because it couldn't communicate with the driver.\n")
    assert clocks.main([], smi) == 1
    assert capsys.readouterr().out.startswith("<3>nvidia-smi failed with 9: NVIDIA-SMI has failed")


def test_an_auto_boost_that_stays_on_is_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    entry = instances()["p2.xlarge"]
    smi = Smi((entry.product, entry.pci_device_ids[0], "1000", "1000"))

    def run(*arguments: str) -> tuple[int, str]:
        return (97, "busy") if "--auto-boost-default=0" in arguments else smi(*arguments)

    assert clocks.main([], run) == 0
    assert "<4>GPU 0: nvidia-smi cannot turn auto boost off (97): busy" in capsys.readouterr().out
