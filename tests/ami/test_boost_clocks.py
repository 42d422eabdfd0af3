"""The GPUs' application clocks are the highest, if documented and supported by the driver."""

import pytest
from applies import only_if
from expectations import assert_active, assert_enabled, assert_not_started

UNIT = "kiln-gpu-clocks.service"


@pytest.mark.bake
def test_its_unit_is_enabled(machine):
    assert_enabled(machine, UNIT)


@pytest.mark.boot
def test_its_unit_ran_exactly_where_there_are_clocks_to_set(machine, gpu):
    if gpu["clocks"]:
        assert_active(machine, UNIT)
    else:
        assert_not_started(machine, UNIT)


@only_if(lambda expect: not expect.get("gpu") or expect["gpu"]["clocks"])
@pytest.mark.boot
def test_every_gpu_has_its_highest_application_clocks(machine, gpu):
    answer = machine["commands"]["gpu-clocks"]
    assert answer["rc"] == 0, answer["out"]
    rows = [line.split(", ") for line in answer["out"].strip().splitlines()]
    assert rows, "nvidia-smi shows no GPU"
    if not any(word.isdigit() for row in rows for word in row[1:]):
        pytest.skip(f"this driver sets no application clocks: it shows {rows[0][1]}")
    for index, *clocks in rows:
        assert clocks == [str(clock) for clock in gpu["clocks"]], f"GPU {index}"
