"""`kiln-agent-sources`: the agent starts with what this machine serves, never without events.

Run as it runs before the agent's start, on a root of its own (`KILN_ROOT`).
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kiln.base.paths import ROOT
from kiln.telemetry.agent import agent_files
from kiln.telemetry.settings import Telemetry

pytestmark = pytest.mark.slow

PROGRAM = ROOT / "runtime/opt/kiln/lib/kiln-agent-sources"
ETC = "opt/aws/amazon-cloudwatch-agent/etc"
MERGED = f"{ETC}/amazon-cloudwatch-agent.d"


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A root with the files of an image that has everything switched on, and no hardware."""
    settings = Telemetry(efa=True, dcgm=True)
    for path, text in agent_files(settings, "580.178.04").items():
        put(tmp_path / ETC / path, text)
    put(tmp_path / "var/lib/cloud/data/instance-id", "i-0123456789abcdef0\n")
    return tmp_path


def put(path: Path, text: str, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)


def give(machine: Path, *hardware: str) -> None:
    if "gpu" in hardware:
        smi = "#!/bin/sh\necho 'GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-1)'\n"
        put(machine / "usr/bin/nvidia-smi", smi, 0o755)
    if "efa" in hardware:
        put(machine / "sys/class/infiniband/rdmap16s27/ports/1/hw_counters/rx_bytes", "0\n")
    if "exporter" in hardware:
        put(machine / "usr/bin/dcgm-exporter", "#!/bin/sh\n", 0o755)


