"""mig-parted's v1 format: what is accepted, what is refused, and how a label meets the GPUs."""

from __future__ import annotations

import json

import pytest
import yaml

from kiln import facts
from kiln.base.paths import RUNTIME, runtime_module
from kiln.mig.profiles import gpu_types

config = runtime_module("gpu_mig.config")
target = runtime_module("gpu_mig.target")
smi = runtime_module("gpu_mig.smi")
gpu_facts = runtime_module("gpu_mig.facts")
MigError = runtime_module("gpu_mig.errors").MigError
SHIPPED = RUNTIME / "etc/kiln/mig-config.json"
HEAD = "version: v1\nmig-configs:\n"


def gpus(device_id: str, count: int = 2, capable: bool = True) -> list:
    mode = False if capable else None
    return [smi.Gpu(i, "", "", device_id, "", "a GPU", mode, mode) for i in range(count)]


def loads(text: str, source: str = "my.json") -> dict:
    return config.labels_of(yaml.safe_load(text), source)


def refusal(text: str) -> str:
    with pytest.raises(MigError) as refused:
        loads(text)
    return str(refused.value)


def test_the_image_and_the_pipeline_see_the_same_gpus():
    assert gpu_facts.load() == gpu_types()


def fits(label, gpu) -> bool:
    try:
        target.check(target.resolve(label, gpus(gpu.pci_device_ids[0], 1))[0], gpu)
    except MigError:
        return False
    return True


@pytest.mark.parametrize("gpu", gpu_types().values(), ids=lambda g: g.name)
def test_every_gpu_has_labels_that_fit_it(gpu):
    machine = gpus(gpu.pci_device_ids[0], 1)
    labels = config.load(str(SHIPPED))
    for name in target.labels_of([gpu]):  # one for each of its profiles, as the map would
        of_hardware = target.resolve(target.find({}, name, machine, gpu_types()), machine)
        target.check(of_hardware[0], gpu)
        if name in labels:
            both = target.resolve(target.find(labels, name, machine, gpu_types()), machine)
            assert both == of_hardware, name
    names = {*labels, *target.labels_of([gpu])}
    found = {name: target.find(labels, name, machine, gpu_types()) for name in names}
    fitting = {name for name, label in found.items() if fits(label, gpu)}
    assert {"all-disabled", "all-enabled"} <= fitting
    assert len(fitting) > 5
    # NVIDIA's map knows nothing of the RTX PRO 4500 yet.
    assert "all-balanced" in fitting or gpu.name == "RTX-PRO-4500-32GB"
    for label in labels.values():
        for entry in label.entries:
            if entry.filters and any(entry.addresses(i) for i in gpu.pci_device_ids):
                shapes = target.shape_all(entry.mig_devices)
                target.check(target.Wanted(0, entry.enabled, shapes), gpu)


def test_label_of_a_file_goes_before_the_gpus_own():
    text = HEAD + "  all-1g.5gb:\n  - {devices: [0], mig-enabled: true, mig-devices: {1g.5gb: 2}}\n"
    machine = gpus("0x20B010DE")
    label = target.find(loads(text), "all-1g.5gb", machine, gpu_types())
    assert list(target.resolve(label, machine)) == [0]


def test_a_gpu_that_a_label_forgot_gets_what_it_holds():
    text = HEAD + (
        "  all-1g.10gb:\n"
        "  - {device-filter: ['0x233010DE'], devices: all, mig-enabled: true,\n"
        "     mig-devices: {1g.10gb: 7}}\n"
    )
    both = [*gpus("0x233010DE", 1), gpus("0x20B210DE", 2)[1]]
    label = target.find(loads(text), "all-1g.10gb", both, gpu_types())
    assert sorted(target.resolve(label, both)) == [0, 1]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("version: v2\nmig-configs: {}\n", "my.json: version 'v2' is not supported"),
        (HEAD + "  a:\n  - mig-enabled: true\n", "my.json: label 'a', entry 1: devices must"),
        (HEAD + "  a:\n  - devices: all\n    mig-enabled: true\n", "mig-devices is missing"),
        (HEAD + "  a:\n  - device: all\n    mig-enabled: false\n", "did you mean 'devices'"),
        (HEAD + '  a:\n  - device-filter: "20B0"\n    devices: all\n    mig-enabled: false\n',
         "my.json: label 'a', entry 1: device-filter '20B0' is not a PCI device id"),
        (HEAD + '  a:\n  - {devices: all, mig-enabled: false, mig-devices: {"1g.5gb": 1}}\n',
         "mig-enabled is false"),
        (HEAD + '  a:\n  - {devices: all, mig-enabled: true, mig-devices: {"1g.5gb+xx": 1}}\n',
         "unknown attribute +xx"),
        (HEAD + '  a:\n  - {devices: all, mig-enabled: true, mig-devices: {"4c.3g.20gb": 1}}\n',
         "4 compute slices do not fit in 3"),
    ],
)  # fmt: skip
def test_mistake_is_refused_with_its_place(text, says):
    assert says in refusal(text)


