"""A release's AMI in each region: copied, checked, shared. Each step may be done again: what is
there already is found by its tags and not made twice."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from uuid import uuid4

from kiln.base.errors import operation_failed
from kiln.base.tags import LINE, PREFIX, PROVENANCE, RECIPE, RETIRING, RUN_ID, SOURCE_IMAGE
from kiln.cloud import aws
from kiln.cloud.images import Image, find_image, list_images, own_images, snapshot_keys
from kiln.cloud.target import Target
from kiln.matrix.publishing import Publish, Share, is_awss_own
from kiln.publish import sharing
from kiln.publish.deprecation import protect_and_date
from kiln.publish.regions import in_regions


def _copies(target: Target, source: str) -> list[Image]:
    """The copies of an AMI in the target's region, failed ones included."""
    tagged = [{"Name": f"tag:{SOURCE_IMAGE}", "Values": [source]}]
    with aws.explained(f"the copies of {source} could not be listed in {target.region}"):
        copies = list(list_images(target, Owners=["self"], Filters=tagged))
    # A filter's value may have wildcards; the id has been checked, the tag is compared again.
    return [image for image in copies if image.tags.get(SOURCE_IMAGE) == source]


def start_copy(
    target: Target,
    source: Image,
    line: str,
    settings: Publish,
    *,
    gone: bool = False,
) -> str:
    """Start copying the AMI into the target's region, or find its copy; the copy's id.

    Its tags are the source's, and `kiln:source-image`; its snapshots carry the run's id. `gone`:
    the id that this said before names nothing.
    """
    there = _copies(target, source.ami_id)
    key = settings.kms_keys.get(target.region)
    for copy in there:
        if copy.state == "pending" or (
            copy.state == "available" and not any(_other_keys(target, copy, key))
        ):
            return copy.ami_id
    mine = [
        {"Key": SOURCE_IMAGE, "Value": source.ami_id},
        {"Key": LINE, "Value": line},
    ]
    # EC2 copies the AMI's tags, and none of its snapshots'.
    theirs = [
        {"Key": key, "Value": value}
        for key, value in source.tags.items()
        if key != "Name" and not key.startswith(("aws:", PREFIX))
    ]
    run = [{"Key": RUN_ID, "Value": source.tags[RUN_ID]}] if RUN_ID in source.tags else []
    wanted: dict[str, Any] = {
        # A failed copy may still have its name.
        "Name": f"{source.name}-{len(there) + 1}"[-128:] if there else source.name,
        "Description": _description(source),
        "SourceImageId": source.ami_id,
        "SourceRegion": source.region,
        "CopyImageTags": True,
        "TagSpecifications": [
            {"ResourceType": "image", "Tags": mine},
            {"ResourceType": "snapshot", "Tags": [*theirs, *mine, *run]},
        ],
    }
    if key:
        wanted |= {"Encrypted": True, "KmsKeyId": key}
    if settings.copy_minutes:
        wanted["SnapshotCopyCompletionDurationMinutes"] = settings.copy_minutes
    # EC2 answers the token of a copy that somebody has deregistered with the id of that copy.
    wanted["ClientToken"] = uuid4().hex if gone else _token(wanted, target.region)
    with aws.explained(f"{source.ami_id} could not be copied to {target.region}"):
        return str(aws.ec2(target).copy_image(**wanted)["ImageId"])


def _token(wanted: Mapping[str, Any], region: str) -> str:
    """The same for a request that is sent again, so that nothing is copied twice.

    Another one for another key, or after a failed copy (its name differs): EC2 answers a token that
    it knows with what it made then, or with IdempotentParameterMismatch.
    Source: https://docs.aws.amazon.com/ec2/latest/devguide/ec2-api-idempotency.html
    """
    return hashlib.sha256(json.dumps([wanted, region], sort_keys=True).encode()).hexdigest()


def _description(source: Image) -> str:
    return f"{source.tags[RECIPE]}, verified, by AMI Kiln"


def require_shareable(
    target: Target, source: Image, regions: Sequence[str], settings: Publish
) -> None:
    """Raises KilnError (exit status 1) that names each region whose image EC2 would not share,
    because AWS's own key encrypts it; nothing has been copied then.

    Source: https://github.com/hashicorp/packer/issues/7410
    """
    if not settings.share.somebody:
        return
    keys = [key for key in snapshot_keys(target, source).values() if key]
    if not keys:
        return

    def shareable(region: str) -> bool:
        there = target.in_region(region)
        if region == target.region:
            return not any(_is_awss_own(there, key) for key in keys)
        return not _is_awss_own(there, settings.kms_keys.get(region) or _default_key(there))

    answers = in_regions(list(regions), shareable)
    lacking = [region for region, can in answers.items() if not can]
    if lacking:
        settings_of = [
            f"aws.kms_key_id ({region}; then build again)"
            if region == target.region
            else f"publish.kms_keys.{region}"
            for region in lacking
        ]
        raise operation_failed(
            f"{source.ami_id} cannot be shared in {', '.join(lacking)}: AWS's own key for EBS "
            "encrypts it there, with which EC2 shares nothing. Nothing was copied",
            hint=f"name a KMS key of yours: {', '.join(settings_of)}",
        )


