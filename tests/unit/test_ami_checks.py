"""The checks of tests/ami: each can fail, and the harness says clearly when it cannot start."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from kiln import components
from kiln.base.paths import AMI_TESTS, ROOT
from kiln.matrix.load import load_recipes
from kiln.pipeline.checks import (
    UNUSED_PLUGINS,
    expectations,
    read_junit,
    units_that_need_a_cluster,
)
from tests.unit.rows import row

MUTATIONS = yaml.safe_load((AMI_TESTS / "mutations.yaml").read_text())


# As a run of the checks leaves them out.
PLUGINS = [f"-pno:{name}" for name in UNUSED_PLUGINS]


def checks() -> dict[str, set[str]]:
    """File name → names of its checks."""
    result = {}
    for path in sorted(AMI_TESTS.glob("test_*.py")):
        tree = ast.parse(path.read_text())
        result[path.name] = {
            node.name
            for node in tree.body
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
        }
    return result


def run_harness(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {key: value for key, value in os.environ.items() if key != "KILN_EXPECT"}
    return subprocess.run(
        [sys.executable, "-m", "pytest", *PLUGINS, "tests/ami", *arguments],
        cwd=ROOT,
        env={**inherited, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_every_check_has_a_way_to_make_it_fail():
    known = {name: set(entries) for name, entries in MUTATIONS["checks"].items()}
    assert checks() == known


def test_every_way_to_make_a_check_fail_is_a_shell_command():
    for name, entries in MUTATIONS["checks"].items():
        for check, command in entries.items():
            if isinstance(command, dict):
                kinds = (["not_in_a_lab"], ["own_kernel"], ["reboot"], ["run", "also"])
                assert list(command) in kinds, f"{name}::{check}"
            if "not_in_a_lab" in command:
                continue
            shell = command if isinstance(command, str) else next(iter(command.values()))
            script = MUTATIONS["prelude"] + shell
            done = subprocess.run(
                ["bash", "-n"], input=script, text=True, capture_output=True, check=False
            )
            assert done.returncode == 0, f"{name}::{check}: {done.stderr}"


def test_every_side_effect_is_one_on_a_check_that_exists():
    known = {f"{name}::{check}" for name, names in checks().items() for check in names}
    for name, entries in MUTATIONS["checks"].items():
        for check, entry in entries.items():
            also = entry.get("also", []) if isinstance(entry, dict) else []
            assert set(also) - known == set(), f"{name}::{check}"


def test_every_component_has_its_file_of_checks():
    silent = {"cleanup"}  # what it takes away is what test_hygiene.py looks for
    missing = [
        name
        for name in components.names()
        if name not in silent and not (AMI_TESTS / f"test_{name.replace('-', '_')}.py").exists()
    ]
    assert missing == []


@pytest.mark.parametrize("path", sorted(AMI_TESTS.glob("test_*.py")), ids=lambda p: p.stem)
def test_every_check_says_where_it_holds(path: Path):
    tree = ast.parse(path.read_text())
    if any("pytestmark" in ast.unparse(node) for node in tree.body):
        return
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            marks = {ast.unparse(decorator) for decorator in node.decorator_list}
            assert marks & {"pytest.mark.bake", "pytest.mark.boot"}, node.name


def selected(
    recipe: dict[str, Any],
    gpu: object = None,
    *,
    own_kernel: bool = False,
    exercise: bool = True,
    target: str = "lab",
) -> list[str]:
    """The checks ("file::name") that are run for a recipe, in their order."""
    units = units_that_need_a_cluster(recipe.get("flavor", "base"))
    expected = {
        "recipe": recipe,
        "gpu": gpu,
        "needs_cluster": units,
        "target": target,
        "own_kernel": own_kernel,
        "boot_budget": {"unit": 5} if own_kernel else None,
        "exercise": exercise,
        "reboot": exercise,
        "restart": {} if not exercise else {"instance_id": "i-1"},
    }
    return _listed(json.dumps(expected))


@cache
def _listed(expect: str) -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "expect.json"
        path.write_text(expect)
        done = run_harness("--collect-only", "--hosts=local://", KILN_EXPECT=str(path))
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line.split("/")[-1] for line in done.stdout.splitlines() if "::" in line]
    return list(dict.fromkeys(line.split("[")[0] for line in lines))


PLAIN: dict[str, Any] = {"components": tuple(components.names()), "kernel_module": "open"}
FULL: dict[str, Any] = {
    "distro": {"id": "al2023", "package_manager": "dnf"},
    "flavor": "base",
    "components": tuple(components.names()),
    "kernel": "kernel6.12",
    "kernel_module": "both",
    "efa": "1.51.0",
    "nvlsm": "2025.10.14",
    "telemetry": {"dcgm": True},
    "mig_config": None,
}
KNOWN_CLOCKS = {"clocks": [1, 2]}
XID_CHECKS = {f"test_xid_event.py::{name}" for name in MUTATIONS["checks"]["test_xid_event.py"]}


def test_checks_of_components_that_are_not_part_of_the_image_are_not_run():
    debian = row("debian12/debian/base/x86_64").as_json()
    files = {check.split("::")[0] for check in selected(debian)}
    assert {"test_nvidia_driver.py", "test_boot.py", "test_hygiene.py"} <= files
    assert not {"test_cuda.py", "test_efa.py", "test_nccl.py", "test_dcgm.py"} & files
    baked = {f"test_{name.replace('-', '_')}.py" for name in debian["components"]}
    assert baked - files == {"test_cleanup.py"}


FLAVORS = ("base", "ecs", "eks")
ON_MIG = {**FULL, "mig_config": "all-balanced"}


def test_every_check_is_run_for_some_recipe():
    every = {f"{name}::{check}" for name, names in checks().items() for check in names}
    flavors = [{**FULL, "flavor": flavor} for flavor in (*FLAVORS, "parallelcluster")]
    run = {check for recipe in (*flavors, ON_MIG) for check in selected(recipe, KNOWN_CLOCKS)}
    own = set(selected(FULL, own_kernel=True)) - run
    assert {check.split("::")[0] for check in own} == {"test_own_kernel.py"}
    assert run | own == every


def test_checks_of_own_kernels_run_in_aws():
    lab, aws = set(selected(FULL, KNOWN_CLOCKS)), set(selected(FULL, KNOWN_CLOCKS, target="aws"))
    # Those of times judge the lab's boot alone.
    assert aws - lab == {
        f"test_own_kernel.py::{n}"
        for n in MUTATIONS["checks"]["test_own_kernel.py"]
        if "budget" not in n
    }
    assert expectations(row("al2/classic/base/x86_64"), "g4dn.xlarge", "aws")["boot_budget"]


@pytest.mark.parametrize(
    "line",
    [
        "NVRM: Xid (PCI:0000:00:1e): 79, pid=1, GPU has fallen off the bus.",
        "NVRM: GPU 0000:00:03.0: RmInitAdapter failed! (0x22:0x65:884)",
        "NVRM: GPU 0000:00:03.0: rm_init_adapter failed, device minor number 0",
        "NVRM: API mismatch: the client has the version 535.1, but",
        "NVRM: The NVIDIA probe routine failed for 1 device(s).",
        "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 24007, Non-fatal",
        "nvidia_uvm: Unknown symbol nvUvmInterfaceInit (err -2)",
    ],
)
def test_kernel_log_line_of_a_broken_driver_is_found(line: str):
    log = f"NVRM: loading NVIDIA UNIX x86_64 Kernel Module  580.95.05\n[    9.1] {line}\n"
    found = harness(f"__import__('expectations').driver_errors({log!r})")
    assert found.strip() == repr([f"[    9.1] {line}"])


@pytest.mark.parametrize(
    ("link", "found"), [("NV12", []), ("NODE", ["GPU0-GPU1: NODE", "GPU1-GPU0: NODE"])]
)
def test_topology_names_pairs_without_nvlink(link: str, found: list[str]):
    head = "\t\x1b[4mGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m"
    rows = [f"GPU0\t X \t{link}\t0-47\t0\t\tN/A", f"GPU1\t{link}\t X \t0-47\t0\t\tN/A"]
    text = "\n".join([head, *rows, "", "Legend:", "  X    = Self"])
    answer = harness(f"__import__('expectations').unlinked_pairs({text!r}, 2)")
    assert answer.strip() == repr(found)


@pytest.mark.parametrize(
    ("words", "provider"),
    [
        ("Provider is efa (found 4 nics)", "efa"),
        ("provider is efa, fabric is efa-direct (found 32 nics)", "efa"),
        ("provider is tcp;ofi_rxm, fabric is 10.0.0.0/8 (found 1 nics)", "tcp;ofi_rxm"),
    ],
)
def test_provider_and_bandwidth_are_read_from_nccl_tests(words: str, provider: str):
    log = f"n1:42:42 [0] NCCL INFO NET/OFI Selected {words}\n# Avg bus bandwidth    : 480.318 \n"
    expectations = "__import__('expectations')"
    found = harness(f"({expectations}.providers({log!r}), {expectations}.bus_bandwidth({log!r}))")
    assert found.strip() == repr(({provider}, 480.318))


def test_container_tells_its_gpus_before_and_after_a_daemon_reload(tmp_path: Path):
    programs = {
        "docker": """
            case $* in
                import*) tar -tf - ;;
                *ulimit*) echo unlimited; echo 1048576 ;;
                *nvidia-smi*) [ -e {0}/reloaded ] && exit 255; echo "GPU 0: T4 (UUID: GPU-1)" ;;
            esac""",
        "systemctl": "touch {0}/reloaded",
    }
    for name, text in programs.items():
        (tmp_path / name).write_text("#!/bin/sh\n" + text.replace("{0}", str(tmp_path)))
        (tmp_path / name).chmod(0o755)
    # ldd wants a program.
    (tmp_path / "nvidia-smi").symlink_to(shutil.which("true") or "")
    script = harness("__import__('test_container_toolkit').IN_A_CONTAINER")
    done = subprocess.run(
        ["bash", "-c", script],
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "unlimited\n1048576\nGPU 0: T4 (UUID: GPU-1)\nafter\n"


@pytest.mark.parametrize(
    ("flavor", "check"),
    [
        ("base", "test_container_toolkit.py::test_every_runtime_on_the_image_knows_it"),
        ("ecs", "test_container_toolkit.py::test_docker_knows_it_by_amazons_way_alone"),
        ("eks", "test_boot.py::test_the_parents_way_into_its_cluster_starts_at_boot"),
    ],
)
def test_a_check_of_one_flavour_is_not_run_for_another(flavor: str, check: str):
    run = {name: check in selected({**FULL, "flavor": name}, KNOWN_CLOCKS) for name in FLAVORS}
    assert run == {name: name == flavor for name in FLAVORS}


def test_a_mig_layout_decides_which_checks_are_run():
    plain, mig = set(selected(FULL, KNOWN_CLOCKS)), set(selected(ON_MIG, KNOWN_CLOCKS))
    assert mig - plain == set()
    assert plain - mig == {
        "test_dcgm.py::test_its_quick_diagnostic_passes",
        "test_nccl_tests.py::test_an_all_reduce_over_all_gpus_adds_up",
        "test_nccl_tests.py::test_an_all_reduce_is_as_fast_as_nvlink_allows",
        "test_nccl_tests.py::test_nccl_chooses_efa",
        "test_nvidia_fabricmanager.py::test_every_nvlink_is_active",
        "test_nvidia_fabricmanager.py::test_nvlink_connects_every_pair_of_gpus",
    }


@pytest.mark.parametrize(
    "check",
    [
        "test_nvidia_driver.py::test_both_kernel_modules_were_built_for_the_kernel_that_boots",
        "test_kernel.py::test_a_pinned_kernel_is_the_one_that_boots",
        "test_nvidia_fabricmanager.py::test_nvlsm_is_of_the_recipes_version",
        "test_dcgm_exporter.py::test_the_agent_reads_it",
        "test_nccl_tests.py::test_they_find_open_mpi_where_efa_brought_it",
    ],
)
def test_a_check_of_what_the_recipe_does_not_ask_for_is_not_run(check: str):
    assert check not in selected(PLAIN)
    assert check in selected(FULL, KNOWN_CLOCKS)


def test_a_gpu_whose_clocks_nobody_documents_gets_no_check_of_them():
    check = "test_boost_clocks.py::test_every_gpu_has_its_highest_application_clocks"
    assert check in selected(FULL, KNOWN_CLOCKS)
    assert check not in selected(FULL, {"clocks": None})
    assert check in selected(PLAIN), "without a GPU it is skipped, and says so"


def test_a_machine_that_does_not_answer_is_one_message(tmp_path: Path):
    expect = tmp_path / "expect.json"
    expect.write_text(json.dumps({"recipe": {"components": [], "driver_source": "repo"}}))
    done = run_harness("--hosts=ssh://nobody@127.0.0.9:1", KILN_EXPECT=str(expect))
    assert done.returncode == 3
    assert "ssh://nobody@127.0.0.9:1 cannot be reached over SSH" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


def test_missing_expectations_are_one_message():
    done = run_harness("--hosts=ssh://nobody@127.0.0.9:1")
    assert done.returncode == 2
    assert "KILN_EXPECT must name the file" in done.stdout


@pytest.mark.parametrize(
    ("waits", "then"),
    # systemd of Amazon Linux 2 knows no --wait: it is asked until it says something else.
    [("exit 1", ["is-system-running"] * 4), ("echo degraded; exit 1", ["is-system-running"])],
    ids=["systemd 219", "systemd 252"],
)
def test_no_check_runs_while_the_machine_still_boots(tmp_path: Path, waits: str, then: list[str]):
    expect = tmp_path / "expect.json"
    expect.write_text(json.dumps({"recipe": {"components": [], "driver_source": "repo"}}))
    asked = tmp_path / "asked"
    programs = {
        "sudo": 'shift\nexec "$@"\n',
        "systemctl": f'echo "$*" >> {asked}\n[ "$2" != --wait ] || {{ {waits}; }}\n'
        f'[ "$(wc -l < {asked})" -le {len(then)} ] && echo starting || echo degraded\nexit 1\n',
        # What is held is among the facts of the machine, and apt takes a second to say it.
        "apt-mark": "",
    }
    for name, text in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}")
        (tmp_path / name).chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    run_harness("--hosts=local://", "-k", "test_no_unit_failed", KILN_EXPECT=str(expect), PATH=path)
    lines = asked.read_text().splitlines()
    assert lines[0] == "is-system-running --wait"
    assert lines[1 : len(then) + 1] == then
    assert lines[len(then) + 1].startswith("show")


def harness(expression: str) -> str:
    """What an expression over the harness's own functions prints."""
    done = subprocess.run(
        [sys.executable, "-c", f"import harness; print({expression})"],
        cwd=AMI_TESTS,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def collected(path: str, **arguments: str) -> dict[str, Any]:
    """What the collector says of this machine, whose programs are those of `path`."""
    program = harness(f"harness.packed(harness.collector(), {arguments})").rstrip("\n")
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-1000:]
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_the_collector_answers_on_a_machine_that_has_none_of_the_programs():
    answer = collected("/nowhere")
    assert set(answer["now"]) == {"kernel", "packages", "modules", "efa", "paths", "held"}
    assert answer["commands"]["nvidia-smi"]["rc"] == 127


