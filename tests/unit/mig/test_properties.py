"""Properties of gpu-mig over layouts nobody wrote down, on the stand-in in this process."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kiln import facts
from kiln.base.paths import RUNTIME, runtime_module
from kiln.mig import check
from kiln.mig.profiles import gpu_types
from lab.vendors.standins.nvidia_smi import install
from tests.unit.mig.machine import in_process
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


# The layouts that a GPU of each kind can hold.
layouts_of = {
    gpu: [
        check.expand(sorted(gpu_types()[gpu].profiles), counts)
        for counts in check.all_layouts(gpu_types()[gpu], sorted(gpu_types()[gpu].profiles))
    ]
    for gpu in ("A100-40GB", "H100-80GB", "RTX-PRO-6000-96GB")
}


@st.composite
def journeys(draw):
    """A GPU and two to four layouts it goes through, each GPU of the machine in its own way."""
    gpu = draw(st.sampled_from(sorted(layouts_of)))
    stops = []
    for _ in range(draw(st.integers(2, 4))):
        entries = []
        for index in range(2):
            layout = draw(st.sampled_from(layouts_of[gpu]))
            enabled = bool(layout) or draw(st.booleans())
            entry = {"devices": [index], "mig-enabled": enabled}
            if enabled:
                entry["mig-devices"] = {p: layout.count(p) for p in layout}
            entries.append(entry)
        stops.append(as_label(entries))
    return gpu, stops


@examples(20)
@given(journey=journeys())
def test_any_layout_is_reached_from_any_other(tmp_path_factory, journey):
    gpu, stops = journey
    with in_process(tmp_path_factory.getbasetemp() / "journey", TYPES[gpu]) as smi:
        for label in stops:
            apply(smi, label)
            wanted = target.resolve(label, smi.gpus())
            assert plan.differences(smi.gpus(), wanted) == []
            done = len(smi.changes)
            assert apply(smi, label)[0] == []
            assert len(smi.changes) == done


# With the models that EC2 does not offer → the lab's machine.
MACHINES = TYPES | {
    machine["gpu"]: name
    for name, machine in install.compose()["machines"]["machines"].items()
    if machine["gpu"] in gpu_types() and machine["gpu"] not in TYPES
}


@pytest.mark.parametrize("gpu", sorted(MACHINES))
def test_every_label_of_a_gpu_is_applied(tmp_path, gpu):
    """And changed to every other label, on one GPU of each kind."""
    with in_process(tmp_path / "labels", MACHINES[gpu]) as smi:
        machine = smi.gpus()
        labels = fitting_labels(machine, gpu_types()[gpu])
        assert len(labels) >= 8
        names = sorted(labels)
        for name in every_change(names) if gpu in layouts_of else names:
            apply(smi, labels[name])
            wanted = target.resolve(labels[name], machine)
            assert plan.differences(smi.gpus(), wanted) == [], name


def every_change(names):
    """A walk that goes from every name to every other: from each to all later ones and back."""
    return [
        stop
        for i, here in enumerate(names)
        for stop in [here, *(s for other in names[i + 1 :] for s in (other, here))]
    ]


def fitting_labels(machine, kind) -> dict:
    """The labels of the map and of the GPU that this GPU can hold."""
    found = {
        name: target.find(LABELS, name, machine, gpu_types())
        for name in sorted({*LABELS, *target.labels_of([kind])})
    }
    return {name: label for name, label in found.items() if _fits(label, machine, kind)}


def _fits(label, machine, kind) -> bool:
    try:
        wanted = target.resolve(label, machine)
        for item in wanted.values():
            target.check(item, kind)
    except MigError:
        return False
    return True
