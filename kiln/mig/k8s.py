"""A MIG layout in Kubernetes: chart values, the node label, and the resources that pods request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import yaml

from kiln import facts
from kiln.base.errors import KilnError, did_you_mean
from kiln.base.yaml_files import as_yaml
from kiln.mig.check import shipped_labels
from kiln.mig.layouts import as_v1, slices_of
from kiln.mig.profiles import chosen, gpu_types

if TYPE_CHECKING:
    from gpu_mig.facts import GpuType

OWNERS = ("ami", "operator")
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
    """What a node with this layout needs and offers.

    `owner` is "ami" if gpu-mig creates the slices at boot, "operator" if the GPU operator's
    mig-manager does. Returns `gpu_operator` and `device_plugin` (Helm values), `node_labels` (to
    set on the node), `gpu_mig` (settings of gpu-mig on the AMI), `mig_config` (a v1 configuration
    with the label, None for a shipped one), `resources` (what one node offers) and `limits` (an
    example for a pod). Without a GPU and instance type it returns `by_gpu` instead: what one GPU of
    each model that the label supports offers. `labels` are those to choose from, by default the
    shipped ones.

    Raises KilnError for an unknown label or strategy, for a layout that the GPU cannot hold or
    that offers nothing, and for `single` with slices that differ or beside whole GPUs.
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
    if not gpu and not instance_type:
        return answer | {"by_gpu": _by_gpu(label, strategy, known_labels)}
    count, kind = chosen(gpu, instance_type)
    resources = _offered(label, strategy, count, kind, known_labels)
    return answer | {
        "gpu": kind.name,
        "gpus": count,
        "resources": resources,
        "limits": {next(iter(resources)): 1},
    }


def _by_gpu(label: str, strategy: str, labels: dict[str, Any]) -> dict[str, dict[str, int]]:
    """What one GPU of each model offers. If no model can, raises the first model's KilnError."""
    tried = {kind.name: _attempt(label, strategy, kind, labels) for kind in gpu_types().values()}
    offers = {name: offered for name, offered in tried.items() if isinstance(offered, dict)}
    for refusal in tried.values():
        if not offers and isinstance(refusal, KilnError):
            raise refusal
    return offers


def _attempt(
    label: str, strategy: str, kind: GpuType, labels: dict[str, Any]
) -> dict[str, int] | KilnError:
    try:
        return _offered(label, strategy, 1, kind, labels)
    except KilnError as error:
        return error


def _offered(
    label: str, strategy: str, count: int, kind: GpuType, labels: dict[str, Any]
) -> dict[str, int]:
    per_gpu = slices_of(label, count, kind, labels)
    if strategy == "single":
        _refuse_unlike(label, per_gpu, count)
    resources = _resources(per_gpu, count, strategy)
    if not resources:
        raise KilnError(
            f"{label} turns MIG on without slices on {kind.name}: a node would offer nothing",
            hint="choose a label with slices, or all-disabled for whole GPUs",
        )
    return resources


def _own_configuration(label: str, labels: dict[str, Any]) -> dict[str, Any] | None:
    """A v1 configuration with a label that the shipped map does not have, or not so; else None.

    With it all-disabled, which mig-manager makes on nodes without a label.
    """
    if label not in labels or labels[label].entries == _shipped_entries(label):
        return None
    off = {"all-disabled": as_v1(shipped_labels()["all-disabled"])}
    return {"version": "v1", "mig-configs": off | {label: as_v1(labels[label])}}


def _shipped_entries(label: str) -> Any:
    shipped = shipped_labels().get(label)
    return shipped.entries if shipped else None


def _refuse_unlike(label: str, per_gpu: dict[int, dict[str, int]], count: int) -> None:
    kinds = sorted({profile for slices in per_gpu.values() for profile in slices})
    if len(kinds) > 1:
        raise KilnError(
            f"strategy single needs slices of one profile; {label} creates {', '.join(kinds)}",
            hint="use --strategy mixed, or a label with one profile such as all-" + kinds[0] + "",
        )
    if not kinds:
        raise KilnError(
            f"strategy single needs slices; {label} creates none",
            hint="leave mig.strategy at none",
        )
    # "all devices on the node must be configured with the same migEnabled value":
    # github:NVIDIA/k8s-device-plugin
    # internal/rm/device_map.go @1b826acc6af3079d8923bac395c3124b8861a9a6
    if len(per_gpu) < count:
        raise KilnError(
            f"strategy single needs all GPUs cut or none; {label} cuts {len(per_gpu)} of {count}",
            hint="use --strategy mixed, or a layout that cuts every GPU",
        )


def _resources(per_gpu: dict[int, dict[str, int]], count: int, strategy: str) -> dict[str, int]:
    """{resource name: number that one node offers}. Whole GPUs count as nvidia.com/gpu."""
    resources: dict[str, int] = {}
    for index in range(count):
        for profile, n in per_gpu.get(index, {None: 1}).items():
            whole = profile is None or strategy == "single"
            name = "nvidia.com/gpu" if whole else f"nvidia.com/mig-{str(profile).replace('+', '.')}"
            resources[name] = resources.get(name, 0) + n
    return dict(sorted(resources.items()))


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


def _settings(values: dict[str, str]) -> str:
    return " ".join(f"{name}={value}" for name, value in values.items()) or "as shipped"


def k8s_text(answer: dict[str, Any]) -> str:
    """The answer of `k8s` as YAML, with a comment above each part."""
    labels = answer["node_labels"] or "none: gpu-mig on the AMI makes the slices"
    parts: list[tuple[str, Any]] = [
        ("Helm values, chart gpu-operator", answer["gpu_operator"]),
        ("or, without the operator, chart nvidia-device-plugin", answer["device_plugin"]),
        ("node labels", labels),
        ("on the AMI, /etc/default/gpu-mig", _settings(answer["gpu_mig"])),
    ]
    if answer["mig_config"] and answer["owner"] == "ami":
        file = f"on the AMI, /etc/kiln/mig-config.d/{answer['label']}.yaml"
        parts.append((file, answer["mig_config"]))
    if "by_gpu" in answer:
        parts.append(("what one GPU offers, by model", answer["by_gpu"]))
    else:
        offered = f"what one node offers ({answer['gpus']} × {answer['gpu']})"
        parts.append((offered, answer["resources"]))
        parts.append(("what a pod requests", {"resources": {"limits": answer["limits"]}}))
    return "\n".join(
        f"# {title}\n" + (f"# {body}\n" if isinstance(body, str) else as_yaml([], body))
        for title, body in parts
    ).rstrip()
