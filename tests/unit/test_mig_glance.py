"""What one `nvidia-smi -q -x` proves, and what it does not."""

from __future__ import annotations

import os

import pytest
from mig_machine import Machine, in_process

from kiln import facts
from kiln.base.paths import RUNTIME
from kiln.base.runtime_import import runtime_module
from kiln.mig.check import check_label
from kiln.mig.profiles import gpu_types

applying = runtime_module("gpu_mig.apply")
config = runtime_module("gpu_mig.config")
glance = runtime_module("gpu_mig.glance")
target = runtime_module("gpu_mig.target")
MigError = runtime_module("gpu_mig.errors").MigError
Settings = runtime_module("gpu_mig.settings").Settings

LABELS = config.load(str(RUNTIME / "etc/kiln/mig-config.yaml"))
TYPES = {m.gpu: m.type for m in facts.instances().values() if m.mig}
# Only on and off: there is nothing to prove.
CUT = sorted(set(TYPES) - {"RTX-PRO-4500-32GB"})
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="the stand-in lets only root change MIG")

# The figures of a real A100-SXM4-80GB in four 1g.20gb, driver 535.54.03.
# source: github:influxdata/telegraf plugins/inputs/nvidia_smi/testdata/a100-sxm4-v12.xml
A100_80 = {
    "product_name": "NVIDIA A100-SXM4-80GB", "pci_device_id": "20B210DE", "mode": "Enabled",
    "devices": [(gi, 14, 1, (1, 0, 0, 0), 19968) for gi in (3, 4, 5, 6)],
}  # fmt: skip


def document(*gpus: dict, attached: int | None = None) -> str:
    out = f"<nvidia_smi_log><attached_gpus>{attached or len(gpus)}</attached_gpus>"
    for gpu in gpus:
        out += (
            f"<gpu><product_name>{gpu['product_name']}</product_name><mig_mode><current_mig>"
            f"{gpu['mode']}</current_mig><pending_mig>{gpu['mode']}</pending_mig></mig_mode>"
            "<mig_devices>"
        )
        for gi, sm, ce, (dec, enc, jpg, ofa), mib in gpu["devices"]:
            out += (
                f"<mig_device><gpu_instance_id>{gi}</gpu_instance_id><device_attributes><shared>"
                f"<multiprocessor_count>{sm}</multiprocessor_count>"
                f"<copy_engine_count>{ce}</copy_engine_count><encoder_count>{enc}</encoder_count>"
                f"<decoder_count>{dec}</decoder_count><ofa_count>{ofa}</ofa_count>"
                f"<jpg_count>{jpg}</jpg_count></shared></device_attributes>"
                f"<fb_memory_usage><total>{mib} MiB</total></fb_memory_usage></mig_device>"
            )
        out += (
            "</mig_devices><uuid>GPU-1</uuid><pci><pci_bus_id>00000000:01:00.0</pci_bus_id>"
            f"<pci_device_id>{gpu['pci_device_id']}</pci_device_id>"
            "<pci_sub_system_id>147F10DE</pci_sub_system_id></pci></gpu>"
        )
    return out + "</nvidia_smi_log>"


class Answers:
    """An nvidia-smi that says this."""

    def __init__(self, text: str) -> None:
        self.text = text

    def must(self, *args: str) -> str:
        return self.text


def proven(text: str, **devices: int) -> bool:
    """Whether the document proves that its GPUs hold these instances."""
    seen = glance.look(Answers(text))
    if seen is None:
        return False
    shapes = target.shape_all(tuple((n.replace("_", "."), c) for n, c in devices.items()))
    wanted = {item.gpu.index: target.Wanted(item.gpu.index, True, shapes) for item in seen}
    return glance.as_wanted(seen, wanted, gpu_types()) is not None


def changed(at: int, **figures: object) -> dict:
    """The real GPU with one device's figures changed."""
    fields = ("gi", "sm", "ce", "engines", "mib")
    device = dict(zip(fields, A100_80["devices"][at], strict=True)) | figures
    devices = list(A100_80["devices"])
    devices[at] = tuple(device.values())
    return {**A100_80, "devices": devices}


