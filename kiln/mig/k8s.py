"""A MIG layout in Kubernetes: chart values, the node label, and the resources that pods request."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import yaml

from kiln import facts
from kiln.base.errors import KilnError, did_you_mean
from kiln.base.paths import runtime_module
from kiln.base.templates import render
from kiln.mig.check import label_slices, shipped_labels
from kiln.mig.plan import plan_layout
from kiln.mig.profiles import chosen

if TYPE_CHECKING:
    from gpu_mig.facts import GpuType

_config = runtime_module("gpu_mig.config")

OWNERS = ("ami", "operator")
# The name of a label that mig.plan makes.
PLANNED = "planned"
# The ConfigMap that the chart makes of a layout that NVIDIA's own map does not have.
CONFIG_MAP = "kiln-mig-config"


def k8s_configuration(
    label: str,
    strategy: str,
    gpu: str | None = None,
    instance_type: str | None = None,
    *,
    owner: str = "ami",
    labels: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the needs and resources of a node with this layout.

    `owner` is "ami" if gpu-mig creates the slices at boot, "operator" if the GPU operator's
    mig-manager does. Returns `gpu_operator` and `device_plugin` (Helm values), `node_labels` (to
    set on the node), `gpu_mig` (settings of gpu-mig on the AMI), `mig_config` (a v1 configuration
    with the label, None for a shipped one), `resources` (what one node offers) and `limits` (an
    example for a pod). `labels` are those to choose from, by default the shipped ones.

    A layout that the GPU cannot hold or that offers nothing is refused, and so is `single` with
    slices that differ or beside whole GPUs.
    """
    table = facts.table("mig-kubernetes")
    for what, value, choices in (
        ("strategy", strategy, table["strategies"]),
        ("owner", owner, OWNERS),
    ):
        if value not in choices:
            raise KilnError(f"unknown {what} {value!r}", hint=did_you_mean(value, choices))
    known_labels = labels if labels is not None else shipped_labels()
    own = _own_configuration(label, known_labels)
    answer = {
        "label": label,
        "strategy": strategy,
        "owner": owner,
        "gpu_operator": operator_values(strategy, owner, own),
        "device_plugin": plugin_values(strategy),
        "node_labels": {table["node_label"]: label} if owner == "operator" else {},
        "gpu_mig": {"MIG_OWNER": owner} if owner == "operator" else {},
        "mig_config": own,
    }
    count, kind = chosen(gpu, instance_type)
    resources = _offered(label, strategy, count, kind, known_labels)
    return answer | {
        "gpu": kind.name,
        "gpus": count,
        "resources": resources,
        "limits": {next(iter(resources)): 1},
    }


def _offered(
    label: str, strategy: str, count: int, kind: GpuType, labels: dict[str, Any]
) -> dict[str, int]:
    """{resource name: number that one node offers}. Whole GPUs count as nvidia.com/gpu."""
    per_gpu = label_slices(label, count, kind, labels)
    profiles = sorted({profile for slices in per_gpu.values() for profile in slices})
    # "all devices on the node must be configured with the same migEnabled value":
    # github:NVIDIA/k8s-device-plugin
    # internal/rm/device_map.go @1b826acc6af3079d8923bac395c3124b8861a9a6
    if strategy == "single" and (len(profiles) != 1 or len(per_gpu) < count):
        made = f"{', '.join(profiles)} on {len(per_gpu)} of {count} GPUs" if profiles else "none"
        raise KilnError(
            f"strategy single needs slices of one profile on every GPU; {label} creates {made}",
            hint="use --strategy mixed, or a label with one profile such as all-1g.5gb",
        )
    resources: Counter[str] = Counter()
    for index in range(count):
        for profile, number in per_gpu.get(index, {"": 1}).items():
            whole = not profile or strategy == "single"
            name = "nvidia.com/gpu" if whole else f"nvidia.com/mig-{profile.replace('+', '.')}"
            resources[name] += number
    if not resources:
        raise KilnError(
            f"{label} turns MIG on without slices on {kind.name}: a node would offer nothing",
            hint="choose a label with slices, or all-disabled for whole GPUs",
        )
    return dict(sorted(resources.items()))


def _own_configuration(label: str, labels: dict[str, Any]) -> dict[str, Any] | None:
    """A v1 configuration with a label that the shipped map does not have, or not so; else None.

    With it all-disabled, which mig-manager makes on nodes without a label.
    """
    shipped = shipped_labels()
    own = labels.get(label)
    if own is None or (label in shipped and own.entries == shipped[label].entries):
        return None
    off = {"all-disabled": _as_v1(shipped["all-disabled"])}
    return {"version": "v1", "mig-configs": off | {label: _as_v1(own)}}


def _as_v1(label: Any) -> list[dict[str, Any]]:
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


def planned_labels(instance_type: str, want: str) -> dict[str, Any]:
    """The label PLANNED, which makes what `mig.plan` plans for these profiles."""
    plan = plan_layout(instance_type, want)
    if not plan["fits"]:
        raise KilnError(
            f"{want} does not fit on {instance_type}: {plan['reason']}",
            hint=f'./invoke mig.plan --instance-type {instance_type} --want "{want}" draws it',
        )
    return dict(_config.labels_of(plan["label"], "plan"))


def operator_values(strategy: str, owner: str, own: dict[str, Any] | None = None) -> dict[str, Any]:
    """Helm values of the GPU operator for nodes whose AMI has driver and toolkit.

    `own` is a v1 configuration with a layout that mig-manager does not make by itself.
    """
    values: dict[str, Any] = {
        "driver": {"enabled": False},
        "toolkit": {"enabled": False},
        "mig": {"strategy": strategy},
        "migManager": {"enabled": owner == "operator"},
    }
    if owner == "operator":
        # A pod cannot reset the AMI's driver everywhere, so mig-manager must reboot the node.
        values["migManager"]["env"] = [{"name": "WITH_REBOOT", "value": "true"}]
        # The ClusterPolicy takes no layout as the default: the node's label selects it.
        # Source: github:NVIDIA/gpu-operator api/nvidia/v1/clusterpolicy_types.go
        # @0266f00f4ab4a96b4e2fd5d53fbd09c6c4585101 (Enum of the default MIG config)
        values["migManager"]["config"] = {"default": "all-disabled"}
        if own:
            text = yaml.safe_dump(own, sort_keys=False)
            made = {"create": True, "name": CONFIG_MAP, "data": {"config.yaml": text}}
            values["migManager"]["config"] |= made
    return values


def plugin_values(strategy: str) -> dict[str, Any]:
    """Helm values of the device plugin without the operator.

    Its pods go only to nodes that feature discovery has labeled, whose workers tolerate no taint
    but nvidia.com/gpu=present by default.
    """
    tolerations = [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
    return {
        "migStrategy": strategy,
        "gfd": {"enabled": True},
        "nfd": {"worker": {"tolerations": tolerations}},
        "tolerations": tolerations,
    }


def k8s_text(answer: dict[str, Any]) -> str:
    """The answer of `k8s` as YAML, with a comment above each part."""
    return render("mig/k8s.yaml.j2", **answer).rstrip()