def start(machine: Path, **env: str) -> tuple[list[str], str]:
    """What the agent would read besides the events, and what the program said."""
    done = subprocess.run(
        [str(PROGRAM)],
        env={**os.environ, "KILN_ROOT": str(machine), **env},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = sorted(path.name for path in (machine / MERGED).iterdir())
    return [name for name in found if name != "kiln-events.json"], done.stdout


def test_without_hardware_only_events_are_on(machine):
    put(machine / "usr/bin/nvidia-smi", "#!/bin/sh\ntrap '' TERM\nsleep 600\n", 0o755)
    assert "did not answer in 1 s" in start(machine, KILN_NVIDIA_SMI_SECONDS="1")[1]
    (machine / "usr/bin/nvidia-smi").unlink()
    found, output = start(machine)
    assert found == []
    assert (machine / MERGED / "kiln-events.json").exists()
    assert "gpu metrics off: /usr/bin/nvidia-smi is missing" in output
    assert "efa metrics off: no EFA device" in output
    assert "dcgm metrics off: dcgm-exporter is not installed" in output


def test_with_hardware_everything_is_on(machine):
    give(machine, "gpu", "efa", "exporter")
    found, _ = start(machine)
    assert found == ["kiln-dcgm.json", "kiln-efa.json", "kiln-gpu.json"]
    staged = (machine / ETC / "kiln.d/gpu.json").read_text()
    assert (machine / MERGED / "kiln-gpu.json").read_text() == staged
    (machine / "usr/bin/nvidia-smi").unlink()
    assert "kiln-gpu.json" not in start(machine)[0]


@pytest.mark.parametrize("place", [f"{MERGED}/theirs.json", f"{ETC}/amazon-cloudwatch-agent.json"])
def test_second_nvidia_gpu_section_stays_out(machine, place):
    give(machine, "gpu", "efa", "exporter")
    put(machine / place, '{"metrics": {"metrics_collected": {"nvidia_gpu": {}}}}')
    found, output = start(machine)
    assert [name for name in found if name.startswith("kiln-")] == [
        "kiln-dcgm.json", "kiln-efa.json",
    ], "only what clashes stays out"  # fmt: skip
    assert f"/{place} has a section nvidia_gpu of its own" in output


def give_real_rules(machine: Path) -> None:
    """The lab's translator, which refuses what the agent's refuses."""
    put(
        machine / "opt/aws/amazon-cloudwatch-agent/bin/config-translator",
        f"#!{Path(sys.executable).resolve()} -SsE\nimport sys\nsys.path.insert(0, {str(ROOT)!r})\n"
        "from lab.vendors.standins.cloudwatch_agent.agent.ctl import translator\n"
        "sys.exit(translator())\n",
        0o755,
    )


def foreign(machine: Path, name: str, **sections: object) -> None:
    put(machine / MERGED / name, json.dumps(sections))


def log_of_theirs(**keys: object) -> dict[str, object]:
    entry = {"file_path": "/var/log/x", "log_group_name": Telemetry().log_group, **keys}
    return {"logs_collected": {"files": {"collect_list": [entry]}}}


def read_entry(machine: Path) -> dict[str, object]:
    config = json.loads((machine / MERGED / "kiln-events.json").read_text())
    return config["logs"]["logs_collected"]["files"]["collect_list"][0]


def test_only_the_file_that_clashes_stays_out(machine):
    give(machine, "gpu", "efa", "exporter")
    give_real_rules(machine)
    foreign(machine, "theirs.json", metrics={"namespace": "Theirs"})
    found, output = start(machine)
    assert found == ["kiln-dcgm.json", "theirs.json"], "EFA's has a namespace too, DCGM's has none"
    assert "gpu metrics off: the agent refuses them beside the files that are not ours" in output
    assert "Different values are specified for namespace" in output


def test_host_metrics_give_way_to_a_foreign_section(machine):
    settings = Telemetry(host=("mem", "disk"))
    text = agent_files(settings, "580.178.04")["kiln.d/host.json"]
    put(machine / ETC / "kiln.d/host.json", text)
    give_real_rules(machine)
    assert start(machine)[0] == ["kiln-host.json"]
    theirs = {"metrics_collected": {"mem": {"measurement": ["free"], "append_dimensions": {}}}}
    foreign(machine, "theirs.json", metrics={**theirs, "namespace": "Theirs"})
    assert start(machine)[0] == ["theirs.json"]


def test_events_take_the_retention_of_another_file(machine):
    give(machine, "gpu")
    give_real_rules(machine)
    baked = read_entry(machine)
    foreign(machine, "theirs.json", logs=log_of_theirs(retention_in_days=7))
    for _ in range(2):
        found, output = start(machine)
        assert found == ["kiln-gpu.json", "theirs.json"]
        assert "events on, with the retention and the class that another file gives" in output
        assert "retention_in_days" not in read_entry(machine)
    (machine / MERGED / "theirs.json").unlink()
    start(machine)
    assert read_entry(machine) == baked


def test_clashing_events_stay_out_until_the_clash_ends(machine):
    give(machine, "gpu")
    put(
        machine / "opt/aws/amazon-cloudwatch-agent/bin/config-translator",
        '#!/bin/sh\nwhile [ "$1" != --input-dir ]; do shift; done\n'
        "[ ! -e $2/theirs.json ] || [ ! -e $2/kiln-events.json ]\n",
        0o755,
    )
    before = (machine / MERGED / "kiln-events.json").read_text()
    foreign(machine, "theirs.json", agent={})
    for _ in range(2):
        found, output = start(machine)
        assert found == ["kiln-gpu.json", "theirs.json"]
        assert not (machine / MERGED / "kiln-events.json").exists()
        assert "events off: the agent refuses them" in output
    (machine / MERGED / "theirs.json").unlink()
    assert start(machine)[0] == ["kiln-gpu.json"]
    assert (machine / MERGED / "kiln-events.json").read_text() == before


def test_broken_foreign_file_is_named(machine):
    give(machine, "gpu")
    give_real_rules(machine)
    foreign(machine, "theirs.json", nonsense={})
    found, output = start(machine)
    assert found == ["theirs.json"]
    assert (machine / MERGED / "kiln-events.json").exists()
    assert "refuses the files that are not ours by themselves" in output


def test_the_scrape_target_and_the_job_carry_the_instance(machine):
    give(machine, "gpu", "exporter")
    start(machine)
    target = json.loads((machine / "run/kiln/dcgm-target.json").read_text())
    assert target == [
        {"targets": ["127.0.0.1:9400"], "labels": {"InstanceId": "i-0123456789abcdef0"}}
    ]
    scrape = (machine / ETC / "kiln.d/dcgm-scrape.yaml").read_text()
    assert "job_name: dcgm-i-0123456789abcdef0\n" in scrape
    prometheus = json.loads((machine / MERGED / "kiln-dcgm.json").read_text())["logs"]
    path = prometheus["metrics_collected"]["prometheus"]["prometheus_config_path"]
    assert path == f"/{ETC}/kiln.d/dcgm-scrape.yaml"


def test_broken_run_leaves_no_old_metrics(machine):
    give(machine, "gpu")
    start(machine)
    (machine / "usr/bin/nvidia-smi").unlink()
    (machine / "run/kiln").rename(machine / "run/moved")
    put(machine / "run/kiln", "not a folder")
    env = {**os.environ, "KILN_ROOT": str(machine)}
    done = subprocess.run([str(PROGRAM)], env=env, capture_output=True, check=False)
    assert done.returncode != 0
    assert [path.name for path in (machine / MERGED).iterdir()] == ["kiln-events.json"]
