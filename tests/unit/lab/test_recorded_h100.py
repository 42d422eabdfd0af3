"""The stand-in answers as nvidia-smi 580.159.04 did on a real H100, message by message."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.unit.lab.standin_guest import Guest
from tests.unit.runtime import recorded_h100 as recorded

pytestmark = pytest.mark.slow
BUSY = {"gpu": 0, "name": "/tmp/xid", "pid": 833}  # the program that ran while it was asked
# What is that card's, that machine's or that moment's: the label or element stays, the value goes.
OWN = {
    "Timestamp", "Addressing Mode", "Serial Number", "GPU UUID", "GPU PDI", "VBIOS Version",
    "Board ID", "Board Part Number", "Module Id", "Bus", "Device", "Bus Id", "Replays Since Reset",
    "Tx Throughput", "Rx Throughput", "GPU Current Temp", "GPU T.Limit Temp", "Memory Current Temp",
    "Average Power Draw", "Instantaneous Power Draw", "Max", "Min", "Avg", "Process ID",
    "Used GPU Memory",
    "timestamp", "addressing_mode", "serial", "uuid", "pdi", "vbios_version", "board_id",
    "board_part_number", "module_id", "pci_bus", "pci_device", "pci_bus_id", "latest_timestamp",
    "latest_duration", "replay_counter", "tx_util", "rx_util", "clocks_event_reason_gpu_idle",
    "used", "free", "gpu_util", "gpu_temp", "gpu_temp_tlimit", "memory_temp", "average_power_draw",
    "instant_power_draw", "graphics_clock", "sm_clock", "video_clock", "used_memory",
}  # fmt: skip


@pytest.fixture(scope="module")
def guest(tmp_path_factory: pytest.TempPathFactory) -> Guest:
    """A p5 with one H100 and the recording's driver, in persistence mode, as it was there."""
    made = Guest(tmp_path_factory.mktemp("guest"), "p5.4xlarge", recorded.DRIVER)
    made.ok("-pm", "1")
    return made


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Guest:
    """The same while a program works on the GPU."""
    made = Guest(tmp_path_factory.mktemp("busy"), "p5.4xlarge", recorded.DRIVER)
    made.ok("-pm", "1")
    made.faults(busy=[BUSY])
    return made


def without_own(text: str) -> list[str]:
    """The lines of -q or -q -x without the values of OWN."""
    text = re.sub(r'gpu id="[^"]*"|^GPU 0000.*', "gpu", text, flags=re.M)
    text = re.sub(
        r"^(\s*)<(\w+)>[^<\n]*<",
        lambda m: m[0] if m[2] not in OWN else f"{m[1]}<{m[2]}><",
        text,
        flags=re.M,
    )
    return [
        head if (head := line.split(" : ")[0]).strip() in OWN else line
        for line in text.splitlines()
    ]


def test_report_is_the_real_one(guest: Guest) -> None:
    assert without_own(guest.ok("-q")) == without_own(recorded.answer("q", "-q"))


def test_xml_is_the_real_one_but_for_what_is_the_cards_own(busy: Guest) -> None:
    lines = without_own(busy.ok("-q", "-x"))
    clocks = [n for n, line in enumerate(lines) if "<supported_graphics_clock>" in line]
    del lines[clocks[1] : clocks[-1]]  # as in the recording
    assert lines == without_own(recorded.answer("q-x", "-q", "-x"))


def test_mig_lists_are_the_real_ones_while_mig_is_off(guest: Guest) -> None:
    for words, out, code in recorded.answers("mig"):
        result = guest.smi(*words)
        assert (result.out, result.code) == (out, code), words


def test_every_field_has_the_real_names_unit_and_form(guest: Guest) -> None:
    real = recorded.fields()
    asked = ",".join(field.names[0] for field in real)
    head, row = guest.ok(f"--query-gpu={asked}", "--format=csv").splitlines()
    assert head.split(", ") == [field.title for field in real]
    differ = {
        field.names[0]: (value, field.value)
        for field, value in zip(real, row.split(", "), strict=True)
        if value != field.value
    }
    assert set(differ) == {
        "timestamp", "serial", "uuid", "pci.bus_id", "pci.bus", "pci.device", "addressing_mode",
        "vbios_version", "temperature.gpu", "temperature.gpu.tlimit", "temperature.memory",
        "power.draw", "power.draw.average", "power.draw.instant", "platform.module_id",
    }  # fmt: skip


def test_refusals_have_the_real_words_and_status(guest: Guest) -> None:
    """Everything that goes wrong goes to the standard output there too."""
    uuid = guest.ok("--query-gpu=uuid", "--format=csv,noheader").strip()
    own = {recorded.UUID: uuid, "00:06.0": "53:00.0", recorded.DRIVER: recorded.DRIVER}

    def here(text: str) -> str:
        for there, name in own.items():
            text = text.replace(there, name)
        return re.sub(r"165\d{10}", "165", text)

    for words, out, code in recorded.answers("answers"):
        if words[0].startswith("--query-compute-apps=pid,name"):
            guest.faults(busy=[BUSY])
        result = guest.smi(*map(here, words))
        guest.faults()
        mine = result.out.replace(" 4 MiB", " 612 MiB")
        assert (mine, result.code) == (here(out), code), words


def test_an_h200_differs_where_the_real_one_does(tmp_path: Path) -> None:
    guest = Guest(tmp_path, "p5en.48xlarge", recorded.DRIVER)
    guest.faults(hide=list(range(1, 8)))
    for words, out, code in recorded.answers("mig", recorded.H200):
        result = guest.smi(*words)
        assert (result.out, result.code) == (out, code), words
    report = guest.ok("-q").splitlines()
    unlike = [line for line in recorded.H200.joinpath("q-differs").read_text().splitlines()
              if line.split(" : ")[0].strip() not in OWN - {"Max", "VBIOS Version"}
              and line not in report]  # fmt: skip
    # The image in its InfoROM is not derived; free memory is rounded another way on each machine.
    assert [line.split(" : ")[0].strip() for line in unlike] == ["Image Version", "Free"]
