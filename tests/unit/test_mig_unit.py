"""The units of the boot: their order, and what waits for them."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from kiln.base.paths import RUNTIME, runtime_module

UNITS = RUNTIME / "etc" / "systemd" / "system"


def settings(path) -> dict[str, list[str]]:
    """{key: every word of all its lines}."""
    result: dict[str, list[str]] = {}
    for line in path.read_text().splitlines():
        key, equals, value = line.partition("=")
        if equals and not line.startswith(("#", ";")):
            result.setdefault(key, []).extend(value.split())
    return result


@pytest.mark.parametrize("path", sorted(UNITS.rglob("*.service")), ids=lambda path: path.name)
def test_capabilities_are_one_line(path):
    """systemd 219 intersects several lines, so that nothing is left."""
    assert path.read_text().count("CapabilityBoundingSet=") <= 1


UNIT = settings(UNITS / "kiln-mig.service")


@pytest.mark.parametrize("earlier", ["nvidia-persistenced", "nvidia-fabricmanager"])
def test_it_runs_after_what_brings_the_gpus_up(earlier):
    assert f"{earlier}.service" in UNIT["After"]


@pytest.mark.parametrize(
    "path",
    [
        path
        for path in sorted(RUNTIME.rglob("*"))
        if path.suffix in (".service", ".conf") and "cloud-init.service" in path.read_text()
    ],
    ids=lambda path: path.name,
)
def test_units_after_cloud_init_know_its_newer_name(path):
    assert {"cloud-init.service", "cloud-init-network.service"} <= {*settings(path)["After"]}


@pytest.mark.parametrize(
    "later",
    ["nvsm", "kiln-gpu-health", "kiln-gpu-clocks", "nvidia-dcgm", "docker", "containerd", "kubelet",
     "ecs", "slurmd", "nvidia-cdi-refresh"],
)  # fmt: skip
def test_it_runs_before_whoever_uses_them(later):
    assert f"{later}.service" in UNIT["Before"]


def test_it_is_a_oneshot_that_the_boot_starts():
    assert UNIT["Type"] == ["oneshot"]
    assert UNIT["RemainAfterExit"] == ["yes"]
    assert UNIT["WantedBy"] == ["multi-user.target"]
    assert UNIT["ExecStart"] == ["/usr/local/bin/gpu-mig", "apply", "--boot"]


@pytest.mark.parametrize("unit", ["kubelet", "ecs", "slurmd"])
def test_what_joins_a_cluster_asks_the_gate_first(unit):
    dropin = settings(UNITS / f"{unit}.service.d" / "20-kiln-gpu-gate.conf")
    assert dropin["ExecStartPre"] == ["/usr/local/bin/kiln-gpu-gate"]
    assert {"kiln-gpu-boot.service", "kiln-mig.service"} <= {*dropin["After"]}
    assert f"{unit}.service" in UNIT["Before"]


@pytest.mark.parametrize("path", sorted(UNITS.glob("kiln-*.service")), ids=lambda path: path.name)
def test_no_unit_holds_up_the_boot_for_ever(path):
    """On Ubuntu and Debian user data runs after multi-user.target, and nvidia-smi may hang."""
    unit = settings(path)
    if unit["Type"] == ["oneshot"] and "WantedBy" in unit:
        assert unit["TimeoutStartSec"], path.name
    if path.name in ("kiln-gpu-health.service", "kiln-gpu-clocks.service"):
        assert unit["WantedBy"] == ["kiln-gpu.target"]
    assert settings(UNITS / "kiln-gpu.target")["DefaultDependencies"] == ["no"]


def test_cloudwatch_agent_does_not_wait_for_the_layout():
    """It has to send the Xid that explains why the GPU hangs."""
    agent = settings(UNITS / "amazon-cloudwatch-agent.service.d" / "10-kiln.conf")
    assert "amazon-cloudwatch-agent.service" not in UNIT["Before"]
    assert "kiln-mig.service" not in agent["After"]


def test_services_that_a_killed_change_stopped_are_started_again():
    assert UNIT["ExecStopPost"] == ["/usr/local/bin/gpu-mig", "restore-services"]


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="no systemd-analyze here")
def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path):
    text = (UNITS / "kiln-mig.service").read_text()
    unit = tmp_path / "kiln-mig.service"
    unit.write_text(text.replace("/usr/local/bin/gpu-mig", "/bin/true"))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "kiln-mig" not in done.stderr, done.stderr


def test_the_shipped_settings_file_says_what_holds_without_it(monkeypatch, tmp_path):
    settings_of = runtime_module("gpu_mig.settings")
    monkeypatch.setenv("GPU_MIG_ROOT", str(RUNTIME))
    shipped = settings_of.load()
    monkeypatch.setenv("GPU_MIG_ROOT", str(tmp_path))
    assert shipped == settings_of.load() == settings_of.Settings()
