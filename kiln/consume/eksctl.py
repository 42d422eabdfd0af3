"""Node groups and clusters in eksctl's form."""

from __future__ import annotations

from typing import Any

from kiln.base.tags import MIG_CONFIG
from kiln.base.yaml_files import as_yaml
from kiln.consume.documents import title
from kiln.consume.eks import TAINT
from kiln.consume.launch_request import LaunchRequest
from kiln.consume.machine import instance_tags, network_interfaces

# eksctl's own plugin counts whole GPUs whatever the layout, beside that of a chart:
# github:eksctl-io/eksctl
# pkg/eks/tasks.go @99984adb6164ece593c0728523b7f497ea61d60e
NO_PLUGIN = "--install-nvidia-plugin=false"


def node_group(wanted: LaunchRequest) -> str:
    """A managed node group of a cluster that is there; eksctl takes ids only."""
    return as_yaml(
        [
            title(wanted, f"eksctl create nodegroup {NO_PLUGIN} -f THIS-FILE"),
            "Change CLUSTER and, with EFA, the availability zone. eksctl takes an id, so this one",
            "stays: run consume again after a promotion, or use --for eks-managed-nodegroup, which",
            "follows the channel. Pods see GPUs by --for gpu-operator or device-plugin.",
        ],
        cluster_config(wanted),
    )


def cluster_config(wanted: LaunchRequest) -> dict[str, Any]:
    """eksctl's ClusterConfig with one managed node group."""
    made: dict[str, Any] = {
        "name": wanted.name,
        "ami": wanted.image_id,
        "amiFamily": "AmazonLinux2023",
        "instanceType": wanted.instance_type.type,
        "desiredCapacity": 1,
        "minSize": 0,
        "maxSize": 4,
        "volumeSize": wanted.recipe.volume.size,
        "volumeEncrypted": True,
        "privateNetworking": True,
        "disableIMDSv1": True,
        **_launch(wanted),
        "labels": {"kiln/channel": wanted.channel},
        "taints": [TAINT],
        "tags": instance_tags(wanted),
    }
    if wanted.label:
        # eksctl drops comments in a NodeConfig, so the label is a user-data script:
        # github:eksctl-io/eksctl
        # pkg/nodebootstrap/al2023.go @99984adb6164ece593c0728523b7f497ea61d60e
        made["preBootstrapCommands"] = [f"# {MIG_CONFIG}={wanted.label}"]
    return {
        "apiVersion": "eksctl.io/v1alpha5",
        "kind": "ClusterConfig",
        "metadata": {"name": "CLUSTER", "region": wanted.region},
        "managedNodeGroups": [made],
    }


def _launch(wanted: LaunchRequest) -> dict[str, Any]:
    options = wanted.options
    launch: dict[str, Any] = {"efaEnabled": bool(network_interfaces(wanted))}
    if launch["efaEnabled"]:
        # eksctl makes a placement group then, which is in one zone.
        launch["availabilityZones"] = [f"{wanted.region}a"]
    if options.placement_group:
        launch["placement"] = {"groupName": options.placement_group}
    if options.reservation:
        target = {"capacityReservationID": options.reservation}
        launch["capacityReservation"] = {"capacityReservationTarget": target}
    if options.capacity_block:
        launch["instanceMarketOptions"] = {"marketType": "capacity-block"}
    return launch
