"""MIG: the recipe's layout is configured, and its unit has applied it at boot."""

import re

import pytest
from expectations import assert_active, assert_enabled


@pytest.mark.bake
def test_its_unit_is_enabled(machine):
    assert_enabled(machine, "kiln-mig.service")


@pytest.mark.bake
def test_its_configuration_is_valid(machine):
    answer = machine["commands"]["gpu-mig"]
    assert answer["rc"] == 0, answer["out"].strip()


@pytest.mark.bake
def test_the_layout_is_the_recipes(machine, recipe):
    text = machine["text"]["/etc/default/gpu-mig"] or ""
    result = re.search(r"^MIG_CONFIG=(.*)$", text, re.MULTILINE)
    assert result, "/etc/default/gpu-mig has no MIG_CONFIG"
    assert result.group(1).strip("\"'") == (recipe["mig_config"] or "")


@pytest.mark.bake
def test_cluster_agents_run_the_gate(machine):
    dropin = "/etc/systemd/system/{}.service.d/20-kiln-gpu-gate.conf"
    texts = {unit: machine["text"][dropin.format(unit)] for unit in ("kubelet", "ecs", "slurmd")}
    assert [unit for unit, text in texts.items() if "kiln-gpu-gate" not in (text or "")] == []


@pytest.mark.boot
def test_its_unit_did_its_work(machine, gpu):
    assert_active(machine, "kiln-mig.service")


@pytest.mark.boot
def test_the_gpus_have_the_chosen_layout(machine, gpu):
    answer = machine["commands"]["gpu-mig-verify"]
    assert answer["rc"] == 0, f"see `journalctl -u kiln-mig`: {answer['out'].strip()}"
