"""Nodes of EKS: Karpenter, eksctl, node groups, and the charts that show their GPUs."""

from __future__ import annotations

import json
from typing import Any

import yaml

from kiln.base import vocabulary
from kiln.base.tags import MIG_CONFIG
from kiln.base.yaml_files import as_yaml
from kiln.cloud import aws
from kiln.consume.documents import ref, stack, text_parameter, title
from kiln.consume.ec2 import (
    CONDITIONS,
    SIZE,
    SUBNETS,
    group,
    looked_up,
    only_if,
    optional,
    template_resource,
)
from kiln.consume.launch_request import LaunchRequest
from kiln.consume.machine import (
    instance_tags,
    metadata_options,
    network_interfaces,
    root_disk,
)
from kiln.facts import table
from kiln.mig.k8s import k8s_configuration, operator_values, plugin_values

_API = "node.eks.aws/v1alpha1"
TAINT = {"key": "nvidia.com/gpu", "value": "true", "effect": "NoSchedule"}
_NODE_LABEL = table("mig-kubernetes")["node_label"]
_CLUSTER = {
    "ClusterName": text_parameter("the cluster's name"),
    "ApiServerEndpoint": text_parameter("aws eks describe-cluster: endpoint"),
    "CertificateAuthority": text_parameter("aws eks describe-cluster: certificateAuthority.data"),
    "ServiceCidr": text_parameter(
        "aws eks describe-cluster: kubernetesNetworkConfig.serviceIpv4Cidr", "10.100.0.0/16"
    ),
}
_NODE_CONFIG: dict[str, Any] = {
    "apiVersion": _API,
    "kind": "NodeConfig",
    "spec": {
        "cluster": {
            "name": "${ClusterName}",
            "apiServerEndpoint": "${ApiServerEndpoint}",
            "certificateAuthority": "${CertificateAuthority}",
            "cidr": "${ServiceCidr}",
        }
    },
}


def _mime(*parts: tuple[str, str]) -> str:
    """User data of several parts, as nodeadm and cloud-init read it."""
    body = "".join(f"--//\nContent-Type: {kind}\n\n{text}\n" for kind, text in parts)
    return f'MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary="//"\n\n{body}--//--\n'


def karpenter(wanted: LaunchRequest) -> str:
    """An EC2NodeClass that follows the channel and a NodePool for the instance type."""
    kind = wanted.instance_type
    term = {"id": wanted.image_id} if wanted.image_id else {"ssmParameter": wanted.parameter}
    cluster = {"tags": {"karpenter.sh/discovery": "CLUSTER"}}
    spec: dict[str, Any] = {
        "amiFamily": "AL2023",
        "amiSelectorTerms": [term],
        **_account_of_karpenter(wanted),
        "subnetSelectorTerms": [cluster],
        "securityGroupSelectorTerms": [cluster],
        "metadataOptions": {"httpTokens": "required", "httpPutResponseHopLimit": 2},
        "blockDeviceMappings": [_disk_of_karpenter(wanted)],
        "tags": {key: value for key, value in instance_tags(wanted).items() if key != "Name"},
    }
    cards = [
        {key[0].lower() + key[1:]: value for key, value in card.items()}
        for card in network_interfaces(wanted)
    ]
    if cards:
        spec["networkInterfaces"] = cards
    # Karpenter puts its own NodeConfig behind this one, and leaves comments:
    # github:aws/karpenter-provider-aws pkg/providers/amifamily/bootstrap/nodeadm.go @v1.14.0
    node = f"apiVersion: {_API}\nkind: NodeConfig\nspec:\n  kubelet: {{}}\n"
    spec["userData"] = _layout(wanted) + node
    node_class = {
        "apiVersion": "karpenter.k8s.aws/v1",
        "kind": "EC2NodeClass",
        "metadata": {"name": wanted.name},
        "spec": spec,
    }
    pool = {
        "apiVersion": "karpenter.sh/v1",
        "kind": "NodePool",
        "metadata": {"name": wanted.name},
        "spec": {
            "template": {
                "metadata": {"labels": {"kiln/channel": wanted.channel}},
                "spec": {
                    "nodeClassRef": {
                        "group": "karpenter.k8s.aws",
                        "kind": "EC2NodeClass",
                        "name": wanted.name,
                    },
                    "requirements": [
                        _one_of("node.kubernetes.io/instance-type", kind.type),
                        _one_of("kubernetes.io/arch", vocabulary.DEB_ARCH[kind.arch]),
                        _one_of("karpenter.sh/capacity-type", "reserved", "on-demand"),
                    ],
                    "taints": [TAINT],
                    # A node older than this is replaced; a promotion replaces it sooner (drift).
                    "expireAfter": "720h",
                    "terminationGracePeriod": "24h",
                },
            },
            "disruption": {
                "consolidationPolicy": "WhenEmpty",
                "consolidateAfter": "10m",
                "budgets": [
                    {"nodes": "100%", "reasons": ["Empty"]},
                    {"nodes": "1", "reasons": ["Drifted"]},
                ],
            },
            "limits": {"nvidia.com/gpu": kind.gpu_count * 4 or 4},
        },
    }
    notes = [
        title(wanted, "Karpenter"),
        "Change CLUSTER (its discovery tag) and NODE-ROLE. `limits` is the most GPUs at once;",
        "settings of the kubelet belong into userData.",
        *_role_statement(wanted),
    ]
    if wanted.label:
        notes.append("Karpenter counts no slices: pods that request them start no node.")
    offered = ", ".join(f"{name}: {count}" for name, count in node_resources(wanted).items())
    return as_yaml(
        [*notes, f"A node offers {offered}. A promotion replaces nodes, one at a time (drift)."],
        node_class,
        pool,
    )


