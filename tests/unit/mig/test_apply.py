"""gpu-mig as a program, on the lab's stand-in nvidia-smi: what a person or the boot would see."""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from kiln.base.paths import runtime_module
from tests import surroundings
from tests.unit.mig.machine import SYSTEMCTL, Machine

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="the stand-in lets only root change MIG"),
]
PYTHON37 = surroundings.pythons().get("3.7")
BALANCED = ["1g.5gb", "1g.5gb", "2g.10gb", "3g.20gb"]


def changing(machine: Machine) -> list[list[str]]:
    return [call["argv"] for call in machine.journal() if call["changes"]]


def own(machine: Machine, label: str, *entries: dict) -> None:
    """A drop-in file with a label; MIG is on where an entry does not say otherwise."""
    full = [{"devices": "all", "mig-enabled": True, **entry} for entry in entries]
    document = {"version": "v1", "mig-configs": {label: full}}
    machine.write("/etc/kiln/mig-config.d/own.json", json.dumps(document))


# --- apply ---------------------------------------------------------------------------------


def test_apply_makes_the_slices_once(p4d):
    p4d.settings(MIG_CONFIG="all-balanced")
    assert p4d.json("apply")["changed"] == list(range(8))
    assert p4d.slices() == dict.fromkeys(range(8), BALANCED)
    p4d.forget_journal()
    assert p4d.json("apply")["changed"] == []
    assert changing(p4d) == []


def test_eight_gpus_in_seven_slices_take_two_commands(p4d):
    p4d.json("apply", "all-1g.5gb")
    assert changing(p4d) == [
        ["-i", "0,1,2,3,4,5,6,7", "-mig", "1"],
        ["mig", "-i", "0,1,2,3,4,5,6,7", "-cgi", ",".join(["1g.5gb"] * 7), "-C"],
    ]


@pytest.mark.parametrize(
    ("instance_type", "kept"), [("p4d.24xlarge", True), ("p5.48xlarge", False)]
)
def test_slices_come_back_after_a_reboot(tmp_path, instance_type, kept):
    """Ampere keeps its mode, Hopper does not."""
    machine = Machine(tmp_path, instance_type)
    machine.settings(MIG_CONFIG="all-balanced")
    machine.json("apply", "--boot")
    machine.reboot()
    gpus = machine.json("verify", status=1)["gpus"]
    assert {g["mode"]["current"] for g in gpus} == {kept}
    machine.json("apply", "--boot")
    assert machine.json("verify")["ok"] is True


def test_gpu_that_differs_is_emptied_and_others_are_left_alone(p4d):
    p4d.json("apply", "all-balanced")
    others = {"devices": list(range(1, 8)), "mig-devices": dict(Counter(BALANCED))}
    own(p4d, "mixed", {"devices": [0], "mig-devices": {"1g.5gb": 7}}, others)
    p4d.forget_journal()
    p4d.active("nvidia-dcgm")
    assert p4d.json("apply", "mixed")["changed"] == [0]
    assert "stop nvidia-dcgm" not in p4d.systemctl_log()  # nothing of it was in use
    assert p4d.slices()[0] == ["1g.5gb"] * 7
    assert {argv[2] for argv in changing(p4d)} == {"0"}


def test_disabling_removes_the_slices_and_the_mode(p4d):
    p4d.json("apply", "all-balanced")
    p4d.json("apply", "all-disabled")
    assert p4d.json("verify", "all-disabled")["ok"] is True
    assert p4d.slices() == {n: [] for n in range(8)}


def test_gpu_instances_can_hold_several_compute_instances(p4d):
    own(p4d, "shared", {"devices": [0], "mig-devices": {"1c.3g.20gb": 3, "3g.20gb": 1}})
    p4d.json("apply", "shared")
    answer = p4d.json("verify", "shared")
    assert sorted(i["compute_slices"] for i in answer["gpus"][0]["instances"]) == [[1, 1, 1], [3]]
    p4d.forget_journal()
    p4d.json("apply", "shared")
    assert changing(p4d) == []


