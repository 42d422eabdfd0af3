"""The checks of tests/ami: each can fail, each belongs to some image, and none runs too early."""

from __future__ import annotations

import ast
import importlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from kiln import components
from kiln.base.paths import AMI_TESTS, ROOT
from kiln.facts import table
from kiln.matrix.load import load_recipes
from kiln.pipeline.checks import UNUSED_PLUGINS, expectations, read_junit
from tests.unit.rows import row

pytestmark = pytest.mark.slow
MUTATIONS = yaml.safe_load((AMI_TESTS / "mutations.yaml").read_text())
# As a run of the checks leaves them out.
PLUGINS = [f"-pno:{name}" for name in UNUSED_PLUGINS]
TREES = {path.name: ast.parse(path.read_text()) for path in sorted(AMI_TESTS.glob("test_*.py"))}
# File name → its checks.
CHECKS = {
    file: {
        node.name: node
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }
    for file, tree in TREES.items()
}
EVERY = {f"{file}::{check}" for file, names in CHECKS.items() for check in names}


def run_python(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {key: value for key, value in os.environ.items() if key != "KILN_EXPECT"}
    return subprocess.run(
        [sys.executable, *words],
        cwd=ROOT,
        env={**inherited, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def run_harness(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return run_python("-m", "pytest", *PLUGINS, "tests/ami", *arguments, **environment)


# ------------------------------------------------------------------- mutations and marks


def test_every_check_can_be_made_to_fail() -> None:
    known = {file: set(entries) for file, entries in MUTATIONS["checks"].items()}
    assert known == {file: set(names) for file, names in CHECKS.items()}
    shell = []
    for file, entries in MUTATIONS["checks"].items():
        for check, entry in entries.items():
            if isinstance(entry, dict):
                kinds = (["not_in_a_lab"], ["own_kernel"], ["reboot"], ["run", "also"])
                assert list(entry) in kinds, f"{file}::{check}"
                assert set(entry.get("also", [])) <= EVERY, f"{file}::{check}"
            if "not_in_a_lab" not in entry:
                shell.append(entry if isinstance(entry, str) else next(iter(entry.values())))
    script = MUTATIONS["prelude"] + "".join(f"\nm() {{\n{each}\n}}\n" for each in shell)
    done = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_component_has_its_file_of_checks() -> None:
    # What cleanup takes away is what test_hygiene.py looks for.
    named = {f"test_{name.replace('-', '_')}.py" for name in components.names()}
    assert named - set(CHECKS) == {"test_cleanup.py"}


def marks(nodes: list[Any]) -> set[str]:
    return {word for node in nodes for word in ast.unparse(node).split("pytest.mark.")[1:]}


def test_every_check_is_marked_bake_or_boot_and_exercise() -> None:
    """A check that reaches the machine by itself acts on it."""
    for file, tree in TREES.items():
        shared = [node for node in tree.body if "pytestmark" in ast.unparse(node)]
        reaching = {"host"}
        for node in (each for each in tree.body if isinstance(each, ast.FunctionDef)):
            own = str(marks([*shared, *node.decorator_list]))
            reaches = bool(reaching & {each.arg for each in node.args.args})
            if reaches:
                reaching.add(node.name)
            if node.name in CHECKS[file]:
                assert "bake" in own or "boot" in own, f"{file}::{node.name}"
                assert "exercise" in own or not reaches, f"{file}::{node.name}"


# ------------------------------------------------------------------- checks of an image

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


def expected(recipe: dict[str, Any], gpu: object = KNOWN_CLOCKS, **more: Any) -> dict[str, Any]:
    own_kernel = more.get("own_kernel", False)
    flavor = table("distros")["flavors"].get(recipe.get("flavor"), {})
    return {
        "recipe": recipe,
        "gpu": gpu,
        "needs_cluster": flavor.get("needs_cluster", []),
        "target": "lab",
        "own_kernel": False,
        "boot_budget": {"unit": 5} if own_kernel else None,
        "exercise": True,
        "reboot": True,
        "restart": {"instance_id": "i-1"},
        **more,
    }


FLAVORS = ("base", "ecs", "eks", "parallelcluster")
IMAGES = {
    **{flavor: expected({**FULL, "flavor": flavor}) for flavor in FLAVORS},
    "mig": expected({**FULL, "mig_config": "all-balanced"}),
    "own kernel": expected(FULL, own_kernel=True),
    "aws": expected(FULL, target="aws"),
    "plain": expected(PLAIN, None),
    "no clocks": expected(FULL, {"clocks": None}),
    "looked at": expected(FULL, exercise=False),
    "debian": expected(row("debian12/debian/base/x86_64").to_dict()),
}
CHOOSE = """import json, sys, pytest
class Choose:
    def pytest_collection_finish(self, session):
        from applies import belongs
        print("CHOSEN", json.dumps({
            name: [item.nodeid.split("/")[-1] for item in session.items if belongs(item, expect)]
            for name, expect in json.loads(sys.argv[1]).items()
        }))
sys.exit(pytest.main([*sys.argv[2:], "--collect-only", "--hosts=local://"], [Choose()]))
"""


@pytest.fixture(scope="module")
def chosen() -> dict[str, set[str]]:
    """Image → the checks ("file::name") that belong to it."""
    done = run_python("-c", CHOOSE, json.dumps(IMAGES), "tests/ami", *PLUGINS)
    assert done.returncode == 0, done.stdout + done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("CHOSEN ")]
    found = json.loads(line.removeprefix("CHOSEN "))
    return {name: {check.split("[")[0] for check in checks} for name, checks in found.items()}


def test_every_check_belongs_to_some_image(chosen: dict[str, set[str]]) -> None:
    run = set().union(*(chosen[name] for name in (*FLAVORS, "mig")))
    own = chosen["own kernel"] - run
    assert {check.split("::")[0] for check in own} == {"test_own_kernel.py"}
    assert run | own == EVERY
    # Those of times judge the lab's boot alone.
    assert chosen["aws"] - chosen["base"] == {check for check in own if "budget" not in check}
    assert expectations(row("al2/classic/base/x86_64"), "g4dn.xlarge", "aws")["boot_budget"]


def test_only_components_of_the_image_are_checked(chosen: dict[str, set[str]]) -> None:
    files = {check.split("::")[0] for check in chosen["debian"]}
    assert {"test_nvidia_driver.py", "test_boot.py", "test_hygiene.py"} <= files
    assert not {"test_cuda.py", "test_efa.py", "test_nccl.py", "test_dcgm.py"} & files
    baked = IMAGES["debian"]["recipe"]["components"]
    named = {f"test_{name.replace('-', '_')}.py" for name in baked}
    assert named - files == {"test_cleanup.py"}


def test_mig_layout_leaves_out_checks_of_whole_gpus(chosen: dict[str, set[str]]) -> None:
    assert chosen["mig"] <= chosen["base"]
    assert chosen["base"] - chosen["mig"] == {
        "test_dcgm.py::test_its_quick_diagnostic_passes",
        "test_nccl_tests.py::test_an_all_reduce_over_all_gpus_adds_up",
        "test_nccl_tests.py::test_an_all_reduce_is_as_fast_as_nvlink_allows",
        "test_nccl_tests.py::test_nccl_chooses_efa",
        "test_nvidia_fabricmanager.py::test_every_nvlink_is_active",
        "test_nvidia_fabricmanager.py::test_nvlink_connects_every_pair_of_gpus",
    }


def test_check_needs_what_the_recipe_asks_for(chosen: dict[str, set[str]]) -> None:
    assert chosen["base"] - chosen["plain"] >= {
        "test_nvidia_driver.py::test_both_kernel_modules_fit_the_kernel_that_boots",
        "test_kernel.py::test_a_pinned_kernel_is_the_one_that_boots",
        "test_nvidia_fabricmanager.py::test_nvlsm_is_of_the_recipes_version",
        "test_dcgm_exporter.py::test_the_agent_reads_it",
        "test_nccl_tests.py::test_they_find_open_mpi_where_efa_brought_it",
    }
    clocks = "test_boost_clocks.py::test_every_gpu_has_its_highest_application_clocks"
    assert clocks in chosen["base"] - chosen["no clocks"]
    # Without a GPU it is skipped, and says so.
    assert clocks in chosen["plain"]


def test_exercises_run_last_and_only_where_wanted(
    chosen: dict[str, set[str]], tmp_path: Path
) -> None:
    acts = chosen["base"] - chosen["looked at"]
    assert {name.split("::")[0] for name in acts} == {
        *("test_container_toolkit.py", "test_dcgm.py", "test_nccl_tests.py"),
        *("test_reboot.py", "test_xid_event.py"),
    }
    assert acts >= {check for check in EVERY if check.startswith("test_xid_event.py")}
    done = run_harness(
        "--collect-only", "--hosts=local://", KILN_EXPECT=written(tmp_path, IMAGES["base"])
    )
    lines = [line.split("/")[-1] for line in done.stdout.splitlines() if "::" in line]
    every = list(dict.fromkeys(line.split("[")[0] for line in lines))
    assert set(every) == chosen["base"]
    assert every[-1].startswith("test_reboot.py")
    assert set(every[-len(acts) :]) == acts


# ------------------------------------------------------------------- the harness


def written(folder: Path, expect: dict[str, Any]) -> str:
    path = folder / "expect.json"
    path.write_text(json.dumps(expect))
    return str(path)


NOTHING: dict[str, Any] = {"recipe": {"components": [], "driver_source": "repo"}}


def test_unreachable_machine_is_one_message(tmp_path: Path) -> None:
    expect = written(tmp_path, NOTHING)
    done = run_harness("--hosts=ssh://nobody@127.0.0.9:1", KILN_EXPECT=expect)
    assert done.returncode == 3
    assert "127.0.0.9:1 cannot be reached over SSH" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("waits", "then"),
    # systemd of Amazon Linux 2 knows no --wait: it is asked until it says something else.
    [("exit 1", ["is-system-running"] * 4), ("echo degraded; exit 1", ["is-system-running"])],
    ids=["systemd 219", "systemd 252"],
)
def test_no_check_runs_while_the_machine_boots(tmp_path: Path, waits: str, then: list[str]) -> None:
    expect = written(tmp_path, NOTHING)
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
    run_harness("--hosts=local://", "-k", "test_no_unit_failed", KILN_EXPECT=expect, PATH=path)
    lines = asked.read_text().splitlines()
    assert lines[0] == "is-system-running --wait"
    assert lines[1 : len(then) + 1] == then
    assert lines[len(then) + 1].startswith("show")


@pytest.fixture(scope="module", autouse=True)
def _harness_can_be_imported() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(AMI_TESTS))
        yield


def harness(module: str = "harness") -> Any:
    return importlib.import_module(module)


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
def test_kernel_log_line_of_a_broken_driver_is_found(line: str) -> None:
    log = f"NVRM: loading NVIDIA UNIX x86_64 Kernel Module  580.95.05\n[    9.1] {line}\n"
    assert harness("expectations").driver_errors(log) == [f"[    9.1] {line}"]


def test_outputs_of_nvidia_programs_are_read() -> None:
    helpers = harness("expectations")
    head = "\t\x1b[4mGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m"
    for link, found in (("NV12", []), ("NODE", ["GPU0-GPU1: NODE", "GPU1-GPU0: NODE"])):
        rows = [f"GPU0\t X \t{link}\t0-47\t0\t\tN/A", f"GPU1\t{link}\t X \t0-47\t0\t\tN/A"]
        text = "\n".join([head, *rows, "", "Legend:", "  X    = Self"])
        assert helpers.unlinked_pairs(text, 2) == found
    for words, provider in (
        ("Provider is efa (found 4 nics)", "efa"),
        ("provider is efa, fabric is efa-direct (found 32 nics)", "efa"),
        ("provider is tcp;ofi_rxm, fabric is 10.0.0.0/8 (found 1 nics)", "tcp;ofi_rxm"),
    ):
        log = f"n1:42:42 [0] NCCL INFO NET/OFI Selected {words}\n# Avg bus bandwidth    : 480.3 \n"
        assert (helpers.providers(log), helpers.bus_bandwidth(log)) == ({provider}, 480.3)


def test_container_names_gpus_after_a_daemon_reload(tmp_path: Path) -> None:
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
    script = harness("test_container_toolkit").IN_A_CONTAINER
    done = subprocess.run(
        ["bash", "-c", script],
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "unlimited\n1048576\nGPU 0: T4 (UUID: GPU-1)\nafter\n"


def collected(path: str, **arguments: str) -> dict[str, Any]:
    """What the collector says of this machine, whose programs are those of `path`."""
    program = harness().packed(harness().collector(), arguments)
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


def test_collector_starts_no_driver(tmp_path: Path) -> None:
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
) -> None:
    nothing = collected("/nowhere")
    (tmp_path / "empty.json").write_text(
        json.dumps({"machine": nothing, "own": collected("/nowhere", own_kernel="6.1")})
    )
    (recipe,) = [r for r in load_recipes() if r.distro.id == distro and r.flavor == "base"][:1]
    asked = recipe.changed(**{**FULL, "distro": recipe.distro, **more})
    expect = expectations(asked, instance_type, "aws", own_kernel=True, efa_attached=True)
    junit = tmp_path / "j.xml"
    done = run_harness(
        *(
            "-p",
            "tests.unit.pipeline.empty_machine",
            "--hosts=none://",
            "--tb=no",
            f"--junitxml={junit}",
        ),
        KILN_EXPECT=written(tmp_path, expect),
        KILN_EMPTY=str(tmp_path / "empty.json"),
        PYTHONOPTIMIZE="1",
    )
    assert done.returncode == 1, done.stdout + done.stderr
    ran = read_junit(junit)
    assert {f"{check.file}.py::{check.name.split('[')[0]}" for check in ran} == EVERY
    blind = {f"{each.file}::{each.name}" for each in ran if each.outcome != "failed"}
    assert blind <= MAY_SKIP, "\n".join(sorted(blind - MAY_SKIP))
    assert not [each for each in ran if each.outcome == "passed"]