def _default_key(there: Target) -> str:
    with aws.explained(f"the default EBS key of {there.region} could not be read"):
        return str(aws.ec2(there).get_ebs_default_kms_key_id()["KmsKeyId"])


def _is_awss_own(there: Target, key: str) -> bool:
    if is_awss_own(key):
        return True
    with aws.explained(f"the KMS key {key} could not be looked up in {there.region}"):
        metadata = aws.kms(there).describe_key(KeyId=key)["KeyMetadata"]
        return bool(metadata.get("KeyManager") == "AWS")


def wanted_tags(source: Image, line: str) -> dict[str, str]:
    """The tags of a published image: the source's own, and its line."""
    own = {
        key: value
        for key, value in source.tags.items()
        if not key.startswith("aws:") and key not in (PROVENANCE, RETIRING)
    }
    return {**own, LINE: line}


def prepare_image(
    target: Target,
    image: Image,
    source: Image,
    line: str,
    settings: Publish,
    say: Callable[[str], None],
) -> None:
    """Set what a published image has besides its content: permissions, IMDSv2, description,
    deregistration protection, deprecation date, and the tags that the source has now.

    What `retire` has done to an AMI on its way out is undone."""
    ec2 = aws.ec2(target)
    with aws.explained(f"{image.ami_id} could not be prepared in {target.region}"):
        tags = wanted_tags(source, line).items()
        lacking = [{"Key": k, "Value": v} for k, v in tags if image.tags.get(k) != v]
        if lacking:
            ec2.create_tags(Resources=[image.ami_id], Tags=lacking)  # type: ignore[arg-type]
    there = sharing.permissions(target, image.ami_id, image.snapshots)
    share_as_declared(target, there, settings.share, say)
    with aws.explained(f"{image.ami_id} could not be prepared in {target.region}"):
        if not image.imds_v2:
            ec2.modify_image_attribute(ImageId=image.ami_id, ImdsSupport={"Value": "v2.0"})
        ec2.modify_image_attribute(
            ImageId=image.ami_id, Description={"Value": _description(source)}
        )
        protect_and_date(target, image, settings)


def share_as_declared(
    target: Target,
    there: sharing.Open,
    share: Share,
    say: Callable[[str], None],
    *,
    only_remove: bool = False,
) -> None:
    """Bring the permissions of an AMI and its snapshots to what is declared; each removal is said
    before it is done. Raises KilnError (exit status 1) if EC2 refuses."""
    ec2 = aws.ec2(target)
    for what in sharing.undeclared(there, share):
        say(f"{target.region}: {what}, which `share` does not declare: takes that back")
    for resource, has in there.items():
        wanted = sharing.declared_users(resource, share)
        sets = {"Add": set() if only_remove else wanted - has, "Remove": has - wanted}
        changes: Any = {name: list(_permissions(who)) for name, who in sets.items() if who}
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


def take_back(target: Target, line: str, share: Share, say: Callable[[str], None]) -> None:
    """Remove the permissions that `share` does not declare any more from each image of the line in
    the target's region. Raises KilnError (exit status 1) if EC2 refuses."""
    for image in own_images(target):
        if image.line == line:
            there = sharing.permissions(target, image.ami_id, image.snapshots)
            share_as_declared(target, there, share, say, only_remove=True)


def _permissions(who: set[str]) -> Iterator[dict[str, str]]:
    for user in sorted(who):
        if user.isdigit():
            yield {"UserId": user}
        elif user == "all":
            yield {"Group": user}
        else:
            yield {"OrganizationalUnitArn" if ":ou/" in user else "OrganizationArn": user}


def not_ready(target: Target, ami_id: str, tags: dict[str, str], settings: Publish) -> list[str]:
    """What a settled image lacks, read back from EC2; empty if consumers may have it.

    `tags` are the source's: a copy must carry each of them.
    """
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
    there = sharing.permissions(target, ami_id, image.snapshots)
    wrong += sharing.missing_permissions(there, settings.share)
    wrong += sharing.undeclared(there, settings.share)
    return [f"{ami_id}: {reason}" for reason in wrong]


def _other_keys(target: Target, image: Image, key: str | None) -> Iterator[str]:
    """What of an image is encrypted with another key than the one that its region has to have."""
    for snapshot, used in snapshot_keys(target, image).items() if key else ():
        if key and (used is None or not _is_key(target, used, key)):
            yield f"{snapshot} is encrypted with {used or 'no key'}, not with {key}"


def _is_key(target: Target, used: str, wanted: str) -> bool:
    """Whether a key's ARN is the key that a setting names, which may be an alias."""
    if used == wanted or used.endswith(f":key/{wanted}"):
        return True
    if "alias/" not in wanted:
        return False
    with aws.explained(f"the KMS key {wanted} could not be looked up in {target.region}"):
        described = aws.kms(target).describe_key(KeyId=wanted)["KeyMetadata"]
    return used in (described["Arn"], described["KeyId"])


def failed_copy(target: Target, ami_id: str, image: Image | None) -> Exception:
    """The error for a copy that EC2 gave up; the failed image is what the next run replaces."""
    why = image.reason if image else "it is gone"
    return operation_failed(
        f"the copy {ami_id} in {target.region} failed: {why or 'EC2 gives no reason'}",
        hint="run publish again: it makes another copy; ./invoke sweep removes the failed one",
    )
