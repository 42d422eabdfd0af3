"""AWS::CodeBuild, AWS::Scheduler and AWS::S3: what runs the nights, and where they leave records.

Projects and schedules are booked only: no build runs, and no schedule starts one.
"""

from __future__ import annotations

import json
from typing import Any

from lab.cloudformation.errors import ResourceError
from lab.cloudformation.kinds.kind import Kind, Made, Place, Properties, without, words

# What CodeBuild's API calls otherwise than CloudFormation.
# https://docs.aws.amazon.com/AWSCloudFormation/latest/TemplateReference/aws-properties-codebuild-project-source.html
_OTHERWISE = {"BuildSpec": "buildspec"}
_NUMBERS = (
    *("TimeoutInMinutes", "QueuedTimeoutInMinutes", "ConcurrentBuildLimit"),
    *("GitCloneDepth", "TimeoutInMins"),
)


def _as_codebuild(value: Any, key: str = "") -> Any:
    """A property as CodeBuild's API has it: names begin small, numbers are numbers."""
    if isinstance(value, dict):
        return {
            _OTHERWISE.get(name, name[0].lower() + name[1:]): _as_codebuild(part, name)
            for name, part in value.items()
        }
    if isinstance(value, list):
        return [_as_codebuild(part) for part in value]
    return int(value) if key in _NUMBERS else value


def _project(place: Place, name: str, properties: Properties) -> Made:
    called = properties.get("Name") or place.new_name(name)
    tags = [
        {"key": tag["Key"], "value": tag["Value"]} for tag in place.all_tags(properties.get("Tags"))
    ]
    project = place.client("codebuild").create_project(
        **_as_codebuild(without(properties, "Name", "Tags")), name=called, tags=tags
    )["project"]
    return Made(called, {"Arn": project["arn"], "Id": called})


def _changed_project(place: Place, made: Made, properties: Properties) -> Made:
    project = _as_codebuild(without(properties, "Name", "Tags"))
    place.client("codebuild").update_project(**project, name=made.id)
    return made


def _without_project(place: Place, made: Made) -> None:
    place.client("codebuild").delete_project(name=made.id)


def _schedule(place: Place, name: str, properties: Properties) -> Made:
    called = properties.get("Name") or place.new_name(name)
    arn = place.client("scheduler").create_schedule(Name=called, **_of_schedule(properties))[
        "ScheduleArn"
    ]
    return Made(called, {"Arn": arn})


def _of_schedule(properties: Properties) -> dict[str, Any]:
    schedule = without(properties, "Name")
    retry = schedule["Target"].get("RetryPolicy", {})
    numbers = {key: int(value) for key, value in retry.items()}
    return {
        **schedule,
        "Target": {**schedule["Target"], **({"RetryPolicy": numbers} if retry else {})},
    }


def _changed_schedule(place: Place, made: Made, properties: Properties) -> Made:
    place.client("scheduler").update_schedule(Name=made.id, **_of_schedule(properties))
    return made


def _without_schedule(place: Place, made: Made) -> None:
    place.client("scheduler").delete_schedule(Name=made.id)


def _bucket(place: Place, name: str, properties: Properties) -> Made:
    s3 = place.client("s3")
    # A bucket's name is in small letters, and at most 63 long.
    called = properties.get("BucketName") or place.new_name(name).lower()[-63:].lstrip("-")
    home = {"LocationConstraint": place.region}
    elsewhere = {} if place.region == "us-east-1" else {"CreateBucketConfiguration": home}
    s3.create_bucket(Bucket=called, **elsewhere)
    arn = f"arn:aws:s3:::{called}"
    domain = f"{called}.s3.amazonaws.com"
    return _changed_bucket(place, Made(called, {"Arn": arn, "DomainName": domain}), properties)


def _changed_bucket(place: Place, made: Made, properties: Properties) -> Made:
    s3, bucket = place.client("s3"), made.id
    if versions := properties.get("VersioningConfiguration"):
        s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration=versions)
    if encryption := properties.get("BucketEncryption"):
        rules = [
            {"ApplyServerSideEncryptionByDefault": rule["ServerSideEncryptionByDefault"]}
            for rule in encryption["ServerSideEncryptionConfiguration"]
        ]
        s3.put_bucket_encryption(Bucket=bucket, ServerSideEncryptionConfiguration={"Rules": rules})
    if block := properties.get("PublicAccessBlockConfiguration"):
        settings = {key: str(value).lower() == "true" for key, value in block.items()}
        s3.put_public_access_block(Bucket=bucket, PublicAccessBlockConfiguration=settings)
    if controls := properties.get("OwnershipControls"):
        s3.put_bucket_ownership_controls(Bucket=bucket, OwnershipControls=controls)
    return made


def _without_bucket(place: Place, made: Made) -> None:
    """One with objects in it is refused by S3."""
    place.client("s3").delete_bucket(Bucket=made.id)


def _bucket_policy(place: Place, name: str, properties: Properties) -> Made:
    return _changed_bucket_policy(place, Made(properties["Bucket"]), properties)


def _changed_bucket_policy(place: Place, made: Made, properties: Properties) -> Made:
    document = properties["PolicyDocument"]
    if not isinstance(document, dict):
        raise ResourceError("PolicyDocument must be an object")
    place.client("s3").put_bucket_policy(Bucket=properties["Bucket"], Policy=json.dumps(document))
    return made


def _without_bucket_policy(place: Place, made: Made) -> None:
    place.client("s3").delete_bucket_policy(Bucket=made.id)


KINDS = {
    "AWS::CodeBuild::Project": Kind(
        _project,
        _without_project,
        words("Name Description ServiceRole Source SourceVersion Environment Artifacts LogsConfig")
        | words("TimeoutInMinutes QueuedTimeoutInMinutes ConcurrentBuildLimit BuildBatchConfig")
        | words("Tags"),
        _changed_project,
        words("Name"),
    ),
    "AWS::Scheduler::Schedule": Kind(
        _schedule,
        _without_schedule,
        words("Name Description State ScheduleExpression ScheduleExpressionTimezone")
        | words("FlexibleTimeWindow Target"),
        _changed_schedule,
        words("Name"),
    ),
    "AWS::S3::Bucket": Kind(
        _bucket,
        _without_bucket,
        words("BucketName VersioningConfiguration BucketEncryption OwnershipControls")
        | words("PublicAccessBlockConfiguration"),
        _changed_bucket,
        words("BucketName"),
    ),
    "AWS::S3::BucketPolicy": Kind(
        _bucket_policy,
        _without_bucket_policy,
        words("Bucket PolicyDocument"),
        _changed_bucket_policy,
        words("Bucket"),
    ),
}