def test_a_label_that_no_file_has_is_made_from_the_gpus(p4d):
    p4d.write("/etc/kiln/mig-config.json", json.dumps({"version": "v1", "mig-configs": {
        "all-1g.5gb": [{"device-filter": ["0x233010DE"], "devices": "all", "mig-enabled": True,
                        "mig-devices": {"1g.10gb": 7}}]}}))  # fmt: skip
    p4d.json("apply", "all-3g.20gb")
    assert p4d.slices()[7] == ["3g.20gb"] * 2
    p4d.json("apply", "all-1g.5gb")
    assert p4d.slices()[7] == ["1g.5gb"] * 7
    assert p4d.json("verify", "all-1g.5gb")["ok"] is True


# --- refusals, before anything moves -------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["apply", "all-1g.10bg"], "did you mean 'all-1g.10gb'"),
        (["apply", "all-1g.5gb"], "label 'all-1g.5gb' is for other GPUs"),
        (["apply", "all-3g.95gb"], "no MIG profile 3g.95gb"),
        (["apply"], "no MIG layout is selected"),
        (["verify", "nonsense"], "no label 'nonsense'"),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_is_touched(p5, arguments, says):
    done = p5.run(*arguments)
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert changing(p5) == []


def test_profile_newer_than_the_driver_is_refused(p4d):
    p4d.write("/sys/module/nvidia/version", "510.47.03\n")
    own(p4d, "own", {"mig-devices": {"1g.10gb": 4}})
    for label, says in (("all-1g.10gb", "is for other GPUs"), ("own", "no MIG profile 1g.10gb")):
        done = p4d.run("apply", label)
        assert (done.returncode, changing(p4d)) == (2, [])
        assert says in done.stderr


def test_an_unknown_setting_is_named_with_its_line(p4d):
    p4d.write("/etc/default/gpu-mig", "# c\nMIG_CONFG=all-balanced\n")
    done = p4d.run("validate")
    assert done.returncode == 2
    assert "/etc/default/gpu-mig:2: unknown setting MIG_CONFG" in done.stderr
    assert "did you mean 'MIG_CONFIG'" in done.stderr


def test_validate_knows_what_gpus_can_hold(p4d):
    own(p4d, "odd", {"mig-devices": {"1g.15gb": 3}})
    warnings = p4d.json("validate")["warnings"]
    assert [w for w in warnings if "label 'odd', entry 1: no known GPU can hold 1g.15gb=3" in w]
    own(p4d, "bad", {"device-filter": "0x20B010DE", "mig-devices": {"4g.20gb": 2}})
    done = p4d.run("validate")
    assert done.returncode == 2
    assert "holds at most 1" in done.stderr


def test_output_that_cannot_be_written_is_one_message(p4d):
    with Path("/dev/full").open("w") as full:
        done = p4d.start("validate", "--json", stdout=full)
    assert done.returncode == 1
    assert done.stderr == "gpu-mig: cannot write the output: No space left on device\n"


# --- the boot ------------------------------------------------------------------------------


def test_gpus_without_mig_are_a_clean_no_op_at_boot(tmp_path):
    machine = Machine(tmp_path, "g4dn.xlarge")
    machine.settings(MIG_CONFIG="all-balanced")
    answer = machine.json("apply", "--boot")
    assert "no GPU of this machine supports MIG" in answer["nothing"]
    assert machine.gate() == ""
    # Known ones on the PCI bus are not even asked.
    machine.forget_journal()
    for name, text in (("vendor", "0x10de"), ("device", "0x1eb8"), ("class", "0x030200")):
        machine.write(f"/sys/bus/pci/devices/0000:00:1e.0/{name}", text + "\n")
    assert "1eb8" in machine.json("apply", "--boot")["nothing"]
    assert machine.journal() == []


def test_without_a_selection_the_boot_leaves_the_gpus_alone(p4d):
    assert "no MIG layout is selected" in p4d.json("apply", "--boot")["nothing"]
    assert p4d.journal() == []


def test_a_missing_driver_at_boot_is_not_a_failure(p4d):
    p4d.settings(MIG_CONFIG="all-balanced")
    (p4d.bin / "nvidia-smi").unlink()
    assert "not installed" in p4d.json("apply", "--boot")["nothing"]


@pytest.mark.parametrize("settings", [{"MIG_OWNER": "operator"}, {}])
def test_it_steps_aside_for_the_operators_mig_manager(p4d, settings):
    p4d.settings(MIG_CONFIG="all-balanced", **settings)
    p4d.active("nvidia-mig-manager.service")
    assert "mig-manager of the GPU operator is in charge" in p4d.json("apply", "--boot")["nothing"]
    assert p4d.journal() == []


