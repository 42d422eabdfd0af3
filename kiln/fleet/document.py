"""`AMIKiln-InstallTelemetry`: the SSM document, its versions, and the bundle that it installs.

A document's version never changes, and each command names the version with its SHA-256, which
Systems Manager compares. The bundle is an object of S3 under its SHA-256, which the document
compares on the machine before it changes anything.
"""

from __future__ import annotations

import base64
import hashlib
import re
from typing import Any

from kiln.base.errors import operation_failed
from kiln.base.paths import TEMPLATES
from kiln.base.templates import render
from kiln.base.versions import newest
from kiln.cloud import aws
from kiln.cloud.target import Target
from kiln.facts import table
from kiln.fleet.machines import Document

DOCUMENT = "AMIKiln-InstallTelemetry"
_KEY = "telemetry/{sha256}/kiln-telemetry.sh"


def document_text() -> str:
    """Return the document, in JSON. Machines without the agent get the newest known build."""
    builds = table("services")["cloudwatch_agent"]["builds"]
    return render(
        "fleet/document.json.j2",
        script=machine_script().splitlines(),
        agent_build=builds[newest(builds)]["build"],
    )


def machine_script() -> str:
    """Return the text of machine.sh, which the document runs."""
    return (TEMPLATES / "fleet" / "machine.sh").read_text(encoding="ascii")


def publish_document(target: Target) -> Document:
    """Return our document's version in this region, made where it is missing."""
    client: Any = aws.ssm(target)
    text = document_text()
    wanted = hashlib.sha256(text.encode()).hexdigest()
    name = f"kiln-{wanted[:16]}"
    request = {"Name": DOCUMENT, "Content": text, "VersionName": name}
    with aws.explained(f"the document {DOCUMENT} could not be made in {target.region}"):
        try:
            version = client.describe_document(Name=DOCUMENT, VersionName=name)["Document"]
        except client.exceptions.ClientError as error:
            if not error.response["Error"]["Code"].startswith("InvalidDocument"):
                raise
            version = _new_version(client, request)
    if version["Hash"] != wanted:
        raise operation_failed(
            f"{DOCUMENT} {name} has the SHA-256 {version['Hash']} in {target.where}, not {wanted}",
            hint=f"somebody changed it: aws ssm delete-document --name {DOCUMENT}, then again",
        )
    return {
        "DocumentName": DOCUMENT,
        "DocumentVersion": str(version["DocumentVersion"]),
        "DocumentHash": wanted,
        "DocumentHashType": "Sha256",
    }


def fleet_bucket(target: Target) -> str:
    """Return the bucket of the bundles where no other is named."""
    return f"ami-kiln-fleet-{aws.account(target)}-{target.region}"


def store_bundle(target: Target, bucket: str, script: str) -> tuple[str, str]:
    """Put the bundle into S3; return its URL and SHA-256. A missing bucket is made."""
    content = script.encode("ascii")
    digest = hashlib.sha256(content)
    key = _KEY.format(sha256=digest.hexdigest())
    client: Any = aws.s3(target)
    with aws.explained(f"the bundle could not be put into the bucket {bucket}"):
        _ensure_bucket(client, target, bucket)
        checksum = base64.b64encode(digest.digest()).decode()
        client.put_object(Bucket=bucket, Key=key, Body=content, ChecksumSHA256=checksum)
    host = f"{bucket}.s3.{target.region}.{aws.dns_suffix(client.meta.partition)}"
    return f"https://{host}/{key}", digest.hexdigest()


def remove_stored(target: Target, bucket: str) -> list[str]:
    """Delete the document and the bundles; return what is gone. The bucket stays: others may have
    something in it."""
    gone: list[str] = []
    ssm: Any = aws.ssm(target)
    s3: Any = aws.s3(target)
    with aws.explained(f"the document {DOCUMENT} could not be deleted"):
        try:
            ssm.delete_document(Name=DOCUMENT)
            gone.append(f"document {DOCUMENT}")
        except ssm.exceptions.ClientError as error:
            if not error.response["Error"]["Code"].startswith("InvalidDocument"):
                raise
    with aws.explained(f"the bundles could not be deleted from {bucket}"):
        try:
            keys = list(aws.paginated(s3, "list_objects_v2", "Contents[].Key", Bucket=bucket))
        except s3.exceptions.ClientError as error:
            if error.response["Error"]["Code"] != "NoSuchBucket":
                raise
            return gone
        for key in filter(re.compile(_KEY.format(sha256="[0-9a-f]{64}")).fullmatch, keys):
            s3.delete_object(Bucket=bucket, Key=key)
            gone.append(f"s3://{bucket}/{key}")
    return gone


def _new_version(client: Any, request: dict[str, str]) -> Any:
    try:
        made = client.create_document(
            **request, DocumentType="Command", TargetType="/AWS::EC2::Instance"
        )
    except client.exceptions.DocumentAlreadyExists:
        made = client.update_document(**request, DocumentVersion="$LATEST")
    return made["DocumentDescription"]


def _ensure_bucket(client: Any, target: Target, bucket: str) -> None:
    try:
        client.head_bucket(Bucket=bucket)
    except client.exceptions.ClientError as error:
        if error.response["Error"]["Code"] not in ("404", "NoSuchBucket"):
            raise
    else:
        return
    where = {"LocationConstraint": target.region}
    # us-east-1 is not a location constraint.
    client.create_bucket(
        Bucket=bucket,
        **({} if target.region == "us-east-1" else {"CreateBucketConfiguration": where}),
    )