def test_collector_starts_nothing_on_a_machine_of_its_own_kernel(tmp_path: Path):
    """nvidia-smi loads the driver, docker's socket starts docker: github:NVIDIA/nvidia-modprobe."""
    called = tmp_path / "called"
    for name in ("modprobe", "insmod", "nvidia-smi", "docker", "systemd-detect-virt"):
        (tmp_path / name).write_text(f"#!/bin/sh\necho {name} >> {called}\necho none\n")
        (tmp_path / name).chmod(0o755)
    answer = collected(str(tmp_path))
    assert not answer["boot"]["container"]
    assert called.read_text().split() == ["systemd-detect-virt"]
    assert "not loaded" in answer["commands"]["nvidia-smi"]["out"]


# Without a container runtime, with an instance type without EFA, and with a kernel without it.
MAY_SKIP = {
    "test_container_toolkit::test_every_runtime_on_the_image_knows_it",
    "test_container_toolkit::test_container_runtimes_do_not_lower_limits",
    "test_boot::test_containers_reach_imds",
    "test_boot::test_selinux_contexts_of_our_files_are_the_policys",
    "test_container_toolkit::test_container_keeps_every_gpu_over_a_daemon_reload",
    "test_container_toolkit::test_container_may_lock_memory_and_open_files",
    "test_nccl_tests::test_nccl_chooses_efa",
    "test_nccl_tests::test_an_all_reduce_is_as_fast_as_nvlink_allows",
    "test_nvidia_fabricmanager::test_every_nvlink_is_active",
    "test_nvidia_driver::test_every_driver_package_has_the_drivers_version",
    "test_nvidia_fabricmanager::test_every_gpu_is_registered_with_the_fabric",
    "test_nvidia_fabricmanager::test_nvlink_connects_every_pair_of_gpus",
    "test_gdrcopy::test_every_user_may_open_its_device",
    "test_nvidia_driver::test_the_driver_has_the_options_for_these_gpus",
    *(f"test_own_kernel::test_the_modules_of_the_fabric_load[{x}" for x in ("efa", "ib_umad")),
}


