"""AWS ParallelCluster: a cluster file whose queue runs on the image."""

from __future__ import annotations

from typing import Any

from kiln.base.yaml_text import as_yaml
from kiln.consume.documents import title
from kiln.consume.machine import instance_tags, network_interfaces
from kiln.consume.wanted import Wanted

# ParallelCluster's names of the distributions.
# https://docs.aws.amazon.com/parallelcluster/latest/ug/Image-section-v3.html
_OS = {
    "al2": "alinux2",
    "al2023": "alinux2023",
    "ubuntu2204": "ubuntu2204",
    "ubuntu2404": "ubuntu2404",
}


def parallelcluster(wanted: Wanted) -> str:
    """A cluster file with one queue; ParallelCluster takes ids only."""
    kind = wanted.instance_type
    efa = bool(network_interfaces(wanted))
    resource: dict[str, Any] = {
        "Name": kind.type.replace(".", "-"),
        "Instances": [{"InstanceType": kind.type}],
        "MinCount": 0,
        "MaxCount": 4,
        "Efa": {"Enabled": efa},
    }
    queue: dict[str, Any] = {
        "Name": "gpu",
        "Image": {"CustomAmi": wanted.image_id},
        "Networking": {
            "SubnetIds": ["subnet-0123456789abcdef0"],
            **({"PlacementGroup": {"Enabled": True}} if efa else {}),
        },
        "ComputeSettings": {
            "LocalStorage": {"RootVolume": {"Size": wanted.recipe.volume.size, "Encrypted": True}}
        },
        "ComputeResources": [resource],
    }
    config = {
        "Region": wanted.region,
        "Image": {"Os": _OS[wanted.recipe.distro.id]},
        "HeadNode": {
            "InstanceType": "m6i.large" if kind.arch == "x86_64" else "m6g.large",
            "Networking": {"SubnetId": "subnet-0123456789abcdef0"},
            "Imds": {"Secured": True},
        },
        "Imds": {"ImdsSupport": "v2.0"},
        "Scheduling": {"Scheduler": "slurm", "SlurmQueues": [queue]},
        "Tags": [{"Key": key, "Value": value} for key, value in instance_tags(wanted).items()],
    }
    return as_yaml(
        [
            title(wanted, "pcluster create-cluster --cluster-configuration THIS-FILE"),
            "Change the subnets. ParallelCluster takes an id: run consume again after a promotion,",
            f"with the version that the image is of ({wanted.recipe.parallelcluster}).",
        ],
        config,
    )
