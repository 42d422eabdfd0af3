"""kiln-gpu-gate: which node may join its cluster."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from kiln.base.paths import RUNTIME

sys.path.insert(0, str(RUNTIME / "opt/kiln/lib"))

from gpu_boot import gate
from gpu_common import nvidia_smi
from gpu_common.nvidia_smi import NvidiaSmiError

UNKNOWN_FIELD = 'Field "fabric.state" is not a valid field to query.'


class Node:
    """A node with two GPUs behind NVSwitches, whose layout was applied."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.listed = "GPU 0: NVIDIA A100 (UUID: GPU-0)\nGPU 1: NVIDIA A100 (UUID: GPU-1)\n"
        self.fabric = ["Completed, Success\nCompleted, Success\n"]
        monkeypatch.setattr(gate.act, "FLAGS", str(root / "flags"))
        for name in ("MIG_RESULT", "MIG_UNIT", "MODULE", "CONTAINER"):
            monkeypatch.setattr(gate, name, str(root / name))
        self.now, self.fabric_manager = 0.0, True
        monkeypatch.setattr(gate.time, "sleep", self.sleep)
        monkeypatch.setattr(gate.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(gate, "_is_active", lambda unit: self.fabric_manager)
        (root / "flags").mkdir()
        (root / "MODULE").mkdir()
        (root / "MIG_UNIT").touch()
        self.decide(gpus=2, nvswitch=True)
        self.mig(state="ok", block_join=True)

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def decide(self, gpus: int, nvswitch: bool) -> None:
        decision = {"gpus": [{}] * gpus, "apply": {"nvswitch": nvswitch}}
        (self.root / "flags/decision.json").write_text(json.dumps(decision))

    def mig(self, **result: Any) -> None:
        (self.root / "MIG_RESULT").write_text(json.dumps(result))

    def ask(self, arguments: list[str], timeout_s: float) -> str:
        if arguments == ["-L"]:
            return self.listed
        if len(self.fabric) > 1:
            return self.fabric.pop(0)
        if self.fabric[0] == UNKNOWN_FIELD:
            raise NvidiaSmiError(UNKNOWN_FIELD, 2)
        return self.fabric[0]

    def why_closed(self) -> str:
        try:
            gate.check(self.ask)
        except gate.ClosedError as error:
            return str(error)
        return ""


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    return Node(tmp_path, monkeypatch)


def test_whole_node_and_node_without_gpu_may_join(node: Node) -> None:
    assert node.why_closed() == ""
    node.decide(gpus=0, nvswitch=False)
    node.listed = ""
    assert node.why_closed() == ""


def test_node_without_a_decision_may_not(node: Node) -> None:
    (node.root / "flags/decision.json").unlink()
    assert "kiln-gpu-boot left no decision" in node.why_closed()


def test_node_without_the_module_may_not_join(node: Node) -> None:
    (node.root / "MODULE").rmdir()
    assert "kernel module is not loaded" in node.why_closed()
    (node.root / "CONTAINER").touch()
    assert node.why_closed() == ""


def test_node_with_a_lost_gpu_may_not(node: Node) -> None:
    node.listed = node.listed.splitlines()[0]
    assert "2 GPUs are on the PCI bus, nvidia-smi lists 1" in node.why_closed()


def test_fabric_that_registers_in_time_opens_the_gate(node: Node) -> None:
    node.fabric = ["Not Started, N/A\n" * 2, "In Progress, N/A\n" * 2, "Completed, Success\n" * 2]
    assert node.why_closed() == ""


@pytest.mark.parametrize(
    "fabric", ["[N/A], [N/A]\n" * 2, UNKNOWN_FIELD], ids=["before Hopper", "an old driver"]
)
def test_gpus_that_do_not_register_need_a_running_fabric_manager(node: Node, fabric: str) -> None:
    node.fabric = [fabric]
    assert node.why_closed() == ""
    node.fabric_manager = False
    assert "nvidia-fabricmanager.service is not running" in node.why_closed()


def test_warning_of_nvidia_smi_is_no_state(node: Node) -> None:
    node.fabric[0] += "WARNING: infoROM is corrupted at gpu 0000:10:1C.0\n"
    assert node.why_closed() == ""


@pytest.mark.parametrize("state", ["Completed, Insufficient Resources", "Not Started, N/A"])
def test_fabric_that_is_not_ready_closes_it(node: Node, state: str) -> None:
    node.fabric = [f"{state}\nCompleted, Success\n"]
    assert "fabric of 1 GPUs is not ready" in node.why_closed()


@pytest.mark.parametrize(
    ("result", "closed"),
    [
        ({"state": "nothing", "block_join": True}, False),
        ({"state": "failed", "block_join": True, "message": "no label"}, True),
        ({"state": "failed", "block_join": False}, False),
        ({"state": "started", "block_join": True}, True),
        ({"state": "reboot", "block_join": False}, True),
        ({}, True),
    ],
)
def test_layout_decides_as_configured(node: Node, result: dict[str, Any], closed: bool) -> None:
    node.mig(**result)
    assert bool(node.why_closed()) is closed


def test_image_without_gpu_mig_needs_no_layout(node: Node) -> None:
    (node.root / "MIG_UNIT").unlink()
    (node.root / "MIG_RESULT").unlink()
    assert node.why_closed() == ""


def test_nvidia_smi_that_hangs_closes_it(
    node: Node, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def hang(*given: object) -> None:
        raise NvidiaSmiError("nvidia-smi did not answer in 60 s")

    monkeypatch.setattr(gate.check, "__defaults__", (hang,))
    assert gate.main([]) == 1
    assert "<3>this node must not join its cluster: nvidia-smi did not" in capsys.readouterr().out


def test_full_disk_is_no_reason_to_stay_away(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """kubelet is what frees it."""
    places: list[str] = []

    def full(**where: str) -> io.BytesIO:
        places.extend(where.values())
        if not where:
            raise FileNotFoundError("No usable temporary directory found")
        return io.BytesIO()

    monkeypatch.setattr(nvidia_smi.tempfile, "TemporaryFile", full)
    assert nvidia_smi._scratch_file().read() == b""
    assert places == ["/run"]
