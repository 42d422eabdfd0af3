"""Instances while they live: addresses, options, tags, what may be changed and taken away."""

from __future__ import annotations

from typing import Any


def test_a_stopped_instance_has_no_public_address_and_a_started_one_another(
    ec2: Any, walk: Any
) -> None:
    made = walk.launched()
    found = walk.stopped(made["InstanceId"])
    assert "PublicIpAddress" not in found
    assert not found["PublicDnsName"]
    assert found["PrivateIpAddress"] == made["PrivateIpAddress"]
    ec2.start_instances(InstanceIds=[made["InstanceId"]])
    again = walk.until(made["InstanceId"], "running")
    assert again["PrivateIpAddress"] == made["PrivateIpAddress"]
    assert again["PublicIpAddress"] not in (None, made["PublicIpAddress"])
    assert again["PublicDnsName"] == "ec2-{}.compute-1.amazonaws.com".format(
        again["PublicIpAddress"].replace(".", "-")
    )
    (by_address,) = ec2.describe_instances(
        Filters=[{"Name": "ip-address", "Values": [again["PublicIpAddress"]]}]
    )["Reservations"]
    assert by_address["Instances"][0]["InstanceId"] == made["InstanceId"]


def test_a_stop_says_who_did_it_and_a_start_begins_anew(ec2: Any, walk: Any) -> None:
    made = walk.launched()
    assert made["StateTransitionReason"] == ""
    found = walk.stopped(made["InstanceId"])
    assert found["StateTransitionReason"].startswith("User initiated (20")
    assert found["StateReason"]["Code"] == "Client.UserInitiatedShutdown"
    ec2.start_instances(InstanceIds=[made["InstanceId"]])
    again = walk.until(made["InstanceId"], "running")
    assert again["StateTransitionReason"] == ""
    assert not again.get("StateReason", {}).get("Code")
    assert again["LaunchTime"] >= made["LaunchTime"]


def test_an_instance_without_a_public_address_gets_none_later(ec2: Any, walk: Any) -> None:
    first = {"DeviceIndex": 0, "AssociatePublicIpAddress": False}
    made = walk.launched(NetworkInterfaces=[first])
    assert "PublicIpAddress" not in made
    assert made["PrivateIpAddress"]
    walk.stopped(made["InstanceId"])
    ec2.start_instances(InstanceIds=[made["InstanceId"]])
    assert "PublicIpAddress" not in walk.until(made["InstanceId"], "running")


def test_metadata_options_that_a_call_does_not_name_stay(ec2: Any, walk: Any, refused: Any) -> None:
    options = {"HttpTokens": "required", "InstanceMetadataTags": "enabled"}
    instance = walk.launched(MetadataOptions=options)["InstanceId"]
    ec2.modify_instance_metadata_options(InstanceId=instance, HttpPutResponseHopLimit=3)
    found = walk.instance(instance)["MetadataOptions"]
    assert {name: found[name] for name in options} == options
    assert found["HttpPutResponseHopLimit"] == 3
    how = {"InstanceId": instance, "HttpPutResponseHopLimit": 65}
    assert refused(ec2.modify_instance_metadata_options, **how)[0] == "InvalidParameterValue"


def test_a_security_group_that_an_instance_has_is_not_deleted(
    ec2: Any, walk: Any, refused: Any
) -> None:
    group = ec2.create_security_group(GroupName="build", Description="of a build")["GroupId"]
    made = walk.launched(SecurityGroupIds=[group])
    assert refused(ec2.delete_security_group, GroupId=group)[0] == "DependencyViolation"
    walk.terminated(made["InstanceId"])
    ec2.delete_security_group(GroupId=group)
    default = {"Filters": [{"Name": "group-name", "Values": ["default"]}]}
    (found, *_) = ec2.describe_security_groups(**default)["SecurityGroups"]
    assert refused(ec2.delete_security_group, GroupId=found["GroupId"])[0] == "CannotDelete"


def test_only_the_owner_shares_a_snapshot(ec2: Any, walk: Any, parent: str, refused: Any) -> None:
    snapshot = walk.image(parent)["BlockDeviceMappings"][0]["Ebs"]["SnapshotId"]
    how = {"SnapshotId": snapshot, "OperationType": "add", "UserIds": ["111122223333"]}
    how |= {"Attribute": "createVolumePermission"}
    assert refused(ec2.modify_snapshot_attribute, **how)[0] == "UnauthorizedOperation"
    mine = walk.baked()["BlockDeviceMappings"][0]["Ebs"]["SnapshotId"]
    ec2.modify_snapshot_attribute(**how | {"SnapshotId": mine})
    shown = ec2.describe_snapshot_attribute(SnapshotId=mine, Attribute="createVolumePermission")[
        "CreateVolumePermissions"
    ]
    assert shown == [{"UserId": "111122223333"}]


def test_efa_interface_needs_a_type_with_efa(ec2: Any, walk: Any, refused: Any) -> None:
    card = {"DeviceIndex": 0, "InterfaceType": "efa"}
    code, _ = refused(walk.launched, InstanceType="g4dn.xlarge", NetworkInterfaces=[card])
    assert code == "InvalidParameterCombination"
    assert walk.launched(InstanceType="g4dn.8xlarge", NetworkInterfaces=[card])["PublicIpAddress"]
