"""dcgm-exporter: its package held, our fields on this machine's own address, read by the agent."""

import re

import pytest
from applies import only_if
from expectations import (
    assert_active,
    assert_enabled,
    assert_held,
    assert_packages_at,
    nvidia_smi,
    recorded,
)

LOOPBACK = {"0100007F", "0" * 24 + "01000000"}


@pytest.mark.bake
def test_the_package_is_of_that_version(machine, recipe, version_info):
    names = recorded(version_info, "dcgm-exporter")["packages"]
    assert_packages_at(machine, names, recipe["dcgm_exporter"])


@pytest.mark.bake
def test_the_package_is_held(machine, version_info):
    assert_held(machine, recorded(version_info, "dcgm-exporter")["held"])


@pytest.mark.bake
def test_it_is_enabled(machine):
    assert_enabled(machine, "nvidia-dcgm-exporter.service")


@pytest.mark.boot
def test_it_runs_where_there_is_a_gpu(machine, gpu):
    assert_active(machine, "nvidia-dcgm-exporter.service")


@pytest.mark.boot
def test_it_shows_every_gpu(machine, gpu):
    shown = set(
        re.findall(r'^DCGM_FI_DEV_FB_USED\{(?:.*,)?gpu="(\d+)"', machine["dcgm_metrics"], re.M)
    )
    assert shown == {row["index"] for row in nvidia_smi(machine)}


@pytest.mark.boot
def test_it_asks_for_no_other_fields_than_ours(machine, gpu):
    listed = machine["text"]["/etc/kiln/dcgm-counters.csv"] or ""
    ours = set(re.findall(r"^(DCGM_\w+),", listed, re.M))
    assert ours, "/etc/kiln/dcgm-counters.csv names no field"
    shown = set(re.findall(r"^(DCGM_\w+)\{", machine["dcgm_metrics"], re.M))
    # A GPU that does not know a field leaves it out.
    assert shown, "/metrics shows no field"
    assert shown <= ours, f"not in /etc/kiln/dcgm-counters.csv: {sorted(shown - ours)}"


@pytest.mark.boot
def test_it_listens_on_this_machine_only(machine, gpu):
    tables = [machine["text"][f"/proc/net/{name}"] or "" for name in ("tcp", "tcp6")]
    # State 0A is LISTEN, port 24B8 is 9400.
    listening = set(re.findall(r"^\s*\d+: (\w+):24B8 \w+:\w+ 0A", "\n".join(tables), re.M))
    assert listening, "nothing listens on port 9400"
    assert listening <= LOOPBACK, f"port 9400 is open on {sorted(listening - LOOPBACK)}"


@only_if(lambda expect: expect["recipe"].get("telemetry", {}).get("dcgm"))
@pytest.mark.boot
def test_the_agent_reads_it(machine, gpu):
    merged = [p for p in machine["agent_files"] if p.endswith(".d/kiln-dcgm.json")]
    assert merged, "kiln-agent-sources left the DCGM metrics out: see its lines in the journal"