def test_failed_apply_keeps_the_node_out_when_told_to(p4d):
    assert "gpu-mig left no result" in p4d.gate()
    p4d.write("/etc/default/gpu-mig", "MIG_BLOCK_JOIN='no'\nMIG_CONFG=x\n")  # not readable
    assert p4d.run("apply", "--boot").returncode == 2
    assert p4d.gate()
    for block, gate in (("no", 0), ("yes", 1)):
        p4d.settings(MIG_CONFIG="all-nonsense", MIG_BLOCK_JOIN=block)
        assert p4d.run("apply", "--boot").returncode == 2
        assert bool(p4d.gate()) == bool(gate)
    assert "all-nonsense" in p4d.gate()
    p4d.json("apply", "all-balanced")  # repaired by hand
    assert not p4d.gate()


def test_a_disk_that_cannot_be_written_keeps_the_node_out(p4d):
    p4d.settings(MIG_CONFIG="all-balanced")
    p4d.faults(**BUSY)
    p4d.write("/var/lib/kiln", "a file where the folder of the marker must be")
    done = p4d.run("apply", "--boot")
    assert (done.returncode, "Traceback" in done.stderr) == (1, False)
    assert "reboot --no-block" not in p4d.systemctl_log()
    assert p4d.gate()


def test_cdi_is_refreshed_after_a_change_and_only_then(p4d):
    p4d.active("nvidia-cdi-refresh.service")
    p4d.json("apply", "all-balanced")
    assert "restart --no-block nvidia-cdi-refresh.service" in p4d.systemctl_log()
    p4d.json("apply", "all-balanced")
    assert len([line for line in p4d.systemctl_log() if line.startswith("restart")]) == 1


# --- trouble -------------------------------------------------------------------------------


def test_client_of_a_busy_gpu_is_named_with_its_unit(p4d):
    p4d.write("/proc/4711/comm", "python3\n")
    p4d.write("/proc/4711/cgroup", "0::/system.slice/train.service\n")
    (p4d.root / "proc/4711/fd").mkdir()
    (p4d.root / "proc/4711/fd/3").symlink_to("/dev/nvidia0")
    p4d.write("/proc/4712/comm", "bash\n")
    (p4d.root / "sys/module/nvidia_drm").mkdir(parents=True)
    p4d.faults(busy=[{"pid": 4711, "name": "python3"}])
    done = p4d.run("apply", "all-balanced")
    output = done.stderr
    assert (done.returncode, p4d.slices()) == (1, {n: [] for n in range(8)})
    assert "stop python3 (pid 4711, train.service), then run gpu-mig apply again" in output
    assert "nvidia_drm is loaded" in output
    assert "4712" not in output


def test_listed_service_is_stopped_and_started_again(p4d):
    p4d.active("nvidia-persistenced")
    p4d.program("systemctl", (p4d.bin / "systemctl").read_text().replace(
        "stop)", f"stop) rm -f {p4d.root}/etc/kiln-lab/nvidia-smi-faults.json;"))  # fmt: skip
    p4d.faults(busy=[{"pid": 4711, "name": "nvidia-persistenced"}])
    p4d.json("apply", "all-balanced")
    assert p4d.slices()[0] == BALANCED
    log = p4d.systemctl_log()
    assert "stop nvidia-persistenced" in log
    assert "start nvidia-persistenced" in log  # before the slices are made: it keeps the driver
    assert not [line for line in log if "dcgm" in line and line.startswith("stop")]


def test_persistenced_keeps_running_on_hopper(p5):
    p5.active("nvidia-persistenced", "nvidia-dcgm")
    p5.program("systemctl", (p5.bin / "systemctl").read_text().replace(
        "stop)", f"stop) rm -f {p5.root}/etc/kiln-lab/nvidia-smi-faults.json;"))  # fmt: skip
    p5.faults(busy=[{"pid": 4711, "name": "python3"}])
    p5.json("apply", "all-balanced")
    stops = [line for line in p5.systemctl_log() if line.startswith("stop")]
    assert stops == ["stop nvidia-dcgm"]
    assert "start --no-block nvidia-dcgm" in p5.systemctl_log()


