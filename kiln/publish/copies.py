"""A release's AMI in each region: copied, checked, shared, protected. Each step may be done again:
what is there already is found by its tags and not made twice."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any
from uuid import uuid4

from kiln.base.errors import KilnError, operation_failed
from kiln.base.tags import LINE, PREFIX, RECIPE, RETIRING, RUN_ID, SOURCE_IMAGE
from kiln.base.vocabulary import utc_now
from kiln.cloud import aws
from kiln.cloud.images import Image, find_image, list_images, own_images, snapshot_keys
from kiln.cloud.target import Target
from kiln.matrix.model import Publish, Share
from kiln.publish.regions import Say, in_regions

# Seconds. EC2 documents no limit for a copy; Packer waits as long for an image.
_COPY_TIMEOUT = 4 * 3600
# When a new copy is there at the latest for whoever asks: EC2's answers lag by seconds.
_APPEARS = 120

# Accounts, ARNs of organizations and their units, and "all", by the AMI's or snapshot's id.
Permissions = Mapping[str, set[str]]


def require_shareable(
    target: Target, source: Image, regions: Sequence[str], settings: Publish
) -> None:
    """Refuse regions whose image EC2 would not share, because AWS's own key for EBS encrypts it.

    https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/how-ami-sharing-works.html
    """
    keys = {key for key in snapshot_keys(target, source).values() if key}
    if not keys or not any(settings.share.model_dump().values()):
        return

    def has_own_key(there: Target) -> bool:
        used = keys
        with aws.explained(f"the key of {source.ami_id} could not be looked up in {there.region}"):
            if there.region != source.region:
                # A copy of what is encrypted is encrypted too, with the region's default key.
                default = settings.kms_keys.get(there.region)
                used = {default or aws.ec2(there).get_ebs_default_kms_key_id()["KmsKeyId"]}
            kms = aws.client("kms", there)
            found = [kms.describe_key(KeyId=key)["KeyMetadata"] for key in used]
        return all(key["KeyManager"] == "CUSTOMER" for key in found)

    own = in_regions(target, regions, has_own_key)
    lacking = [region for region in own if not own[region]]
    if lacking:
        raise operation_failed(
            f"{source.ami_id} cannot be shared in {', '.join(lacking)}: AWS's own key for EBS "
            "encrypts it there; nothing was copied",
            hint="name keys of yours: publish.kms_keys, or aws.kms_key_id and build again",
        )


def copy_everywhere(
    source: Image, line: str, regions: Sequence[str], settings: Publish, target: Target, say: Say
) -> dict[str, str]:
    """Copy the AMI to each region; return its id there, once every copy is available."""

    def start(there: Target) -> str:
        if there.region == source.region:
            return source.ami_id
        return _start_copy(there, source, line, settings)

    images = in_regions(target, regions, start)
    for region in (each for each in images if each != source.region):
        say(f"{region}: waits for {images[region]}")
        wait_for_copy(target.in_region(region), images[region])
        say(f"{region}: {images[region]} is available")
    return images


def _start_copy(target: Target, source: Image, line: str, settings: Publish) -> str:
    """Start a copy in the target's region, or find the one that is there; return its id.

    Its tags are the source's, and `kiln:source-image`; its snapshots carry the run's id.
    """
    tagged = [{"Name": f"tag:{SOURCE_IMAGE}", "Values": [source.ami_id]}]
    with aws.explained(f"the copies of {source.ami_id} could not be listed in {target.region}"):
        there = list(list_images(target, Owners=["self"], Filters=tagged))
    key = settings.kms_keys.get(target.region)
    for copy in there:
        encrypted = copy.state == "available" and not any(_other_keys(target, copy, key))
        if encrypted or copy.state == "pending":
            return copy.ami_id
    mine = {SOURCE_IMAGE: source.ami_id, LINE: line}
    # EC2 copies the AMI's tags, and none of its snapshots'.
    theirs = {
        name: value
        for name, value in source.tags.items()
        if name == RUN_ID or (name != "Name" and not name.startswith(("aws:", PREFIX)))
    }
    wanted: dict[str, Any] = {
        # A failed copy may still have its name.
        "Name": f"{source.name}-{len(there) + 1}"[-128:] if there else source.name,
        "SourceImageId": source.ami_id,
        "SourceRegion": source.region,
        "CopyImageTags": True,
        "TagSpecifications": [
            {"ResourceType": "image", "Tags": _as_tags(mine)},
            {"ResourceType": "snapshot", "Tags": _as_tags({**theirs, **mine})},
        ],
    }
    if key:
        wanted |= {"Encrypted": True, "KmsKeyId": key}
    if settings.copy_minutes:
        wanted["SnapshotCopyCompletionDurationMinutes"] = settings.copy_minutes
    # Two runs that do not see each other's copy yet make one by the same token.
    known = [*sorted(copy.ami_id for copy in there), target.region, json.dumps(wanted)]
    token = hashlib.sha256(" ".join(known).encode()).hexdigest()[:64]
    with aws.explained(f"{source.ami_id} could not be copied to {target.region}"):
        ami_id = str(aws.ec2(target).copy_image(**wanted, ClientToken=token)["ImageId"])
        if not _appears(target, ami_id):
            # The token's copy was deregistered.
            ami_id = str(aws.ec2(target).copy_image(**wanted, ClientToken=uuid4().hex)["ImageId"])
    return ami_id


def _appears(target: Target, ami_id: str) -> bool:
    """Wait until EC2 shows a new AMI; False if there is none of that id."""
    from botocore.exceptions import WaiterError

    wait: Mapping[str, Any] = {"limit": _APPEARS, "every": target.poll_seconds}
    try:
        aws.wait(aws.ec2(target), "image_exists", **wait, ImageIds=[ami_id])
    except WaiterError as error:
        refusal = error.last_response.get("Error")
        if refusal and not refusal["Code"].startswith("InvalidAMIID."):
            raise
        return False
    return True


def wait_for_copy(target: Target, ami_id: str) -> None:
    """Wait until a copy is available. EC2 may not show it at once."""
    ec2 = aws.ec2(target)
    waits = {"image_exists": 600, "image_available": _COPY_TIMEOUT}
    try:
        with aws.explained(f"the copy {ami_id} could not be waited for in {target.region}"):
            for state, seconds in waits.items():
                aws.wait(ec2, state, limit=seconds, every=target.wait_seconds, ImageIds=[ami_id])
    except KilnError:
        image = find_image(target, ami_id)
        if image and image.state in ("pending", "available"):
            raise
        state = f"is {image.state}: {image.reason}" if image else "is gone"
        raise operation_failed(
            f"the copy {ami_id} in {target.region} {state}",
            hint="publish again makes another one; ./invoke sweep removes the failed one",
        ) from None


def _as_tags(tags: Mapping[str, str]) -> list[Any]:
    return [{"Key": key, "Value": value} for key, value in tags.items()]


def wanted_tags(source: Image, line: str) -> dict[str, str]:
    """Return the tags of a published image: the source's own, and its line."""
    own = {k: v for k, v in source.tags.items() if not k.startswith("aws:") and k != RETIRING}
    return {**own, LINE: line}