@pytest.mark.parametrize(
    ("distro", "instance_type", "more"),
    [
        ("al2023", "p6-b200.48xlarge", {"driver_source": "repo", "mig_config": "all-balanced"}),
        ("debian12", "g4dn.xlarge", {"driver_source": "runfile", "efa": None, "mig_config": None}),
    ],
)
def test_no_check_passes_on_an_empty_machine(
    tmp_path: Path, distro: str, instance_type: str, more: dict[str, Any]
):
    nothing = collected("/nowhere")
    (tmp_path / "empty.json").write_text(
        json.dumps({"machine": nothing, "own": collected("/nowhere", own_kernel="6.1")})
    )
    (recipe,) = [r for r in load_recipes() if r.distro.id == distro and r.flavor == "base"][:1]
    asked = recipe.changed(**{**FULL, "distro": recipe.distro, **more})
    expected = expectations(asked, instance_type, "aws", own_kernel=True, efa_attached=True)
    (tmp_path / "expect.json").write_text(json.dumps(expected))
    junit = tmp_path / "j.xml"
    done = run_harness(
        *("-p", "tests.unit.empty_machine", "--hosts=none://", f"--junitxml={junit}"),
        KILN_EXPECT=str(tmp_path / "expect.json"),
        KILN_EMPTY=str(tmp_path / "empty.json"),
        PYTHONOPTIMIZE="1",
    )
    assert done.returncode == 1, done.stdout + done.stderr
    ran = read_junit(junit).values()
    assert {f"{check.file}.py::{check.name.split('[')[0]}" for check in ran} == {
        f"{file}::{check}" for file, names in checks().items() for check in names
    }
    blind = {f"{each.file}::{each.name}" for each in ran if each.outcome != "failed"}
    assert blind <= MAY_SKIP, "\n".join(sorted(blind - MAY_SKIP))
    assert not [each for each in ran if each.outcome == "passed"]