def test_a_drop_in_adds_labels_and_replaces_one(tmp_path):
    mine = {"devices": "all", "mig-enabled": True, "mig-devices": {"3g.40gb": 2}}
    other = {"devices": "all", "mig-enabled": False}
    for name, label, entry in (
        ("10-mine.json", "mine", mine),
        ("20-json.json", "all-balanced", other),
    ):
        document = {"version": "v1", "mig-configs": {label: [entry]}}
        (tmp_path / name).write_text(json.dumps(document))
    (tmp_path / "README").write_text("not a configuration")
    labels = config.load(str(SHIPPED), str(tmp_path))
    assert labels["mine"].entries[0].mig_devices == (("3g.40gb", 2),)
    assert labels["all-balanced"].where == str(tmp_path / "20-json.json")
    assert set(labels) == {*config.load(str(SHIPPED)), "mine"}


def test_yaml_on_the_machine_is_refused_with_the_way_to_json(tmp_path):
    (tmp_path / "10-mine.yaml").write_text(HEAD)
    with pytest.raises(MigError, match="only JSON is read here") as refused:
        config.load(str(SHIPPED), str(tmp_path))
    assert "yaml.safe_load" in refused.value.hint


def test_last_entry_that_matches_wins():
    labels = loads(
        HEAD + "  a:\n  - {devices: all, mig-enabled: false}\n"
        '  - {devices: [1], mig-enabled: true, mig-devices: {"1g.5gb": 7}}\n'
    )
    wanted = target.resolve(labels["a"], gpus("0x20B010DE"))
    assert (wanted[0].mode, wanted[0].shapes) == (False, ())
    assert (wanted[1].mode, len(wanted[1].shapes)) == (True, 7)


def test_a_filter_that_matches_no_gpu_is_an_error_not_success():
    labels = loads(
        HEAD + '  a:\n  - {device-filter: "0x20B010DE", devices: all, mig-enabled: false}\n'
    )
    with pytest.raises(MigError, match="matches no GPU of this machine: 2 × a GPU"):
        target.resolve(labels["a"], gpus("0x233010DE"))


def test_a_filter_may_name_the_subsystem():
    entry = loads(
        HEAD
        + '  a:\n  - {device-filter: "0x20b010de:0x134F10DE", devices: all, mig-enabled: false}\n'
    )["a"].entries[0]
    assert entry.addresses("0x20B010DE", "0x134F10DE")
    assert not entry.addresses("0x20B010DE", "0x144E10DE")


def test_a_gpu_index_that_is_not_there_is_refused():
    labels = loads(HEAD + "  a:\n  - {devices: [2], mig-enabled: false}\n")
    with pytest.raises(MigError, match="names GPU 2, this machine has 2"):
        target.resolve(labels["a"], gpus("0x20B010DE"))


def test_gpus_without_mig_are_never_addressed():
    labels = config.load(str(SHIPPED))
    machine = [*gpus("0x20B010DE", 1), smi.Gpu(1, "", "", "0x1EB810DE", "", "T4", None, None)]
    assert list(target.resolve(labels["all-disabled"], machine)) == [0]


def test_only_knowledge_says_which_pci_ids_cannot_do_mig():
    ids = gpu_facts.load_without_mig()
    known = facts.table("instances")["gpus"]
    assert "1eb8" in ids
    assert not set(ids) & {i for g in known.values() if g["mig"] for i in g["pci_device_ids"]}


def test_a_4g_is_not_divided_into_3c_which_no_driver_lists():
    with pytest.raises(MigError, match=r"no compute instance of a 4g has 3") as caught:
        target.shape_all([("3c.4g.20gb", 1)])
    assert caught.value.hint == "sizes: 1c, 2c, 4c"
    assert target.shape_all([("3c.7g.40gb", 1)]) == (("7g.40gb", (3,)),)


def test_shipped_settings_file_says_what_holds_without_it(monkeypatch, tmp_path):
    settings_of = runtime_module("gpu_mig.settings")
    monkeypatch.setenv("GPU_MIG_ROOT", str(RUNTIME))
    shipped = settings_of.load()
    monkeypatch.setenv("GPU_MIG_ROOT", str(tmp_path))
    assert shipped == settings_of.load() == settings_of.Settings()