@pytest.mark.parametrize("then", ["apply all-balanced", "restore-services"])
def test_services_that_a_killed_run_stopped_are_started(p4d, then):
    """By the next run, and by the unit's ExecStopPost."""
    p4d.active("nvidia-dcgm")
    p4d.faults(**BUSY)
    p4d.program("systemctl", SYSTEMCTL.replace("stop)", "stop) kill -9 $PPID;"))
    assert p4d.run("apply", "all-balanced").returncode == -9
    p4d.program("systemctl", SYSTEMCTL)
    p4d.faults()
    assert p4d.run(*then.split()).returncode == 0
    assert p4d.systemctl_log().count("start --no-block nvidia-dcgm") == 1
    assert not (p4d.root / "run/gpu-mig/stopped-services.json").exists()


def test_stopped_by_a_signal_it_says_which_gpus_are_affected(p4d):
    p4d.json("apply", "all-2g.10gb")
    real = p4d.bin / "nvidia-smi"
    real.rename(p4d.bin / "real-smi")
    p4d.program(
        "nvidia-smi",
        f"""#!/bin/sh
{p4d.bin}/real-smi "$@"
status=$?
case "$*" in *-cgi*) mkdir {p4d.root}/once 2>/dev/null && kill -TERM $PPID ;; esac
exit $status
""",
    )
    done = p4d.run("apply", "all-3g.20gb")
    assert done.returncode == 1
    assert "stopped by a signal; GPU 0, 1, 2, 3, 4, 5, 6, 7 may have no or some" in done.stderr


def test_unit_restarted_on_a_running_machine_does_not_reboot_it(p4d):
    p4d.settings(MIG_CONFIG="all-balanced")
    p4d.faults(reset_supported=False)
    p4d.active("multi-user.target")
    done = p4d.run("apply", "--boot")
    assert done.returncode == 1
    assert "reboot the instance; the layout is applied at that boot" in done.stderr
    assert "reboot --no-block" not in p4d.systemctl_log()
    assert p4d.gate()


BUSY = {"busy": [{"pid": 4711, "name": "python3"}]}
ODD = {"rules": [{"match": ["-mig"], "times": 0, "exit": 3, "stdout": "Unknown Error"},
                 {"match": ["--gpu-reset"], "times": 0, "exit": 255, "stdout": ""}]}  # fmt: skip
REFUSALS = [{"reset_supported": False}, BUSY, ODD]


@pytest.mark.parametrize("refusal", REFUSALS)
def test_refused_reset_at_boot_costs_one_reboot(p4d, refusal):
    p4d.settings(MIG_CONFIG="all-balanced")
    p4d.faults(**refusal)
    assert p4d.json("apply", "--boot")["reboot"] is True
    assert p4d.systemctl_log().count("reboot --no-block") == 1
    assert p4d.gate()  # a node on its way down must not join
    p4d.json("apply", "--boot")  # again in the same boot: it is asked for already
    p4d.reboot()
    if refusal in (BUSY, ODD):  # the client is gone, and the driver is well again
        p4d.faults()
    p4d.json("apply", "--boot")
    assert p4d.slices() == dict.fromkeys(range(8), BALANCED)
    assert p4d.systemctl_log().count("reboot --no-block") == 1
    assert not p4d.gate()
    assert not (p4d.root / "var/lib/kiln/gpu-mig/reboot.json").exists()


def test_reboot_is_asked_for_once_per_boot(p4d):
    def boot(label: str) -> subprocess.CompletedProcess[str]:
        p4d.settings(MIG_CONFIG=label)
        (p4d.root / "var/lib/kiln-lab/nvidia-smi/inforom.json").unlink(missing_ok=True)
        p4d.reboot()
        return p4d.run("apply", "--boot")

    p4d.faults(**BUSY)
    for reboots in (1, 2):  # the second pair of boots could be on another host
        assert boot("all-balanced").returncode == 0
        assert p4d.systemctl_log().count("reboot --no-block") == reboots
        failed = boot("all-2g.10gb")
        assert failed.returncode == 1
        assert "already been rebooted for this" in failed.stderr
        assert "stop python3 (pid 4711)" in failed.stderr
        assert p4d.run("apply", "--boot").returncode == 1  # the unit, started again by hand
        assert p4d.systemctl_log().count("reboot --no-block") == reboots
        assert "the MIG layout is not as configured" in p4d.gate()