def prepare_image(
    target: Target, image: Image, tags: Mapping[str, str], settings: Publish, say: Say
) -> None:
    """Set what a published image has besides its content: tags, permissions, IMDSv2, description,
    deregistration protection, deprecation date."""
    ec2 = aws.ec2(target)
    with aws.explained(f"{image.ami_id} could not be prepared in {target.region}"):
        ec2.create_tags(Resources=[image.ami_id], Tags=_as_tags(tags))
        if not image.imds_v2:
            ec2.modify_image_attribute(ImageId=image.ami_id, ImdsSupport={"Value": "v2.0"})
        about = f"{tags[RECIPE]}, verified, by AMI Kiln"
        ec2.modify_image_attribute(ImageId=image.ami_id, Description={"Value": about})
        protect_and_date(target, image, settings)
    share_as_declared(target, image, settings.share, say)


def not_ready(target: Target, ami_id: str, tags: Mapping[str, str], settings: Publish) -> list[str]:
    """Return what a prepared image lacks, read back from EC2; empty if consumers may have it."""
    image = find_image(target, ami_id)
    if image is None or image.state != "available":
        return [f"{ami_id} is {image.state if image else 'not there'}"]
    wrong = [
        f"its tag {key} is {image.tags.get(key, 'missing')}, not {value}"
        for key, value in tags.items()
        if image.tags.get(key) != value
    ]
    if not image.imds_v2:
        wrong.append("it does not require IMDSv2")
    if not image.protected:
        wrong.append("it is not protected from deregistration")
    wrong += _other_keys(target, image, settings.kms_keys.get(target.region))
    for resource, who in permissions(target, image).items():
        if who != _declared(resource, settings.share):
            users = ", ".join(sorted(who)) or "nobody"
            wrong.append(f"not as `share` declares, {users} may use {resource}")
    return [f"{ami_id}: {reason}" for reason in wrong]


def _other_keys(target: Target, image: Image, key: str | None) -> Iterator[str]:
    """Yield what of an image is not encrypted with the key that its region has to have."""
    for snapshot, used in snapshot_keys(target, image).items() if key else ():
        if key and (used is None or not _is_key(target, used, key)):
            yield f"{snapshot} is encrypted with {used or 'no key'}, not with {key}"


def _is_key(target: Target, used: str, wanted: str) -> bool:
    """Return True if a key's ARN is the key that a setting names, which may be an alias."""
    if used == wanted or used.endswith(f":key/{wanted}"):
        return True
    if "alias/" not in wanted:
        return False
    with aws.explained(f"the KMS key {wanted} could not be looked up in {target.region}"):
        return bool(
            used == aws.client("kms", target).describe_key(KeyId=wanted)["KeyMetadata"]["Arn"]
        )


