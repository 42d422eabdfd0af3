"""The stand-in's MIG model: who may change the mode when, and where instances go."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from tests.unit.lab.standin_guest import Guest

pytestmark = pytest.mark.slow
Make = Callable[..., Guest]
MODES = ("--query-gpu=mig.mode.current,mig.mode.pending", "--format=csv,noheader", "-i", "0")
IN_USE = "In use by another client"


def placed(guest: Guest) -> list[tuple[str, int, str]]:
    """(profile, instance id, start:size) of GPU 0, in -lgi's order."""
    output = guest.smi("mig", "-i", "0", "-lgi")
    return [
        (name, int(number), place)
        for name, number, place in re.findall(r"MIG (\S+) +\d+ +(\d+) +(\d+:\d+)", output.out)
    ]


def cut(guest: Guest, profiles: str, *more: str) -> str:
    guest.ok("-i", "0", "-mig", "1")
    return guest.ok("mig", "-i", "0", "-cgi", profiles, *more)


# Ids and places as in NVIDIA's MIG user guide and public transcripts.
@pytest.mark.parametrize(
    ("profiles", "ids", "starts"),
    [
        ("19,19,19,19,19,19,19", [13, 11, 12, 7, 8, 9, 10], [6, 4, 5, 0, 1, 2, 3]),
        ("19,14,5", [13, 5, 1], [6, 4, 0]),
        ("9,19,14,19", [2, 7, 4, 8], [4, 0, 2, 1]),
        ("14,19,19,19,19,19", [5, 13, 7, 8, 9, 10], [4, 6, 0, 1, 2, 3]),
        ("14,14,14,20", [5, 3, 4, 13], [4, 0, 2, 6]),
    ],
)
def test_instances_get_the_drivers_ids_and_places(
    make: Make, profiles: str, ids: list[int], starts: list[int]
) -> None:
    guest = make()
    output = cut(guest, profiles)
    assert [int(n) for n in re.findall(r"GPU instance ID +(\d+)", output)] == ids
    by_id = {number: int(place.split(":")[0]) for _, number, place in placed(guest)}
    assert [by_id[number] for number in ids] == starts


def test_an_order_that_does_not_fit_keeps_what_was_made(make: Make) -> None:
    guest = make()
    guest.ok("-i", "0", "-mig", "1")
    output = guest.smi("mig", "-i", "0", "-cgi", "19,19,14,9")
    assert output.lines[-1] == "Failed to create GPU instances: Insufficient Resources"
    assert (output.code, len(placed(guest))) == (23, 3)


@pytest.mark.parametrize(
    ("made", "free"),
    [
        # A100 40 GB after a 4g, then a 2g, then a 1g (a public transcript).
        ("5", ["3/7", "1/1", "2/4", "1/3", "1/2", "0/1", "0/1"]),
        ("5,14,19", ["0/7", "0/1", "0/4", "0/3", "0/2", "0/1", "0/1"]),
        # H200 with two 1g (a public capture).
        ("19,19", ["5/7", "1/1", "2/4", "2/3", "1/2", "1/1", "0/1"]),
    ],
)
def test_what_is_left_counts_as_the_driver_counts(make: Make, made: str, free: list[str]) -> None:
    guest = make()
    cut(guest, made)
    assert re.findall(r"\d/\d", guest.ok("mig", "-i", "0", "-lgip")) == free


def test_instances_are_taken_down_compute_first(make: Make) -> None:
    guest = make()
    cut(guest, "9,9", "-C")
    early = guest.smi("mig", "-i", "0", "-dgi")
    assert early.lines[-1] == f"Failed to destroy GPU instances: {IN_USE}"
    assert early.code == 19
    guest.ok("mig", "-dci")
    guest.ok("mig", "-dgi", "-gi", "1")
    assert placed(guest) == [("3g.20gb", 2, "4:4")]
    guest.ok("mig", "-dgi")
    assert guest.smi("mig", "-dgi").code == 6


def test_a_card_without_mig_only_warns(make: Make) -> None:
    guest = make("g5.xlarge")
    none = guest.smi("mig", "-lgip")
    assert (none.out, none.code) == ("No MIG-supported devices found.\n", 6)
    assert "Not Supported" in guest.ok("-mig", "1")
    assert guest.ok(*MODES) == "[N/A], [N/A]\n"