def test_a_real_a100_in_four_slices_is_proven_by_one_query():
    assert proven(document(A100_80), **{"1g_20gb": 4})
    assert proven(document(A100_80, A100_80), **{"1g_20gb": 4})


@pytest.mark.parametrize(
    "gpu",
    [
        pytest.param({**A100_80, "devices": A100_80["devices"][:3]}, id="one is missing"),
        pytest.param({**A100_80, "devices": []}, id="all are missing"),
        pytest.param({**A100_80, "mode": "Disabled"}, id="the mode is off"),
        pytest.param({**A100_80, "pci_device_id": "FFFF10DE"}, id="the GPU is not known"),
        pytest.param(changed(0, sm=28), id="another size"),
        pytest.param(changed(0, sm=16), id="a card with other SMs"),
        pytest.param(changed(0, mib=9728), id="half the memory"),
        pytest.param(changed(0, mib="N/A"), id="no memory told"),
        pytest.param(changed(0, engines=(1, 0, 1, 1)), id="other engines"),
        pytest.param(changed(0, gi=4), id="two compute instances in one"),
    ],
)
def test_what_is_not_wholly_as_wanted_is_not_proven(gpu):
    assert not proven(document(gpu), **{"1g_20gb": 4})


def test_memory_may_move_by_a_quarter_gib_as_between_driver_branches():
    assert proven(document(changed(0, mib=19968 + 256)), **{"1g_20gb": 4})


def test_slices_that_leave_room_for_one_nobody_sees_prove_nothing():
    three = {**A100_80, "devices": A100_80["devices"][:3]}
    assert not proven(document(three), **{"1g_20gb": 3})


def test_an_answer_that_is_not_such_a_document_proves_nothing():
    whole = document(A100_80)
    without_uuid = whole.replace("<uuid>GPU-1</uuid>", "")
    one_is_gone = document(A100_80, attached=2)
    for text in ("", "Unable to talk", whole[:-40], "<nvidia_smi_log/>", without_uuid, one_is_gone):
        assert glance.look(Answers(text)) is None


def test_a_gpu_that_does_not_answer_is_a_failure_not_a_gpu_without_mig():
    with pytest.raises(MigError, match="GPU 0 does not report its MIG mode: GPU is lost"):
        glance.look(Answers(document({**A100_80, "mode": "GPU is lost"})))


def test_the_same_figures_under_two_names_are_recognised_as_neither():
    kind = gpu_types()["RTX-PRO-6000-96GB"]
    plain = kind.profiles["1g.24gb"]  # 1g.24gb+gfx has the same
    device = glance.Device(3, plain.sm, plain.ce, plain.engines, round(plain.gib * 1024))
    assert glance.recognised(device, kind) is None
    without = kind.profiles["1g.24gb-me"]
    device = glance.Device(3, without.sm, without.ce, without.engines, round(without.gib * 1024))
    assert glance.recognised(device, kind) == without


@pytest.mark.parametrize("gpu", sorted(gpu_types()))
def test_a_profile_is_never_taken_for_another_nor_a_doubtful_one_for_itself(gpu):
    kind = gpu_types()[gpu]
    for p in kind.profiles.values():
        if None not in (p.gib, p.sm, p.ce):
            device = glance.Device(1, p.sm, p.ce, p.engines, round(p.gib * 1024))
            result = glance.recognised(device, kind)
            assert result in (p, None)
            assert result is None or not {"sm", "gib", "engines"} & set(p.unsure)


