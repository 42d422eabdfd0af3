"""The stand-in's MIG model: who may change the mode when, and where instances go."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from tests.unit.lab.standin_guest import Guest

Make = Callable[..., Guest]
MODES = ("--query-gpu=mig.mode.current,mig.mode.pending", "--format=csv,noheader", "-i", "0")


def placed(guest: Guest) -> list[tuple[str, int, str]]:
    """(profile, instance id, start:size) of GPU 0, in -lgi's order."""
    output = guest.smi("mig", "-i", "0", "-lgi")
    return [
        (name, int(number), place)
        for name, number, place in re.findall(r"MIG (\S+) +\d+ +(\d+) +(\d+:\d+)", output.out)
    ]


def cut(guest: Guest, profiles: str) -> None:
    guest.ok("-i", "0", "-mig", "1")
    guest.ok("mig", "-i", "0", "-cgi", profiles)


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
def test_instances_get_the_ids_and_places_the_driver_gives(
    make: Make, profiles: str, ids: list[int], starts: list[int]
) -> None:
    guest = make()
    guest.ok("-i", "0", "-mig", "1")
    output = guest.ok("mig", "-i", "0", "-cgi", profiles)
    assert [int(n) for n in re.findall(r"GPU instance ID +(\d+)", output)] == ids
    by_id = {number: int(place.split(":")[0]) for _, number, place in placed(guest)}
    assert [by_id[number] for number in ids] == starts


def test_half_of_the_cards_number_their_halves_the_other_way_round(make: Make) -> None:
    guest = make(instance_id="i-0")
    guest.ok("-i", "0", "-mig", "1")
    output = guest.ok("mig", "-i", "0", "-cgi", "19,19,19,19,19,19,19")
    assert re.findall(r"GPU instance ID +(\d+)", output) == ["9", "7", "8", "11", "12", "13", "14"]


def test_the_order_that_does_not_fit_fails_where_the_driver_fails(make: Make) -> None:
    guest = make()
    guest.ok("-i", "0", "-mig", "1")
    output = guest.smi("mig", "-i", "0", "-cgi", "19,19,14,9")
    assert output.lines == [
        "Successfully created GPU instance ID 13 on GPU  0 using profile MIG 1g.5gb (ID 19)",
        "Successfully created GPU instance ID 11 on GPU  0 using profile MIG 1g.5gb (ID 19)",
        "Successfully created GPU instance ID  3 on GPU  0 using profile MIG 2g.10gb (ID 14)",
        "Unable to create a GPU instance on GPU  0 using profile 9: Insufficient Resources",
        "Failed to create GPU instances: Insufficient Resources",
    ]
    assert output.code == 23
    assert len(placed(guest)) == 3  # what was made stays made


@pytest.mark.parametrize(
    ("made", "free"),
    [
        # A100 40 GB after a 4g, then a 2g, then a 1g (a public transcript).
        ("5", ["3/7", "1/1", "2/4", "1/3", "1/2", "0/1", "0/1"]),
        ("5,14", ["1/7", "1/1", "1/4", "0/3", "0/2", "0/1", "0/1"]),
        ("5,14,19", ["0/7", "0/1", "0/4", "0/3", "0/2", "0/1", "0/1"]),
        # H200 with two 1g (a public capture).
        ("19,19", ["5/7", "1/1", "2/4", "2/3", "1/2", "1/1", "0/1"]),
    ],
)
def test_what_is_left_counts_as_the_driver_counts(make: Make, made: str, free: list[str]) -> None:
    guest = make()
    cut(guest, made)
    assert re.findall(r"\d/\d", guest.ok("mig", "-i", "0", "-lgip")) == free


def test_only_one_instance_has_the_media_engines(make: Make) -> None:
    guest = make("g7e.2xlarge")
    cut(guest, "1g.24gb+me")
    assert guest.smi("mig", "-cgi", "1g.24gb+me.all").code == 23
    guest.ok("mig", "-cgi", "1g.24gb,1g.24gb-me,47")
    assert sorted(place for _, _, place in placed(guest)) == ["0:3", "3:3", "6:3", "9:3"]


@pytest.mark.parametrize("name", ["9", "3g.20gb", "MIG 3g.20gb"])
def test_a_profile_goes_by_id_name_or_full_name(make: Make, name: str) -> None:
    guest = make()
    cut(guest, name)
    assert placed(guest) == [("3g.20gb", 2, "4:4")]


def test_an_instance_goes_where_it_is_told(make: Make) -> None:
    guest = make()
    guest.ok("-i", "0", "-mig", "1")
    guest.ok("mig", "-i", "0", "-cgi", "3g.20gb:0,19:4")
    assert {place for _, _, place in placed(guest)} == {"0:4", "4:1"}
    assert guest.smi("mig", "-i", "0", "-cgi", "19:4").code == 23  # taken
    assert guest.smi("mig", "-i", "0", "-cgi", "9:2").code == 2  # no place of this profile
    assert guest.smi("mig", "-i", "0", "-cgi", "19:").code == 2