@pytest.mark.parametrize(
    ("instance_type", "after"),
    [("p4d.24xlarge", "Enabled, Enabled\n"), ("p5.48xlarge", "Disabled, Disabled\n")],
)
def test_only_ampere_keeps_its_mode_over_a_reboot(
    make: Make, instance_type: str, after: str
) -> None:
    guest = make(instance_type)
    cut(guest, "9,9")
    guest.reboot()
    assert guest.ok(*MODES) == after
    assert placed(guest) == []


@pytest.mark.parametrize("way", ["reset", "reboot"])
def test_ampere_in_use_leaves_the_mode_pending(make: Make, way: str) -> None:
    guest = make()
    with guest.work(0):
        output = guest.smi("-i", "0", "-mig", "1")
        assert (output.code, output.lines[-1]) == (0, "All done.")
        assert output.lines[0].endswith(f"GPU 00000000:10:1C.0:{IN_USE}")
        assert guest.ok(*MODES) == "Disabled, Enabled\n"
        held = guest.smi("--gpu-reset", "-i", "0")
        assert (held.lines[1], held.code) == (f"  GPU 00000000:10:1C.0: {IN_USE}", 255)
    if way == "reset":
        output = guest.smi("--gpu-reset", "-i", "0")
        assert output.out == "GPU 00000000:10:1C.0 was successfully reset.\nAll done.\n"
    else:
        guest.reboot()
    assert guest.ok(*MODES) == "Enabled, Enabled\n"


@pytest.mark.parametrize(
    ("driver", "refusal", "code"),
    [
        ("535.247.01", "Resetting GPU 00000000:10:1C.0 is not supported.\n", 3),
        ("580.173.02", "The following GPUs could not be reset:\n  GPU 00000000:10:1C.0: "
         "Not Supported\n", 255),
    ],
)  # fmt: skip
def test_without_resets_only_a_reboot_helps(
    make: Make, driver: str, refusal: str, code: int
) -> None:
    guest = make(driver=driver)
    guest.faults(reset_supported=False)
    assert "Not Supported" in guest.ok("-i", "0", "-mig", "1")
    reset = guest.smi("--gpu-reset", "-i", "0")
    assert (reset.out, reset.code) == (refusal, code)
    guest.reboot()
    assert guest.ok(*MODES) == "Enabled, Enabled\n"


def test_hopper_switches_without_a_reset(make: Make) -> None:
    guest = make("p5.48xlarge")
    guest.faults(reset_supported=False)
    warned = guest.ok("-i", "1", "-mig", "1")
    assert "Warning: persistence mode is disabled on device 00000000:64:00.0." in warned
    guest.ok("-pm", "1")
    done = "Enabled MIG Mode for GPU 00000000:53:00.0\nAll done.\n"
    assert guest.ok("-i", "0", "-mig", "1") == done
    assert guest.ok(*MODES) == "Enabled, Enabled\n"


def test_work_on_a_card_stops_changes_of_instances(make: Make) -> None:
    guest = make("p5.48xlarge")
    guest.ok("-i", "0,1", "-mig", "1")
    guest.ok("mig", "-i", "0", "-cgi", "19", "-C")
    with guest.work(0):
        made = guest.smi("mig", "-i", "0", "-cgi", "19")
        assert (made.code, IN_USE in made.out) == (19, True)
        assert guest.smi("mig", "-i", "0", "-dci").code == 19
        assert guest.smi("mig", "-i", "1", "-cgi", "19").code == 0  # the next card is free


def test_only_root_changes_anything(make: Make) -> None:
    guest = make()
    guest.ok("-i", "0", "-mig", "1")
    guest.euid = 1000
    changes = ("-i 0 -mig 0", "mig -cgi 19", "-pm 1", "-r", "-ac 1215,1410")
    for words in changes:
        output = guest.smi(*words.split())
        assert output.code == 4 and "Insufficient Permissions" in output.out, output
    assert guest.ok(*MODES) == "Enabled, Enabled\n"


def test_mig_devices_are_named_as_the_driver_names_them(make: Make) -> None:
    guest = make()
    cut(guest, "9", "-C")
    uuid = r"^  MIG 3g.20gb +Device  0: \(UUID: MIG-[0-9a-f-]{36}\)$"
    assert re.search(uuid, guest.ok("-L"), re.M)
    guest.write("var/lib/kiln-lab/driver.json", {"version": "460.106.00", "cuda": "11.2"})
    assert re.search(r"\(UUID: MIG-GPU-[0-9a-f-]{36}/[12]/0\)$", guest.ok("-L"), re.M)