def test_refused_reboot_fails_and_may_be_asked_for_again(p4d):
    p4d.settings(MIG_CONFIG="all-balanced")
    p4d.faults(**BUSY)
    p4d.program("systemctl", (p4d.bin / "systemctl").read_text().replace(
        "esac", "  reboot) exit 1 ;;\nesac"))  # fmt: skip
    done = p4d.run("apply", "--boot")
    assert done.returncode == 1
    assert "systemd refused to reboot" in done.stderr
    assert p4d.gate()
    assert not (p4d.root / "var/lib/kiln/gpu-mig/reboot.json").exists()


def test_gpu_lost_in_the_reset_costs_a_reboot(p4d):
    p4d.settings(MIG_CONFIG="all-balanced")
    p4d.faults(rules=[{"match": ["-mig"], "after": True, "exit": 0, "stdout": "x"},
                      {"match": ["--query-gpu"], "times": 0, "exit": 0, "stdout": "\n"}],
               **BUSY)  # fmt: skip
    done = p4d.run("apply", "--boot")
    assert "Traceback" not in done.stderr
    assert p4d.systemctl_log().count("reboot --no-block") == 1


def test_busy_hopper_costs_no_reboot(p5):
    p5.settings(MIG_CONFIG="all-balanced")
    p5.faults(**BUSY)
    assert p5.run("apply", "--boot").returncode == 1
    assert "reboot --no-block" not in p5.systemctl_log()
    assert p5.gate()


def test_fabric_manager_is_never_stopped(p4d):
    p4d.active("nvidia-fabricmanager")
    p4d.write("/proc/4711/comm", "nv-fabricmanage\n")
    (p4d.root / "proc/4711/fd").mkdir()
    (p4d.root / "proc/4711/fd/3").symlink_to("/dev/nvidia0")
    p4d.faults(busy=[{"pid": 4711, "name": "nv-fabricmanage"}])
    output = p4d.run("apply", "all-balanced").stderr
    assert "only fabric manager has the GPU open" in output
    assert not [line for line in p4d.systemctl_log() if "fabric" in line]


def test_by_hand_a_needed_reboot_is_only_said(p4d):
    p4d.faults(reset_supported=False)
    done = p4d.run("apply", "all-balanced")
    assert done.returncode == 3
    assert "this VM cannot reset its GPU" in done.stderr
    assert "reboot --no-block" not in p4d.systemctl_log()


def test_failed_creation_says_which_gpus_are_affected(p4d):
    p4d.json("apply", "all-2g.10gb")
    p4d.faults(rules=[{"match": ["-cgi"], "times": 0, "exit": 19, "stdout": "Unknown Error\n"}])
    done = p4d.run("apply", "all-3g.20gb")
    assert done.returncode == 1
    assert "Unknown Error; GPU 0, 1, 2, 3, 4, 5, 6, 7 may have no or some" in done.stderr
    assert "the MIG layout is not as configured" in p4d.gate()
    p4d.faults()
    p4d.json("apply", "all-3g.20gb")
    assert not p4d.gate()
    assert p4d.slices()[0] == ["3g.20gb"] * 2


CHANGES = [  # from, to: instances swapped, made from nothing with the mode, taken away with it
    ("p4d.24xlarge", "all-balanced", "all-1g.5gb"),
    pytest.param("p4d.24xlarge", "all-disabled", "all-3g.20gb", marks=pytest.mark.all),
    pytest.param("p5.48xlarge", "all-2g.20gb", "all-disabled", marks=pytest.mark.all),
]


@pytest.mark.parametrize(("instance_type", "before", "label"), CHANGES)
def test_killed_after_any_command_next_run_ends_as_wanted(tmp_path, instance_type, before, label):
    """The next run comes after a reboot, or in the same boot."""
    machine = Machine(tmp_path, instance_type)
    machine.faults(hide=list(range(2, 8)))  # what holds for two GPUs holds for eight
    machine.settings(MIG_CONFIG=label)
    machine.json("apply", before)
    start = machine.save("start")
    machine.json("apply", "--boot")
    wanted = machine.in_mig()
    machine.restore(start)
    n = 1
    while machine.run("apply", "--boot", kill_after=n).returncode:
        killed = machine.save("killed")
        for then in ("run again", "reboot"):
            machine.restore(killed)
            if then == "reboot":
                machine.reboot()
            assert machine.run("apply", "--boot").returncode == 0, f"{then} after command {n}"
            assert machine.in_mig() == wanted, f"{then} after command {n}"
        machine.restore(start)
        n += 1
    assert n > 4  # there was no nth command


