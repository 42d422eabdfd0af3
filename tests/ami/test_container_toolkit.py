"""The container toolkit, and its registration with the image's container runtimes."""

import json
import re

import pytest
from applies import only_if
from expectations import assert_held, assert_packages_at, nvidia_smi, recorded

pytestmark = pytest.mark.bake


def test_the_packages_are_of_that_version(machine, recipe, version_info):
    record = recorded(version_info, "container-toolkit")
    assert_packages_at(machine, record["packages"], recipe["container_toolkit"])


def test_the_packages_are_held(machine, version_info):
    assert_held(machine, recorded(version_info, "container-toolkit")["held"])


def test_nvidia_ctk_answers_with_that_version(machine, recipe):
    answer = machine["commands"]["nvidia-ctk"]
    assert answer["rc"] == 0, answer["out"].strip()
    assert recipe["container_toolkit"] in answer["out"]


def of_flavor(*flavors):
    return only_if(lambda expect: expect["recipe"].get("flavor", "base") in flavors)


@of_flavor("base", "parallelcluster")
def test_every_runtime_on_the_image_knows_it(machine, version_info):
    runtimes = recorded(version_info, "container-toolkit").get("runtimes", [])
    if not runtimes:
        pytest.skip("there is no container runtime on this image")
    # containerd says itself what it imports: from 1.18 on nvidia-ctk writes a drop-in.
    facts_given = {
        "docker": machine["text"]["/etc/docker/daemon.json"] or "",
        "containerd": machine["commands"]["containerd-config"]["out"],
    }
    for runtime in runtimes:
        assert "nvidia-container-runtime" in facts_given[runtime], runtime


@of_flavor("ecs")
def test_docker_knows_it_by_amazons_way_alone(machine):
    script = machine["files"]["/etc/docker-runtimes.d/nvidia"]
    assert script, "/etc/docker-runtimes.d/nvidia is missing"
    assert int(script["mode"], 8) & 0o111, "/etc/docker-runtimes.d/nvidia cannot be run"
    settings = json.loads(machine["text"]["/etc/docker/daemon.json"] or "{}")
    assert "nvidia" not in settings.get("runtimes", {}), "of two, dockerd takes the file's"


@of_flavor("ecs")
def test_the_ecs_agent_is_told_to_use_gpus(machine):
    lines = (machine["text"]["/var/lib/ecs/ecs.config"] or "").splitlines()
    assert "ECS_ENABLE_GPU_SUPPORT=true" in lines


@of_flavor("ecs")
@pytest.mark.boot
def test_docker_runs_and_lists_the_runtime(machine):
    answer = machine["commands"]["docker-info"]
    assert answer["rc"] == 0, answer["out"].strip()
    assert "nvidia" in answer["out"], "docker does not know the runtime nvidia"


@of_flavor("eks")
def test_nodeadm_finds_the_runtime(machine):
    program = machine["files"]["/usr/bin/nvidia-container-runtime"]
    assert program, "/usr/bin/nvidia-container-runtime is missing: containers would have no GPUs"


@pytest.mark.boot
def test_containers_would_get_every_gpu(machine, gpu):
    answer = machine["commands"]["nvidia-container-cli"]
    assert answer["rc"] == 0, f"nvidia-container-cli info: {answer['out'].strip()}"
    # A slice of MIG has a UUID that begins otherwise.
    found = set(re.findall(r"\bGPU-[0-9a-f-]{36}", answer["out"]))
    assert found == {row["uuid"] for row in nvidia_smi(machine)}


@pytest.mark.boot
def test_container_runtimes_do_not_lower_limits(machine):
    names = ("docker.service", "containerd.service")
    units = {n: machine["units"].get(n, {}) for n in names}
    there = {n: facts for n, facts in units.items() if facts.get("LoadState") == "loaded"}
    if not there:
        pytest.skip("there is no container runtime on this image")
    for name, facts in there.items():
        # systemd 219 writes infinity as the largest number.
        limits = {
            limit: float(facts[limit].replace("infinity", "inf"))
            for limit in ("LimitMEMLOCK", "LimitNOFILE")
        }
        assert limits["LimitMEMLOCK"] >= 1 << 63, f"{name}: LimitMEMLOCK={facts['LimitMEMLOCK']}"
        assert limits["LimitNOFILE"] >= 65536, f"{name}: LimitNOFILE={facts['LimitNOFILE']}"
