"""IMEX: the driver's version, started only on hosts whose NVLink connects several hosts."""

import pytest
from expectations import assert_enabled, assert_held, assert_packages_at, recorded

pytestmark = pytest.mark.bake


def test_its_version_is_the_drivers(machine, recipe, version_info):
    assert_packages_at(machine, recorded(version_info, "nvidia-imex")["packages"], recipe["driver"])


def test_it_is_held(machine, version_info):
    assert_held(machine, recorded(version_info, "nvidia-imex")["held"])


def test_it_is_enabled_but_where_the_dra_driver_runs_it(machine, recipe):
    if recipe["flavor"] == "eks":
        assert machine["units"]["nvidia-imex.service"]["UnitFileState"] == "masked"
    else:
        assert_enabled(machine, "nvidia-imex.service")


def test_the_driver_gets_its_parameter(machine, recipe):
    cdmm, channel = "NVreg_CoherentGPUMemoryMode=driver", "NVreg_CreateImexChannel0=1"
    lines = (machine["text"]["/etc/modprobe.d/kiln-imex.conf"] or "").splitlines()
    assert f"options nvidia {cdmm if recipe['flavor'] == 'eks' else channel}" in lines