def test_a_slice_count_is_not_a_profile(make: Make) -> None:
    guest = make()
    guest.ok("-i", "0", "-mig", "1")
    output = guest.smi("mig", "-i", "0", "-cgi", "7", "-C")
    assert output.out == (
        "Unable to create a GPU instance on GPU  0 using profile 7: Invalid Argument\n"
        "Failed to create GPU instances: Invalid Argument\n"
    )
    assert output.code == 2


def test_profiles_of_a_later_driver_are_unknown_to_an_older_one(make: Make) -> None:
    guest = make(driver="510.47.03")
    assert "1g.10gb" not in guest.ok("mig", "-lgip")
    guest.ok("-i", "0", "-mig", "1")
    assert guest.smi("mig", "-i", "0", "-cgi", "15").code == 2


def test_instances_are_taken_down_compute_first(make: Make) -> None:
    guest = make()
    guest.ok("-i", "0", "-mig", "1")
    guest.ok("mig", "-i", "0", "-cgi", "9,9", "-C")
    early = guest.smi("mig", "-i", "0", "-dgi")
    assert early.out == (
        "Unable to destroy GPU instance ID  1 from GPU  0: In use by another client\n"
        "Failed to destroy GPU instances: In use by another client\n"
    )
    assert early.code == 19
    assert guest.ok("mig", "-dci").splitlines()[0] == (
        "Successfully destroyed compute instance ID  0 from GPU  0 GPU instance ID  1"
    )
    guest.ok("mig", "-dgi", "-gi", "1")
    assert placed(guest) == [("3g.20gb", 2, "4:4")]
    assert guest.ok("mig", "-dgi") == "Successfully destroyed GPU instance ID  2 from GPU  0\n"
    none = guest.smi("mig", "-dgi")
    assert (none.out, none.code) == ("No GPU instances found: Not Found\n", 6)


def test_a_gpu_instance_holds_several_compute_instances(make: Make) -> None:
    guest = make()
    cut(guest, "9")
    guest.ok("mig", "-i", "0", "-gi", "2", "-cci", "1c.3g.20gb,0,0")
    full = guest.smi("mig", "-i", "0", "-gi", "2", "-cci", "0")
    assert full.code == 23
    assert guest.ok("-L").count("MIG 1c.3g.20gb") == 3
    guest.ok("mig", "-dci", "-ci", "0,1", "-gi", "2")
    assert guest.ok("-L").count("MIG 1c.3g.20gb") == 1


def test_mig_off_and_no_mig_are_told_apart(make: Make) -> None:
    off = make("p5.48xlarge").smi("mig", "-lgi")
    assert (off.out, off.code) == ("No MIG-enabled devices found.\n", 0)


def test_a_card_without_mig_says_so_and_is_not_an_error(make: Make) -> None:
    guest = make("g5.xlarge")
    none = guest.smi("mig", "-lgip")
    assert (none.out, none.code) == ("No MIG-supported devices found.\n", 6)
    assert guest.ok("-mig", "1") == (
        "Unable to enable MIG Mode for GPU 00000000:00:1E.0: Not Supported\n"
        "Treating as warning and moving on.\nAll done.\n"
    )
    assert guest.ok(*MODES) == "[N/A], [N/A]\n"


def test_ampere_keeps_its_mode_over_a_reboot_and_loses_its_instances(make: Make) -> None:
    guest = make()
    cut(guest, "9,9")
    guest.reboot()
    assert guest.ok(*MODES) == "Enabled, Enabled\n"
    assert guest.smi("mig", "-lgi").out == "No GPU instances found: Not Found\n"


def test_hopper_loses_mode_and_instances_with_the_driver(make: Make) -> None:
    guest = make("p5.48xlarge")
    cut(guest, "9,9")
    guest.reboot()
    assert guest.ok(*MODES) == "Disabled, Disabled\n"


def test_a_frozen_disk_takes_no_card_along(make: Make) -> None:
    guest = make()
    guest.ok("-mig", "1")
    guest.reboot()
    guest.write(
        "etc/kiln-lab/instance.json", {"instance_type": "p4d.24xlarge", "instance_id": "i-other"}
    )
    assert guest.ok(*MODES) == "Disabled, Disabled\n"