# Permissions


def permissions(target: Target, image: Image) -> Permissions:
    """Return who besides the owner may launch an AMI and read its snapshots."""
    ec2 = aws.ec2(target)
    with aws.explained(f"the permissions of {image.ami_id} could not be read in {target.region}"):
        answer = ec2.describe_image_attribute(ImageId=image.ami_id, Attribute="launchPermission")
        found: dict[str, Any] = {image.ami_id: answer.get("LaunchPermissions", [])}
        for snapshot in image.snapshots:
            found[snapshot] = ec2.describe_snapshot_attribute(
                SnapshotId=snapshot, Attribute="createVolumePermission"
            ).get("CreateVolumePermissions", [])
    return {
        resource: {str(who) for permission in each for who in permission.values()}
        for resource, each in found.items()
    }


def _declared(resource: str, share: Share) -> set[str]:
    """Return who may launch an AMI, or read a snapshot: EC2 lets only accounts do that."""
    if resource.startswith("snap-"):
        return set(share.accounts)
    return {*share.accounts, *share.organizations, *share.organizational_units}


def undeclared(has: Permissions, share: Share) -> list[str]:
    """Return what is open beyond the declaration, in words."""
    return [
        f"{'everybody' if who == 'all' else f'account {who}' if who.isdigit() else who} may "
        f"{'read' if resource.startswith('snap-') else 'launch'} {resource}"
        for resource, each in has.items()
        for who in sorted(each - _declared(resource, share))
    ]


def share_as_declared(
    target: Target, image: Image, share: Share, say: Say, *, only_remove: bool = False
) -> None:
    """Bring the permissions of an AMI and its snapshots to what is declared; each removal is said
    before it is done."""
    ec2, has = aws.ec2(target), permissions(target, image)
    for what in undeclared(has, share):
        say(f"{target.region}: {what}, which `share` does not declare: takes that back")
    for resource, present in has.items():
        declared = _declared(resource, share)
        sets = {"Add": set() if only_remove else declared - present, "Remove": present - declared}
        changes: Any = {name: [*map(_permission, sorted(who))] for name, who in sets.items() if who}
        if not changes:
            continue
        whom = ", ".join(sorted(set().union(*sets.values())))
        with aws.explained(f"{resource} could not be prepared in {target.region} for {whom}"):
            if resource.startswith("snap-"):
                ec2.modify_snapshot_attribute(
                    SnapshotId=resource,
                    Attribute="createVolumePermission",
                    CreateVolumePermission=changes,
                )
            else:
                ec2.modify_image_attribute(ImageId=resource, LaunchPermission=changes)


def _permission(who: str) -> dict[str, str]:
    if who.isdigit():
        return {"UserId": who}
    if who == "all":
        return {"Group": who}
    return {"OrganizationalUnitArn" if ":ou/" in who else "OrganizationArn": who}


def take_back(target: Target, line: str, share: Share, say: Say) -> None:
    """Remove the permissions that `share` does not declare any more from each image of the line in
    the target's region."""
    for image in own_images(target):
        if image.line == line:
            share_as_declared(target, image, share, say, only_remove=True)


# Deprecation. EC2 leaves a deprecated AMI out of what other accounts list, though it launches:
# https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/ami-deprecate.html


def protect_and_date(target: Target, image: Image, settings: Publish) -> None:
    """Protect an AMI from deregistration and give it the date that the settings say, if it has none
    or is deprecated; what `retire` has done is undone. EC2's errors are botocore's."""
    ec2 = aws.ec2(target)
    if not image.protected:
        ec2.enable_image_deregistration_protection(ImageId=image.ami_id)
    if settings.deprecate_after and (image.is_deprecated or not image.deprecated):
        at = utc_now() + timedelta(days=settings.deprecate_after)
        ec2.enable_image_deprecation(ImageId=image.ami_id, DeprecateAt=at)
    elif image.is_deprecated:
        ec2.disable_image_deprecation(ImageId=image.ami_id)
    if image.retiring:  # last, so that an interrupted run is continued
        ec2.delete_tags(Resources=[image.ami_id], Tags=[{"Key": RETIRING}])


def restore_images(target: Target, images: Mapping[str, str], settings: Publish, say: Say) -> None:
    """Lift the deprecation of these AMIs, by region, before a channel names them."""

    def restore(there: Target) -> None:
        image = find_image(there, images[there.region])
        if image and image.is_deprecated:
            with aws.explained(f"{image.ami_id} stays deprecated in {there.region}"):
                protect_and_date(there, image, settings)
            say(f"{there.region}: {image.ami_id} is no longer deprecated")

    in_regions(target, images, restore)
