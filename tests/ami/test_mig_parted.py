"""mig-parted: the recipe's version, without a service of its own; gpu-mig uses it."""

import re

import pytest
from expectations import recorded

pytestmark = pytest.mark.bake


def test_the_program_answers_with_that_version(machine, recipe):
    answer = machine["commands"]["nvidia-mig-parted"]
    assert answer["rc"] == 0, answer["out"].strip()
    assert recipe["mig_parted"] in re.findall(r"\d+(?:\.\d+)+", answer["out"]), answer["out"]


def test_the_archive_was_the_one_that_is_recorded(recipe, version_info):
    archive = recorded(version_info, "mig-parted")["archive"]
    assert recipe["mig_parted"] in archive
    result = [d for d in version_info["downloads"] if d["url"].endswith("/" + archive)]
    assert len(result) == 1, f"downloads.json names {len(result)} archives {archive}"
    assert len(result[0]["sha256"]) == 64


def test_its_own_service_is_not_there(machine):
    state = machine["units"]["nvidia-mig-manager.service"]["LoadState"]
    assert state == "not-found", f"nvidia-mig-manager.service is {state}: two would make the layout"


def test_gpu_mig_may_use_it(machine):
    settings = machine["text"]["/etc/default/gpu-mig"]
    assert settings, "/etc/default/gpu-mig is missing"
    engine = re.findall(r"^MIG_ENGINE=[\"']?([\w-]*)", settings, re.M)
    assert engine[-1:] in ([], ["auto"], ["mig-parted"]), f"MIG_ENGINE={engine[-1]} keeps it out"