def test_on_ampere_any_client_leaves_the_mode_pending_until_a_reset(make: Make) -> None:
    guest = make()
    with guest.work(0):
        output = guest.smi("-i", "0", "-mig", "1")
        assert output.code == 0
        assert output.lines[0] == (
            "Warning: MIG mode is in pending enable state for GPU 00000000:10:1C.0:"
            "In use by another client"
        )
        assert output.lines[-1] == "All done."
        assert guest.ok(*MODES) == "Disabled, Enabled\n"
        held = guest.smi("--gpu-reset", "-i", "0")
        assert held.lines[:2] == [
            "The following GPUs could not be reset:",
            "  GPU 00000000:10:1C.0: In use by another client",
        ]
        assert held.code == 255
    output = guest.smi("--gpu-reset", "-i", "0")
    assert output.out == "GPU 00000000:10:1C.0 was successfully reset.\nAll done.\n"
    assert guest.ok(*MODES) == "Enabled, Enabled\n"


def test_a_pending_mode_takes_effect_at_a_reboot(make: Make) -> None:
    guest = make()
    with guest.work(0):
        guest.ok("-i", "0", "-mig", "1")
    guest.reboot()
    assert guest.ok(*MODES) == "Enabled, Enabled\n"


@pytest.mark.parametrize(
    ("driver", "refusal", "code"),
    [
        ("535.247.01", "Resetting GPU 00000000:10:1C.0 is not supported.\n", 3),
        (
            "580.173.02",
            "The following GPUs could not be reset:\n  GPU 00000000:10:1C.0: Not Supported\n",
            255,
        ),
    ],
)
def test_where_the_hypervisor_allows_no_reset_only_a_reboot_helps(
    make: Make, driver: str, refusal: str, code: int
) -> None:
    guest = make(driver=driver)
    guest.faults(reset_supported=False)
    output = guest.ok("-i", "0", "-mig", "1")
    assert output == (
        "Warning: MIG mode is in pending enable state for GPU 00000000:10:1C.0:Not Supported\n"
        "Reboot the system or try nvidia-smi --gpu-reset to make MIG mode effective on "
        "GPU 00000000:10:1C.0\nAll done.\n"
    )
    reset = guest.smi("--gpu-reset", "-i", "0")
    assert (reset.out, reset.code) == (refusal, code)
    guest.reboot()
    assert guest.ok(*MODES) == "Enabled, Enabled\n"


def test_hopper_switches_without_a_reset(make: Make) -> None:
    guest = make("p5.48xlarge")
    guest.faults(reset_supported=False)
    guest.ok("-pm", "1")
    assert (
        guest.ok("-i", "0", "-mig", "1") == "Enabled MIG Mode for GPU 00000000:53:00.0\nAll done.\n"
    )
    assert guest.ok(*MODES) == "Enabled, Enabled\n"


def test_without_persistence_a_mode_change_warns(make: Make) -> None:
    output = make("p5.48xlarge").ok("-i", "0", "-mig", "1")
    assert "Warning: persistence mode is disabled on device 00000000:53:00.0." in output


def test_work_on_a_card_stops_making_and_destroying_instances(make: Make) -> None:
    guest = make("p5.48xlarge")
    guest.ok("-i", "0,1", "-mig", "1")
    guest.ok("mig", "-i", "0", "-cgi", "19", "-C")
    with guest.work(0):
        made = guest.smi("mig", "-i", "0", "-cgi", "19")
        assert made.out.startswith(
            "Unable to create a GPU instance on GPU  0 using profile 19: In use by another client"
        )
        assert guest.smi("mig", "-i", "0", "-dci").code == 19
        assert guest.smi("mig", "-i", "1", "-cgi", "19").code == 0  # the next card is free


def test_only_root_changes_anything(make: Make) -> None:
    guest = make()
    guest.ok("-i", "0", "-mig", "1")
    guest.euid = 1000
    for words in (
        ["-i", "0", "-mig", "0"], ["mig", "-cgi", "19"], ["-pm", "1"], ["-r"], ["-ac", "1215,1410"],
    ):  # fmt: skip
        output = guest.smi(*words)
        assert output.code == 4 and "Insufficient Permissions" in output.out, output
    assert guest.ok(*MODES) == "Enabled, Enabled\n"


def test_mig_devices_are_named_as_the_driver_names_them(make: Make) -> None:
    guest = make(driver="580.173.02")
    cut(guest, "9")
    guest.ok("mig", "-i", "0", "-cci")
    assert re.search(
        r"^  MIG 3g.20gb +Device  0: \(UUID: MIG-[0-9a-f-]{36}\)$", guest.ok("-L"), re.M
    )
    guest.write("var/lib/kiln-lab/driver.json", {"version": "460.106.00", "cuda": "11.2"})
    assert re.search(r"\(UUID: MIG-GPU-[0-9a-f-]{36}/[12]/0\)$", guest.ok("-L"), re.M)