def _role_statement(wanted: LaunchRequest) -> list[str]:
    """Karpenter's own policy lets its role read AWS's parameters alone.

    github:aws/karpenter-provider-aws website/content/en/docs/concepts/nodeclasses.md
    @1d927085dd81a9df9301e613f371dac5b4d16bfe
    """
    if wanted.image_id:
        return []
    place = f"arn:{aws.partition(wanted.region)}:ssm:{wanted.region}:*"
    statement = {
        "Effect": "Allow",
        "Action": "ssm:GetParameter",
        "Resource": f"{place}:parameter{wanted.parameter}",
    }
    return ["Add this statement to the policy of Karpenter's role:", f"  {json.dumps(statement)}"]


def _one_of(key: str, *values: str) -> dict[str, Any]:
    return {"key": key, "operator": "In", "values": list(values)}


def _account_of_karpenter(wanted: LaunchRequest) -> dict[str, Any]:
    options = wanted.options
    profile = options.instance_profile
    fields: dict[str, Any] = {"instanceProfile": profile} if profile else {"role": "NODE-ROLE"}
    if options.placement_group:
        fields["placementGroupSelector"] = {"name": options.placement_group}
    if options.reservation:
        fields["capacityReservationSelectorTerms"] = [{"id": options.reservation}]
    return fields


def _disk_of_karpenter(wanted: LaunchRequest) -> dict[str, Any]:
    device = root_disk(wanted)
    return {
        "deviceName": device["DeviceName"],
        "ebs": {
            "volumeSize": f"{device['Ebs']['VolumeSize']}Gi",
            "volumeType": "gp3",
            "encrypted": True,
            "deleteOnTermination": True,
        },
    }


def node_resources(wanted: LaunchRequest) -> dict[str, int]:
    """What a node offers to pods, EFA included."""
    kind = wanted.instance_type
    if wanted.label:
        answer = k8s_configuration(wanted.label, wanted.strategy, instance_type=kind.type)
        resources: dict[str, int] = dict(answer["resources"])
    else:
        resources = {"nvidia.com/gpu": kind.gpu_count or 1}
    if network_interfaces(wanted):
        resources["vpc.amazonaws.com/efa"] = kind.efa_interfaces
    return resources


def _layout(wanted: LaunchRequest) -> str:
    """The line of user data in which gpu-mig finds the layout."""
    return f"# {MIG_CONFIG}={wanted.label}\n" if wanted.label else ""


def _cluster_node(wanted: LaunchRequest, **more: Any) -> dict[str, Any]:
    """Launch data by which a node joins its cluster; `more` is the rest of the NodeConfig's spec.

    IMDS shows no tags, whatever the account's default is: EC2 then refuses the tag
    kubernetes.io/cluster/NAME, and EKS leaves the setting out of its copy of the template.
    https://github.com/eksctl-io/eksctl/issues/7948
    https://github.com/terraform-aws-modules/terraform-aws-eks/issues/1977
    """
    node = {**_NODE_CONFIG, "spec": {**_NODE_CONFIG["spec"], **more}}
    config = _layout(wanted) + yaml.safe_dump(node, sort_keys=False)
    text = _mime(("application/node.eks.aws", config))
    return {
        "MetadataOptions": metadata_options(tags="disabled"),
        "UserData": {"Fn::Base64": {"Fn::Sub": text}},
    }


