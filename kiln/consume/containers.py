"""ECS and AWS Batch: a capacity provider with a task, a compute environment with a queue."""

from __future__ import annotations

from kiln.consume.documents import ref, stack, text_parameter
from kiln.consume.ec2 import (
    CONDITIONS,
    GROUPS,
    SUBNETS,
    group,
    looked_up,
    only_if,
    optional,
    template_resource,
)
from kiln.consume.launch_request import LaunchRequest
from kiln.consume.machine import instance_tags, launch_data

# Batch's name of the kind of image, which decides how it sets the agent up.
# https://docs.aws.amazon.com/batch/latest/APIReference/API_Ec2Configuration.html
_BATCH = {"al2": "ECS_AL2_NVIDIA", "al2023": "ECS_AL2023_NVIDIA"}


def ecs(wanted: LaunchRequest) -> str:
    """An Auto Scaling group as a cluster's capacity provider, and a task that shows its GPU."""
    agent = "#!/bin/bash\nprintf '%s\\n' ECS_CLUSTER=${Cluster} ECS_ENABLE_GPU_SUPPORT=true"
    return stack(
        wanted,
        "ECS capacity provider; every launch resolves the channel anew",
        parameters={
            "Cluster": text_parameter("name of the ECS cluster"),
            **{
                name: parameter
                for name, parameter in optional(wanted).items()
                if name != "InstanceProfile"
            },
            "InstanceProfile": text_parameter(
                "name of the container instances' profile", wanted.options.instance_profile or None
            ),
            "Subnets": SUBNETS,
            "MostInstances": {"Type": "Number", "Default": 4, "MinValue": 1},
        },
        conditions=CONDITIONS,
        resources={
            "LaunchTemplate": template_resource(
                wanted,
                wanted.image,
                UserData={"Fn::Base64": {"Fn::Sub": f"{agent} >>/etc/ecs/ecs.config\n"}},
            ),
            "Instances": {
                "Type": "AWS::AutoScaling::AutoScalingGroup",
                "Properties": {
                    name: value
                    for name, value in group(
                        "MostInstances", "MostInstances", "MostInstances"
                    ).items()
                    if name != "DesiredCapacity"
                }
                | {
                    "MinSize": "0",
                    "NewInstancesProtectedFromScaleIn": True,
                    "Tags": [
                        {"Key": "AmazonECSManaged", "Value": "true", "PropagateAtLaunch": True}
                    ],
                },
            },
            "CapacityProvider": {
                "Type": "AWS::ECS::CapacityProvider",
                "Properties": {
                    "AutoScalingGroupProvider": {
                        "AutoScalingGroupArn": ref("Instances"),
                        "ManagedScaling": {"Status": "ENABLED", "TargetCapacity": 100},
                        "ManagedTerminationProtection": "ENABLED",
                    }
                },
            },
            "OfCluster": {
                "Type": "AWS::ECS::ClusterCapacityProviderAssociations",
                "Properties": {
                    "Cluster": ref("Cluster"),
                    "CapacityProviders": [ref("CapacityProvider")],
                    "DefaultCapacityProviderStrategy": [
                        {"CapacityProvider": ref("CapacityProvider"), "Weight": 1}
                    ],
                },
            },
            "Task": {
                "Type": "AWS::ECS::TaskDefinition",
                "Properties": {
                    "Family": wanted.name,
                    "RequiresCompatibilities": ["EC2"],
                    "ContainerDefinitions": [
                        {
                            "Name": "gpu",
                            "Image": "public.ecr.aws/amazonlinux/amazonlinux:2023",
                            "Command": ["nvidia-smi", "-L"],
                            "MemoryReservation": 512,
                            "ResourceRequirements": [{"Type": "GPU", "Value": "1"}],
                        }
                    ],
                },
            },
        },
        outputs={"CapacityProvider": ref("CapacityProvider"), "Task": ref("Task")},
    )


def batch(wanted: LaunchRequest) -> str:
    """A managed compute environment and its queue; both take the image on an update.

    The image is not in the launch template, where Batch would not see that it is another one. The
    template's type, profile, placement and market Batch leaves out, but not its network and IMDS:
    https://docs.aws.amazon.com/batch/latest/userguide/launch-templates.html
    """
    looked, image = looked_up(wanted)
    data = launch_data(wanted, image, groups=ref("SecurityGroups"))
    del data["ImageId"], data["InstanceType"]
    return stack(
        wanted,
        "Batch compute environment; an update of the stack takes the channel's image",
        parameters={
            **looked,
            "SecurityGroups": GROUPS,
            "InstanceProfile": text_parameter("ARN of the instances' profile"),
            "PlacementGroup": optional(wanted)["PlacementGroup"],
            "Subnets": SUBNETS,
            "MostVcpus": {"Type": "Number", "Default": wanted.instance_type.vcpus * 4},
        },
        conditions={"HasPlacement": CONDITIONS["HasPlacement"]},
        resources={
            "LaunchTemplate": {
                "Type": "AWS::EC2::LaunchTemplate",
                "Properties": {"LaunchTemplateData": data},
            },
            "Compute": {
                "Type": "AWS::Batch::ComputeEnvironment",
                "Properties": {
                    "Type": "MANAGED",
                    "State": "ENABLED",
                    "ReplaceComputeEnvironment": False,
                    "ComputeResources": {
                        "Type": "EC2",
                        "AllocationStrategy": "BEST_FIT_PROGRESSIVE",
                        "MinvCpus": 0,
                        "MaxvCpus": ref("MostVcpus"),
                        "InstanceTypes": [wanted.instance_type.type],
                        "InstanceRole": ref("InstanceProfile"),
                        "Subnets": ref("Subnets"),
                        "PlacementGroup": only_if("HasPlacement", ref("PlacementGroup")),
                        "LaunchTemplate": {
                            "LaunchTemplateId": ref("LaunchTemplate"),
                            "Version": {"Fn::GetAtt": ["LaunchTemplate", "LatestVersionNumber"]},
                        },
                        "Ec2Configuration": [
                            {
                                "ImageType": _BATCH[wanted.recipe.distro.id],
                                "ImageIdOverride": image,
                            }
                        ],
                        "Tags": instance_tags(wanted),
                        "UpdateToLatestImageVersion": True,
                    },
                },
            },
            "Queue": {
                "Type": "AWS::Batch::JobQueue",
                "Properties": {
                    "Priority": 1,
                    "ComputeEnvironmentOrder": [{"Order": 1, "ComputeEnvironment": ref("Compute")}],
                },
            },
        },
        outputs={"Queue": ref("Queue")},
    )
