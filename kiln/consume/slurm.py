"""AWS ParallelCluster: a cluster file whose queue runs on the image."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kiln.base.tags import MIG_CONFIG
from kiln.base.yaml_files import as_yaml
from kiln.consume.documents import title
from kiln.consume.launch_request import LaunchRequest
from kiln.consume.machine import instance_tags, network_interfaces, pairs

# ParallelCluster's names of the distributions.
# https://docs.aws.amazon.com/parallelcluster/latest/ug/Image-section-v3.html
OS_NAMES = {
    "al2": "alinux2",
    "al2023": "alinux2023",
    "ubuntu2204": "ubuntu2204",
    "ubuntu2404": "ubuntu2404",
    "rhel8": "rhel8",
    "rhel9": "rhel9",
    "rocky8": "rocky8",
    "rocky9": "rocky9",
}
# Switches the hook of the image on that drains a node of Slurm after a fatal Xid.
_DRAIN = "cd /etc/kiln/xid.d && install -m 755 slurm-drain.example 50-slurm-drain"
_SCRIPT = "kiln-slurm-drain.sh"


def parallelcluster(wanted: LaunchRequest) -> str:
    """A cluster file with a queue for each instance type; ParallelCluster takes ids only."""
    each = [replace(wanted, instance_type=kind) for kind in (wanted.instance_type, *wanted.others)]
    tags = {name: value for name, value in instance_tags(wanted).items() if name != MIG_CONFIG}
    config = {
        "Region": wanted.region,
        "Image": {"Os": OS_NAMES[wanted.recipe.distro.id]},
        "HeadNode": {
            "InstanceType": "m6i.large" if wanted.instance_type.arch == "x86_64" else "m6g.large",
            "Networking": {"SubnetId": "subnet-0123456789abcdef0"},
            "Imds": {"Secured": True},
        },
        "Imds": {"ImdsSupport": "v2.0"},
        "Scheduling": {"Scheduler": "slurm", "SlurmQueues": [_queue(queue) for queue in each]},
        "Tags": pairs(tags),
    }
    notes = [
        title(wanted, "pcluster create-cluster --cluster-configuration THIS-FILE"),
        "Change the subnets and my-bucket. ParallelCluster takes an id: run consume again after a",
        f"promotion, with the version that the image is of ({wanted.recipe.parallelcluster}).",
        "After a fatal Xid a node drains itself, by a hook that this script switches on:",
        f"  printf '#!/bin/bash\\n%s\\n' '{_DRAIN}' |",
        f"    aws s3 cp - s3://my-bucket/{_SCRIPT}",
    ]
    if wanted.label:
        # github:aws/aws-parallelcluster cli/src/pcluster/templates/queues_stack.py @v3.16.1 sets
        # HttpTokens alone, and what a launch leaves open is the account's to say:
        # https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instance-metadata-options-order-of-precedence.html
        notes += [
            "Nodes see their MIG layout when IMDS shows tags, which only the account can say:",
            "  aws ec2 modify-instance-metadata-defaults --instance-metadata-tags enabled",
            "Slurm counts whole GPUs of such nodes unless its gres.conf is yours.",
        ]
    return as_yaml(notes, config)


def _queue(wanted: LaunchRequest) -> dict[str, Any]:
    """A queue of one instance type, called like it."""
    kind = wanted.instance_type
    efa = bool(network_interfaces(wanted))
    name = kind.type.replace(".", "-")
    return {
        "Name": name,
        "Image": {"CustomAmi": wanted.image_id},
        "Networking": {
            "SubnetIds": ["subnet-0123456789abcdef0"],
            **({"PlacementGroup": {"Enabled": True}} if efa else {}),
        },
        "CustomActions": {"OnNodeConfigured": {"Script": f"s3://my-bucket/{_SCRIPT}"}},
        "Iam": {"S3Access": [{"BucketName": "my-bucket", "KeyName": _SCRIPT}]},
        "ComputeSettings": {
            "LocalStorage": {"RootVolume": {"Size": wanted.recipe.volume.size, "Encrypted": True}}
        },
        "ComputeResources": [
            {
                "Name": name,
                "Instances": [{"InstanceType": kind.type}],
                "MinCount": 0,
                "MaxCount": 4,
                "Efa": {"Enabled": efa},
            }
        ],
        **({"Tags": pairs({MIG_CONFIG: wanted.label})} if wanted.label else {}),
    }
