"""How much of the machine our units can reach, as systemd-analyze counts it; 10 is everything.

And what lands on Amazon Linux 2: systemd 219 refuses system calls for a filter that it does not
understand, and warns of every other setting. Drop-ins of kiln-* units are left out there.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from kiln.base.paths import RUNTIME

UNITS = RUNTIME / "etc/systemd/system"
# The highest exposure that each may have. What keeps the others from 1 is what they do: nvidia-smi
# needs the device files and SYS_ADMIN, a kernel module SYS_MODULE, a hook whatever its author does.
HIGHEST = {
    "kiln-xid.service": 1.9,
    "kiln-gpu-select.service": 3.0,
    "kiln-gpu-health.service": 3.5,
    "kiln-gpu-clocks.service": 3.5,
    "kiln-gpu-boot.service": 3.9,
    "kiln-xid-hooks.service": 4.9,
    "kiln-mig.service": 4.9,
    "nvidia-persistenced.service": 6.6,
}

# What systemd 219 knows of the settings in [Service]; from its systemd.service(5), systemd.exec(5)
# and systemd.resource-control(5).
KNOWN_TO_219 = {
    *("Type", "ExecStart", "ExecStartPre", "ExecReload", "RemainAfterExit", "Restart"),
    *("RestartSec", "StartLimitInterval", "SuccessExitStatus", "TimeoutStartSec"),
    *("TimeoutStopSec", "WatchdogSec", "Environment", "UMask", "OOMScoreAdjust", "LimitNOFILE"),
    *("MemoryLimit", "CapabilityBoundingSet", "NoNewPrivileges", "ProtectSystem", "ProtectHome"),
    *("PrivateTmp", "PrivateNetwork", "PrivateDevices", "DevicePolicy", "DeviceAllow"),
    *("RestrictAddressFamilies", "SystemCallArchitectures", "ReadWriteDirectories"),
}
# And in the other sections; from its systemd.unit(5), systemd.timer(5) and systemd.path(5).
OTHERS_KNOWN_TO_219 = {
    "Unit": {
        *("Description", "Documentation", "Requires", "Wants", "BindsTo", "PartOf", "Conflicts"),
        *("Before", "After", "OnFailure", "RequiresMountsFor", "StopWhenUnneeded"),
        *("DefaultDependencies", "ConditionPathExists", "ConditionPathExistsGlob"),
        *("ConditionPathIsDirectory", "ConditionFileNotEmpty", "ConditionVirtualization"),
    },
    "Timer": {"OnBootSec", "OnActiveSec", "OnUnitActiveSec", "OnCalendar", "AccuracySec"},
    "Path": {"PathExists", "PathChanged", "PathModified", "DirectoryNotEmpty", "MakeDirectory"},
    "Install": {"WantedBy", "RequiredBy", "Also", "Alias"},
}
OUTPUT_OF_219 = ("StandardOutput", "StandardError")
CAPABILITIES_OF_219 = re.compile(r"CAP_(BPF|PERFMON|AUDIT_READ|CHECKPOINT_RESTORE)")


def settings(text: str) -> dict[str, list[str]]:
    """{section: its lines}, without comments and empty lines."""
    result: dict[str, list[str]] = {}
    for line in text.replace("\\\n", "").splitlines():
        if line.startswith("["):
            section = result.setdefault(line.strip("[]"), [])
        elif line and not line.startswith("#"):
            section.append(line)
    return result


def dropins(name: str) -> list[Path]:
    """The drop-ins of a unit, and those for the beginning of its name."""
    folders = ["kiln-.service.d"] if name.startswith("kiln-") else []
    folders += ["kiln-gpu-.service.d"] if name.startswith("kiln-gpu-") else []
    return [path for folder in [*folders, f"{name}.d"] for path in (UNITS / folder).glob("*.conf")]


@pytest.mark.parametrize("name", sorted(path.name for path in UNITS.glob("*.service")))
def test_no_unit_reaches_more_than_its_work_needs(name: str, tmp_path) -> None:
    analyze = shutil.which("systemd-analyze")
    if not analyze:
        pytest.skip("no systemd-analyze here")
    # The programs are not installed on this machine.
    unit = tmp_path / name
    text = "\n".join(path.read_text() for path in [UNITS / name, *dropins(name)])
    unit.write_text(re.sub(r"(?m)^(Exec\w*=)\S+", r"\1/bin/true", text))
    done = subprocess.run(
        [analyze, "security", "--offline=true", str(unit)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if "unrecognized option" in done.stderr:
        pytest.skip("this systemd-analyze cannot judge a file")
    found = re.search(r"Overall exposure level for \S+: ([\d.]+)", done.stdout)
    assert found, done.stdout + done.stderr
    assert float(found[1]) <= HIGHEST[name]


@pytest.mark.parametrize("name", sorted(path.name for path in UNITS.glob("*.service")))
def test_unit_has_nothing_that_breaks_systemd_219(name: str) -> None:
    text = (UNITS / name).read_text()
    # With an unknown group 219 would allow nothing at all; of several lines it keeps what all have.
    assert "SystemCallFilter" not in text
    assert text.count("CapabilityBoundingSet=") <= 1
    assert not CAPABILITIES_OF_219.search(text)
    assert "ProtectSystem=strict" not in text


@pytest.mark.parametrize(
    "name",
    sorted(
        str(path.relative_to(UNITS))
        for path in UNITS.rglob("*")
        if path.suffix in (".service", ".target", ".path", ".conf")
        if not path.parent.name.startswith("kiln-")
    ),
)
def test_systemd_219_knows_every_setting(name: str) -> None:
    text = (UNITS / name).read_text()
    known = {**OTHERS_KNOWN_TO_219, "Service": KNOWN_TO_219 | {"ExecStopPost", *OUTPUT_OF_219}}
    for section, lines in settings(text).items():
        unknown = {line.partition("=")[0] for line in lines} - known[section]
        # systemd-analyze says of each: Unknown lvalue, ignoring.
        assert not unknown, f"[{section}] of {name}"
    # Since 236 and 240.
    assert not re.search(r"^Standard(Output|Error)=(file|append|truncate):", text, re.MULTILINE)


def test_unit_of_the_early_boot_has_no_sandbox_in_tmp() -> None:
    """Before systemd 255 a private /dev begins in /tmp, which systemd-tmpfiles empties at boot: one
    boot in hundreds ended with 226/NAMESPACE and the wrong kernel module."""
    early = {
        path.name: settings(path.read_text())["Service"]
        for path in UNITS.glob("*.service")
        if "DefaultDependencies=no" in path.read_text()
    }
    assert early
    private = re.compile("Private(Devices|Tmp)=(?!no)")
    assert [name for name, lines in early.items() if any(map(private.match, lines))] == []


def words(name: str) -> dict[str, list[str]]:
    """Key → every word of all its lines, in a unit or drop-in."""
    result: dict[str, list[str]] = {}
    for lines in settings((UNITS / name).read_text()).values():
        for line in lines:
            key, _, value = line.partition("=")
            result.setdefault(key, []).extend(value.split())
    return result


def test_mig_runs_between_driver_daemons_and_users() -> None:
    unit = words("kiln-mig.service")
    assert (unit["Type"], unit["RemainAfterExit"]) == (["oneshot"], ["yes"])
    assert unit["WantedBy"] == ["multi-user.target"]
    assert unit["ExecStart"] == ["/usr/local/bin/gpu-mig", "apply", "--boot"]
    # Services that a killed change stopped are started again.
    assert unit["ExecStopPost"] == ["/usr/local/bin/gpu-mig", "restore-services"]
    assert {"nvidia-persistenced.service", "nvidia-fabricmanager.service"} <= {*unit["After"]}
    users = "nvsm kiln-gpu-health kiln-gpu-clocks nvidia-dcgm docker containerd kubelet ecs slurmd"
    assert {f"{name}.service" for name in users.split()} <= {*unit["Before"]}
    # The CloudWatch agent has to send the Xid that explains why the GPU hangs.
    assert "amazon-cloudwatch-agent.service" not in unit["Before"]
    agent = words("amazon-cloudwatch-agent.service.d/10-kiln.conf")
    assert "kiln-mig.service" not in agent["After"]


def test_monitor_is_started_every_ten_seconds_for_ever() -> None:
    """While the root is read-only each start fails."""
    unit = words("kiln-xid.service")
    assert (unit["RestartSec"], unit["StartLimitInterval"]) == (["10"], ["0"])


def test_units_after_cloud_init_know_its_newer_name() -> None:
    for path in UNITS.rglob("*"):
        if path.is_file() and "cloud-init.service" in path.read_text():
            after = {*words(str(path.relative_to(UNITS)))["After"]}
            assert {"cloud-init.service", "cloud-init-network.service"} <= after, path


@pytest.mark.parametrize("unit", ["kubelet", "ecs", "slurmd"])
def test_cluster_agents_ask_the_gate_first(unit: str) -> None:
    dropin = words(f"{unit}.service.d/20-kiln-gpu-gate.conf")
    assert dropin["ExecStartPre"] == ["/usr/local/bin/kiln-gpu-gate"]
    assert {"kiln-gpu-boot.service", "kiln-mig.service"} <= {*dropin["After"]}


def test_no_unit_holds_up_the_boot_for_ever() -> None:
    """On Ubuntu and Debian user data runs after multi-user.target, and nvidia-smi may hang."""
    for path in UNITS.glob("kiln-*.service"):
        unit = words(path.name)
        if unit["Type"] == ["oneshot"] and "WantedBy" in unit:
            assert unit["TimeoutStartSec"], path.name
    for name in ("kiln-gpu-health", "kiln-gpu-clocks"):
        assert words(f"{name}.service")["WantedBy"] == ["kiln-gpu.target"]
    assert words("kiln-gpu.target")["DefaultDependencies"] == ["no"]


@pytest.mark.parametrize(
    ("unit", "condition"),
    [
        ("nvidia-cdi-refresh", "ConditionPathExists=/run/kiln/gpu-boot/gpu"),
        ("nvidia-dcgm", "ConditionPathExists=/run/kiln/gpu-boot/gpu"),
        ("nvidia-imex", "ConditionPathExists=/run/kiln/gpu-boot/imex"),
        ("nvidia-imex", "ConditionFileNotEmpty=/etc/nvidia-imex/nodes_config.cfg"),
    ],
)
def test_vendors_units_wait_for_what_they_need(unit: str, condition: str) -> None:
    assert condition in (UNITS / f"{unit}.service.d/10-kiln.conf").read_text().splitlines()