def test_a_second_gpu_mig_waits_its_turn_by_being_refused(p4d):
    import fcntl

    (p4d.root / "run/gpu-mig").mkdir(parents=True)
    with (p4d.root / "run/gpu-mig/lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        done = p4d.run("apply", "all-balanced")
    assert done.returncode == 1
    assert "another gpu-mig" in done.stderr


# --- the rest ------------------------------------------------------------------------------


def test_verify_sees_a_gpu_instance_without_its_compute_instance(p4d):
    p4d.json("apply", "all-3g.20gb")
    p4d.smi("mig", "-i", "2", "-dci")
    problems = p4d.json("verify", "all-3g.20gb", status=1)["problems"]
    assert problems == ["GPU 2: has 3g.20gb=2 without compute instance, wanted 3g.20gb=2"]


def test_verify_names_a_gpu_the_layout_leaves_out(p4d):
    own(p4d, "first", {"devices": [0], "mig-enabled": False})
    assert p4d.json("verify", "first")["not_addressed"] == list(range(1, 8))


def test_profile_in_the_size_of_the_firmware_is_made(tmp_path):
    """GB200 has 3g.93gb or 3g.95gb; which, its driver says while MIG mode is on."""
    machine = Machine(tmp_path, "lab.gb200-189gb")
    own(machine, "firmware", {"mig-devices": {"3g.95gb": 2}})
    for label, slices in (("firmware", ["3g.95gb"] * 2), ("all-7g.189gb", ["7g.189gb"])):
        machine.json("apply", label)
        assert machine.slices()[0] == slices
    own(machine, "other", {"mig-devices": {"3g.93gb": 2}})
    assert machine.run("apply", "other").returncode == 1


def test_unknown_gpu_is_read_from_its_driver(p4d):
    from kiln.mig.profiles import gpu_types

    p4d.json("apply", "all-enabled")
    listings = {w: p4d.smi("mig", "-i", "0", w) for w in ("-lgip", "-lgipp")}
    smi = runtime_module("gpu_mig.smi")

    class Told(smi.Smi):
        def must(self, *args: str) -> str:
            return listings[args[-1]]

    gpu = smi.Gpu(0, "", "", "0xFFFF10DE", "", "NVIDIA New", True, True)
    read, known = Told().gpu_type(gpu), gpu_types()["A100-40GB"]
    assert read.compute_slices == known.compute_slices
    assert read.memory_slices == known.memory_slices
    for name, facts in known.profiles.items():
        other = read.profiles[name]
        assert (other.id, other.max, other.compute, other.memory) == (
            facts.id, facts.max, facts.compute, facts.memory)  # fmt: skip
        assert (other.starts, other.engines) == (facts.starts, facts.engines)


@pytest.mark.skipif(not PYTHON37, reason="no Python 3.7 on this machine")
def test_it_runs_on_the_python_of_amazon_linux_2(p4d):
    done = p4d.start("apply", "all-balanced", "--json", python=PYTHON37)
    assert done.returncode == 0, done.stderr
    assert p4d.slices()[0] == BALANCED


@pytest.mark.parametrize("verb", ["stop", "start"])
def test_a_systemctl_that_fails_is_said(p4d, verb):
    p4d.active("nvidia-persistenced", "nvidia-dcgm")
    p4d.faults(busy=[{"gpu": "all", "name": "python3"}])
    p4d.program("systemctl", f'#!/bin/sh\n[ "$1" != {verb} ] || exit 97\n' + SYSTEMCTL)
    done = p4d.run("apply", "--boot", "all-1g.5gb")
    assert f"warning: `systemctl {verb} " in done.stderr
    assert "failed with status 97" in done.stderr


def test_slices_stay_without_cdi_specification(p4d):
    p4d.write("/etc/cdi/nvidia.yaml", "")
    p4d.program("nvidia-ctk", "#!/bin/sh\nexit 97\n")
    done = p4d.run("apply", "all-1g.5gb")
    assert done.returncode == 0, done.stderr
    assert "warning: nvidia-ctk could not write /etc/cdi/nvidia.yaml" in done.stdout + done.stderr
    assert p4d.slices()[0] == ["1g.5gb"] * 7