@pytest.mark.parametrize("path", sorted(AMI_TESTS.glob("test_*.py")), ids=lambda p: p.stem)
def test_check_that_reaches_the_machine_is_an_exercise(path: Path):
    tree = ast.parse(path.read_text())
    marked = "pytest.mark.exercise" in "".join(
        ast.unparse(node) for node in tree.body if "pytestmark" in ast.unparse(node)
    )
    reaching = {"host"}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and reaching & {each.arg for each in node.args.args}:
            marks = {ast.unparse(decorator) for decorator in node.decorator_list}
            if node.name.startswith("test_"):
                assert marked or "pytest.mark.exercise" in marks, node.name
            reaching.add(node.name)


def test_exercises_run_last_and_only_where_wanted():
    full = {**FULL, "mig_config": None}
    every = selected(full, KNOWN_CLOCKS)
    acts = set(every) - set(selected(full, KNOWN_CLOCKS, exercise=False))
    assert {name.split("::")[0] for name in acts} == {
        "test_container_toolkit.py",
        "test_dcgm.py",
        "test_nccl_tests.py",
        "test_reboot.py",
        "test_xid_event.py",
    }
    assert every[-1].startswith("test_reboot.py")
    assert acts >= XID_CHECKS
    assert set(every[-len(acts) :]) == acts


def test_a_program_for_the_machine_may_begin_with_a_future_import_and_finds_its_arguments():
    program = "from __future__ import annotations\nprint(ARGUMENTS['marker'], __name__)"
    line = harness(f"harness.packed({program!r}, {{'marker': 'it'}})").rstrip("\n")
    done = subprocess.run([sys.executable, "-c", line], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("it __main__\n", "")