def managed_node_group(wanted: LaunchRequest) -> str:
    """EKS's own node group, which replaces its nodes when the stack takes a newer image."""
    looked, image = looked_up(wanted)
    node_template = template_resource(wanted, image, **_cluster_node(wanted))
    # EKS refuses a launch template that names a profile: the node group has the role.
    data = node_template["Properties"]["LaunchTemplateData"]
    del data["IamInstanceProfile"]
    parameters = {
        name: parameter for name, parameter in optional(wanted).items() if name != "InstanceProfile"
    }
    conditions = {name: condition for name, condition in CONDITIONS.items() if name != "HasProfile"}
    return stack(
        wanted,
        "EKS managed node group; an update of the stack takes the channel's image of that moment",
        parameters={
            **looked,
            **_CLUSTER,
            **parameters,
            "NodeRole": text_parameter("ARN of the nodes' role"),
            "Subnets": SUBNETS,
            "Size": SIZE,
            "MostNodes": {"Type": "Number", "Default": 4, "MinValue": 1},
        },
        conditions=conditions,
        resources={
            "LaunchTemplate": node_template,
            "NodeGroup": {
                "Type": "AWS::EKS::Nodegroup",
                "Properties": {
                    "ClusterName": ref("ClusterName"),
                    "NodeRole": ref("NodeRole"),
                    "Subnets": ref("Subnets"),
                    "CapacityType": only_if("HasBlock", "CAPACITY_BLOCK", "ON_DEMAND"),
                    "LaunchTemplate": {
                        "Id": ref("LaunchTemplate"),
                        "Version": {"Fn::GetAtt": ["LaunchTemplate", "LatestVersionNumber"]},
                    },
                    "ScalingConfig": {
                        "MinSize": 0,
                        "DesiredSize": ref("Size"),
                        "MaxSize": ref("MostNodes"),
                    },
                    "Labels": {"kiln/channel": wanted.channel},
                    "Taints": [
                        {"Key": TAINT["key"], "Value": TAINT["value"], "Effect": "NO_SCHEDULE"}
                    ],
                },
            },
        },
        outputs={"NodeGroup": ref("NodeGroup")},
    )


def self_managed(wanted: LaunchRequest) -> str:
    """An Auto Scaling group whose instances join by themselves; each launch follows the channel."""
    # Nobody else gives these nodes their label and taint.
    flags = [
        f"--node-labels=kiln/channel={wanted.channel}",
        f"--register-with-taints={TAINT['key']}={TAINT['value']}:{TAINT['effect']}",
    ]
    node = _cluster_node(wanted, kubelet={"flags": flags})
    return stack(
        wanted,
        "self-managed EKS nodes; every launch resolves the channel anew",
        parameters={
            **_CLUSTER,
            **optional(wanted),
            "Subnets": SUBNETS,
            "Size": SIZE,
        },
        conditions=CONDITIONS,
        resources={
            "LaunchTemplate": template_resource(wanted, wanted.image, **node),
            "Nodes": {
                "Type": "AWS::AutoScaling::AutoScalingGroup",
                "Properties": group("Size", "Size", "Size")
                | {
                    "Tags": [
                        {
                            "Key": {"Fn::Sub": "kubernetes.io/cluster/${ClusterName}"},
                            "Value": "owned",
                            "PropagateAtLaunch": True,
                        }
                    ]
                },
            },
        },
        outputs={"Nodes": ref("Nodes")},
    )


def gpu_operator(wanted: LaunchRequest) -> str:
    """Values of the chart gpu-operator for nodes of the image."""
    notes = ["Driver and container toolkit are on the image; its gpu-mig makes the slices at boot."]
    if wanted.owner == "operator":
        # With a layout or without: the node's label selects it.
        values: dict[str, Any] = operator_values(wanted.strategy, wanted.owner)
        label = wanted.label or "all-balanced"
        notes = [
            "Driver and container toolkit are on the image. The chart's mig-manager makes the",
            f"slices that a node's label names: kubectl label node NODE {_NODE_LABEL}={label}",
            "Nodes must leave them to it: MIG_OWNER=operator in /etc/default/gpu-mig of the image.",
        ]
    elif wanted.label:
        answer = k8s_configuration(
            wanted.label, wanted.strategy, instance_type=wanted.instance_type.type
        )
        values = answer["gpu_operator"]
    else:
        values = {
            "driver": {"enabled": False},
            "toolkit": {"enabled": False},
            "mig": {"strategy": "none"},
            "migManager": {"enabled": False},
        }
    values["devicePlugin"] = {"enabled": True}
    values["dcgmExporter"] = {"enabled": wanted.recipe.dcgm_exporter is None}
    return as_yaml(
        [
            title(wanted, "helm upgrade --install gpu-operator nvidia/gpu-operator -f THIS-FILE"),
            *notes,
        ],
        values,
    )


def device_plugin(wanted: LaunchRequest) -> str:
    """Values of the chart nvidia-device-plugin, for clusters without the operator."""
    return as_yaml(
        [title(wanted, "helm upgrade --install nvdp nvdp/nvidia-device-plugin -f THIS-FILE")],
        plugin_values(wanted.strategy if wanted.label else "none"),
    )