@as_root
@pytest.mark.parametrize("gpu", CUT)
def test_what_it_proves_for_every_label_of_the_map_the_listings_say_too(tmp_path, gpu):
    """With instances that lost their compute instance, and with one too many, in between."""
    on_smi = Settings(engine="nvidia-smi", stop_services=())
    answers = set()
    with in_process(tmp_path / "smi", TYPES[gpu]) as smi:
        for name in fitting(gpu):
            gpus = smi.gpus()
            wanted = target.resolve(LABELS[name], gpus)
            applying.apply(smi, gpus, wanted, gpu_types(), on_smi, lambda message: None)
            item = str(gpu_types()[gpu].profiles[smallest(gpu)].id)
            for change in ([], ["mig", "-i", "0", "-cgi", item], ["mig", "-i", "0", "-dci"]):
                if change:
                    smi.run(*change)
                seen = glance.look(smi)
                right = applying.differences(smi.gpus(), wanted) == []
                output = glance.as_wanted(seen, wanted, gpu_types()) is not None
                assert right or not output, f"{name} {change}"
                answers.add((right, output))
    assert {(False, False), (True, True)} <= answers


def fitting(gpu: str) -> list[str]:
    """The labels of the shipped map that the GPU can do."""
    return [name for name in sorted(LABELS) if not check_label(name, [TYPES[gpu]])]


def test_every_gpu_with_more_labels_than_on_and_off_is_tried():
    assert [gpu for gpu in sorted(TYPES) if len(fitting(gpu)) > 2] == CUT


def smallest(gpu: str) -> str:
    profiles = gpu_types()[gpu].profiles.values()
    return str(min(profiles, key=lambda p: (p.compute, p.memory, p.name)).name)


# --- and so apply ------------------------------------------------------------------------------


@pytest.fixture
def p5(tmp_path):
    return Machine(tmp_path, "p5.4xlarge")


@as_root
def test_apply_sees_a_gpu_instance_that_no_query_of_devices_shows(p5):
    p5.json("apply", "all-2g.20gb")
    p5.smi("mig", "-cgi", "19")  # no compute instance: neither -L nor -q -x has it
    assert "1g.10gb" in p5.slices()[0]
    assert p5.json("apply", "all-2g.20gb")["changed"] == [0]
    assert p5.slices()[0] == ["2g.20gb"] * 3


@as_root
def test_apply_repairs_an_instance_that_lost_its_compute_instance(p5):
    p5.json("apply", "all-balanced")
    p5.smi("mig", "-dci")
    assert p5.json("apply", "all-balanced")["changed"] == [0]
    assert p5.json("verify", "all-balanced")["ok"] is True


@as_root
def test_where_slices_leave_room_the_listings_are_read_too(p5):
    p5.json("apply", "all-2g.20gb")
    p5.forget_journal()
    assert p5.json("apply", "all-2g.20gb")["changed"] == []
    assert [call["argv"] for call in p5.journal()] == [
        ["-q", "-x"],
        ["mig", "-lci"],
        ["mig", "-lgi"],
    ]


@as_root
def test_an_answer_that_cannot_be_read_costs_queries_and_nothing_else(p5):
    p5.json("apply", "all-balanced")
    p5.faults(rules=[{"match": ["-x"], "times": 0, "exit": 0, "stdout": "<nvidia_smi_log>"}])
    p5.forget_journal()
    assert p5.json("apply", "all-balanced")["changed"] == []
    assert len(p5.journal()) == 4


@as_root
def test_a_lost_gpu_fails_apply_and_verify_with_its_number(p5):
    p5.json("apply", "all-balanced")
    p5.faults(values={"0": {"mig.mode.current": "[GPU is lost]"}})
    for command in ("apply", "verify"):
        done = p5.run(command, "all-balanced")
        assert done.returncode == 1
        assert "GPU 0 does not report its MIG mode" in done.stderr


@as_root
def test_services_a_killed_run_had_stopped_are_started_also_when_nothing_else_is_to_do(p5):
    p5.json("apply", "all-balanced")
    p5.write("/run/gpu-mig/stopped-services.json", '{"services": ["nvidia-dcgm"]}')
    p5.json("apply", "all-balanced")
    assert "start --no-block nvidia-dcgm" in p5.systemctl_log()
