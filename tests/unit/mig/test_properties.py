"""Properties of gpu-mig over layouts nobody wrote down, on the stand-in in this process."""

from __future__ import annotations

import contextlib
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kiln import facts
from kiln.base.paths import RUNTIME, runtime_module
from kiln.mig.profiles import gpu_types
from lab.vendors.standins.nvidia_smi import install
from tests.unit.mig.machine import in_process, layouts
from tests.unit.searches import examples

applying = runtime_module("gpu_mig.apply")
config = runtime_module("gpu_mig.config")
plan = runtime_module("gpu_mig.plan")
target = runtime_module("gpu_mig.target")
Settings = runtime_module("gpu_mig.settings").Settings
MigError = runtime_module("gpu_mig.errors").MigError

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="the stand-in lets only root change MIG"),
]
LABELS = config.load(str(RUNTIME / "etc/kiln/mig-config.json"))
TYPES = {  # one instance type per GPU that EC2 offers
    machine.gpu: machine.type for machine in facts.instances().values() if machine.mig
}
ON_SMI = Settings(stop_services=())


def apply(smi, label):
    gpus = smi.gpus()
    wanted = target.resolve(label, gpus)
    return applying.apply(smi, gpus, wanted, gpu_types(), ON_SMI, lambda message: None)


def as_label(entries) -> object:
    return config.labels_of({"version": "v1", "mig-configs": {"x": entries}}, "x.json")["x"]


# GPU, driver → how many layouts are full: nothing can be added. Driver 510 has no 1g.10gb.
FULL = {
    ("A100-40GB", "510.47.03"): 20,
    ("A100-40GB", "580.105.08"): 44,
    ("H100-80GB", "580.105.08"): 44,
    ("RTX-PRO-6000-96GB", "580.105.08"): 64,
}
LAYOUTS = {machine: layouts(*machine) for machine in FULL}


@st.composite
def journeys(draw):
    """A GPU with a driver and two to four layouts, each GPU of the machine in its own way."""
    machine = draw(st.sampled_from(sorted(LAYOUTS)))
    stops = []
    for _ in range(draw(st.integers(2, 4))):
        entries = []
        for index in range(2):
            layout = draw(st.sampled_from(LAYOUTS[machine][0]))
            enabled = bool(layout) or draw(st.booleans())
            entry = {"devices": [index], "mig-enabled": enabled}
            if enabled:
                entry["mig-devices"] = layout
            entries.append(entry)
        stops.append(as_label(entries))
    return machine, stops


@examples(20)
@given(journey=journeys())
def test_any_layout_is_reached_from_any_other(tmp_path_factory, journey):
    (gpu, driver), stops = journey
    root = tmp_path_factory.getbasetemp() / "journey"
    with in_process(root, TYPES[gpu], driver=driver) as smi:
        for label in stops:
            apply(smi, label)
            wanted = target.resolve(label, smi.gpus())
            assert plan.differences(smi.gpus(), wanted) == []
            done = len(smi.changes)
            assert apply(smi, label)[0] == []
            assert len(smi.changes) == done


@pytest.mark.parametrize(("gpu", "driver"), FULL)
def test_every_layout_is_applied(tmp_path, gpu, driver):
    every, full = LAYOUTS[gpu, driver]
    assert len(full) == FULL[gpu, driver]
    with in_process(tmp_path / "layouts", TYPES[gpu], driver=driver) as smi:
        for layout in every:
            label = as_label([{"devices": "all", "mig-enabled": True, "mig-devices": layout}])
            apply(smi, label)
            assert plan.differences(smi.gpus(), target.resolve(label, smi.gpus())) == [], layout


# With the models that EC2 does not offer → the lab's machine.
MACHINES = TYPES | {
    machine["gpu"]: name
    for name, machine in install.compose()["machines"]["machines"].items()
    if machine["gpu"] in gpu_types() and machine["gpu"] not in TYPES
}


@pytest.mark.parametrize("gpu", sorted(MACHINES))
def test_every_label_of_a_gpu_is_applied(tmp_path, gpu):
    with in_process(tmp_path / "labels", MACHINES[gpu]) as smi:
        machine = smi.gpus()
        labels = fitting_labels(machine, gpu_types()[gpu])
        assert len(labels) >= 8
        for name in sorted(labels):
            apply(smi, labels[name])
            wanted = target.resolve(labels[name], machine)
            assert plan.differences(smi.gpus(), wanted) == [], name


def fitting_labels(machine, kind) -> dict:
    """The labels of the map and of the GPU that this GPU can hold."""
    found = {}
    for name in sorted({*LABELS, *target.labels_of([kind])}):
        label = target.find(LABELS, name, machine, gpu_types())
        with contextlib.suppress(MigError):
            for wanted in target.resolve(label, machine).values():
                target.check(wanted, kind)
            found[name] = label
    return found
