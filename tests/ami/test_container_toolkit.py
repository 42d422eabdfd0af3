"""The container toolkit, and its registration with the image's container runtimes."""

import json
import re

import pytest
from applies import only_if
from expectations import assert_held, assert_packages_at, nvidia_smi, recorded, skip_in_lab

pytestmark = pytest.mark.bake

# A container of the machine's own programs: there may be no way to a registry. systemd takes back
# what a runtime allowed past it when it reads its units again:
# https://github.com/NVIDIA/nvidia-container-toolkit/issues/48
IN_A_CONTAINER = """
set -eu
trap '{ docker rm -f kiln-check; docker rmi kiln-check; } >/dev/null' EXIT
programs="/bin/sh /bin/sleep"
libraries=$(for program in $programs "$(command -v nvidia-smi)"; do ldd "$program"; done |
    grep -oE '/[^ )]+' | sort -u)
tar -chf - $programs $libraries 2>/dev/null | docker import - kiln-check >/dev/null
gpus="--runtime nvidia -e NVIDIA_VISIBLE_DEVICES=all -e NVIDIA_DRIVER_CAPABILITIES=utility"
docker run -d --name kiln-check $gpus kiln-check /bin/sleep 600 >/dev/null
docker exec kiln-check /bin/sh -c 'ulimit -l; ulimit -Hn'
docker exec kiln-check nvidia-smi -L || true
systemctl daemon-reload
echo after
docker exec kiln-check nvidia-smi -L || true
"""


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


@pytest.fixture(scope="module")
def container(host, machine, expect, gpu):
    """What a container says of its limits and GPUs, before and after a daemon-reload."""
    skip_in_lab(machine, expect, "containers are not run in the lab")
    if machine["units"].get("docker.service", {}).get("ActiveState") != "active":
        pytest.skip("docker does not run here, and pods need a cluster")
    answer = host.run("sudo -n timeout 300 bash -c %s", IN_A_CONTAINER)
    assert answer.rc == 0, answer.stderr[-2000:]
    limits, before, after = re.fullmatch(
        r"(\S+\n\S+\n)(.*)after\n(.*)", answer.stdout, re.DOTALL
    ).groups()
    return {"limits": limits.split(), "before": before, "after": after}


@pytest.mark.boot
@pytest.mark.exercise
def test_container_keeps_every_gpu_over_a_daemon_reload(machine, container):
    ours = {row["uuid"] for row in nvidia_smi(machine)}
    for when in ("before", "after"):
        found = set(re.findall(r"\bGPU-[0-9a-f-]{36}", container[when]))
        assert found == ours, f"{when} a daemon-reload: {container[when].strip()}"


@pytest.mark.boot
@pytest.mark.exercise
def test_container_may_lock_memory_and_open_files(container):
    memory, files = container["limits"]
    assert memory == "unlimited", f"ulimit -l is {memory}: EFA and NCCL register memory"
    assert files == "unlimited" or int(files) >= 65536, f"ulimit -Hn is {files}"
