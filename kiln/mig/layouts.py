"""MIG labels, wherever they are written: the shipped map, files of one's own, a plan."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kiln.base.errors import KilnError
from kiln.base.runtime_import import runtime_module
from kiln.mig.check import SHIPPED_MAP, shipped_labels
from kiln.mig.plan import plan_layout
from kiln.mig.profiles import gpu_types

if TYPE_CHECKING:
    from gpu_mig.facts import GpuType

_config = runtime_module("gpu_mig.config")
_errors = runtime_module("gpu_mig.errors")
_smi = runtime_module("gpu_mig.smi")
_target = runtime_module("gpu_mig.target")
_hardware = runtime_module("gpu_mig.hardware")

# The name of a label that mig.plan makes.
PLANNED = "planned"
_CONFIG_MAP = re.compile(r'^\s*"?kind"? *: *"?ConfigMap\b', re.MULTILINE)


def labels_with(config: str) -> dict[str, Any]:
    """The shipped labels and those of a file, or of a folder such as /etc/kiln/mig-config.d.

    Raises KilnError (exit status 2) for a file that gpu-mig would refuse, with its line.
    """
    path = Path(config)
    if path.is_file() and _CONFIG_MAP.search(path.read_text(errors="replace")):
        raise KilnError(
            f"{config} is a Kubernetes ConfigMap, not the configuration in it",
            hint="give the text below its key config.yaml as a file",
        )
    try:
        if path.is_dir():
            labels: dict[str, Any] = _config.load(str(SHIPPED_MAP), str(path))
        else:
            labels = {**shipped_labels(), **_config.load(str(path))}
    except _errors.MigError as e:
        raise KilnError(e.message, hint=e.hint) from e
    return labels


def planned_labels(instance_type: str, want: str) -> dict[str, Any]:
    """The label PLANNED, which makes what `mig.plan` plans for these profiles.

    Raises KilnError (exit status 2) for a plan that does not fit.
    """
    plan = plan_layout(instance_type, want)
    if not plan["fits"]:
        raise KilnError(
            f"{want} does not fit on {instance_type}: {plan['reason']}",
            hint=f'./invoke mig.plan --instance-type {instance_type} --want "{want}" draws it',
        )
    entries = plan["label"]["mig-configs"]["planned"]
    made = tuple(
        _config.Entry(
            "the plan",
            (),
            tuple(entry["devices"]),
            entry["mig-enabled"],
            tuple(entry.get("mig-devices", {}).items()),
        )
        for entry in entries
    )
    return {PLANNED: _config.Label(PLANNED, "the plan", made)}


def slices_of(
    label: str, count: int, kind: GpuType, labels: dict[str, Any]
) -> dict[int, dict[str, int]]:
    """The slices of every GPU in MIG mode of a machine with `count` GPUs: {index: {profile: n}}.

    Raises KilnError (exit status 2) for an unknown label and for a layout that the GPU cannot hold.
    """
    gpus = [
        _smi.Gpu(i, "", "", kind.pci_device_ids[0], "", kind.product, False, False)
        for i in range(count)
    ]
    try:
        wanted = _target.resolve(_hardware.find(labels, label, gpus, gpu_types()), gpus)
        for setting in wanted.values():
            _target.check(setting, kind)
    except _errors.MigError as e:
        raise KilnError(e.message, hint=e.hint) from e
    return {w.gpu: _target.devices_of(w.shapes) for w in wanted.values() if w.mode}


def as_v1(label: Any) -> list[dict[str, Any]]:
    """A label's entries as a v1 configuration of mig-parted has them."""
    entries = []
    for entry in label.entries:
        made: dict[str, Any] = {"device-filter": list(entry.filters)} if entry.filters else {}
        made["devices"] = "all" if entry.devices is None else list(entry.devices)
        made["mig-enabled"] = entry.enabled
        if entry.enabled:
            made["mig-devices"] = dict(entry.mig_devices)
        entries.append(made)
    return entries
