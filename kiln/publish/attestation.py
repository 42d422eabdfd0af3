"""Signs where a published AMI comes from: an in-toto statement with SLSA provenance, kept in SSM
and with the run's record, and named by a tag of the AMI."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kiln.base.errors import KilnError, operation_failed
from kiln.base.tags import PROVENANCE
from kiln.cloud import aws
from kiln.cloud.target import Target
from kiln.image import sbom, version_info
from kiln.matrix.publishing import Sign
from kiln.pipeline.record import Record
from kiln.publish import parameters, signatures, signing
from kiln.publish.images import Image, describe_image
from kiln.publish.provenance import (
    canonical_digest,
    image_digest,
    mismatches,
    sha256_of,
    signed_tags,
    statement_parameter,
    subject_name,
)
from kiln.publish.regions import in_regions

_PREDICATE = "https://slsa.dev/provenance/v1"
# What makes these AMIs, and the shape of their parameters. Not an address that answers.
_BUILD_TYPE = "https://ami-kiln.invalid/build/v1"


def attest(
    target: Target, record: Record, images: Mapping[str, str], sign: Sign, folder: Path | None
) -> None:
    """Sign what each image of a release is, in a statement of its region that its tag names, unless
    the one that it has matches already.

    A statement about all regions would not fit: SSM takes eight kilobytes.
    Raises KilnError: exit status 2 for a key that cannot sign, 1 if an operation failed.
    """
    key = signatures.public_key(sign, target)
    wrong = [
        region for region, differences in mismatches(target, images, key).items() if differences
    ]
    predicate = _predicate(record)
    name = statement_parameter(record.run_id)
    tags = parameters.tags_of_row(str(record.recipe["name"]))

    def attest_there(region: str) -> None:
        there = target.in_region(region)
        image = describe_image(there, images[region])
        if image is None:
            raise operation_failed(f"{images[region]} is not there in {region}")
        envelope = signing.sign_statement(_statement(predicate, image), sign, target)
        with aws.explained(f"the statement of {record.run_id} could not be kept in {region}"):
            parameters.put(
                there,
                tags,
                Name=name,
                Value=envelope,
                Type="String",
                # Four kilobytes fit into a standard parameter.
                Tier="Intelligent-Tiering",
                Overwrite=True,
                Description="where an AMI comes from, signed, by AMI Kiln",
            )
        if folder is not None and folder.is_dir():
            (folder / f"provenance-{region}.json").write_text(envelope + "\n", encoding="utf-8")
        value = f"{region} {record.run_id} {sha256_of(envelope.encode())}"
        with aws.explained(f"{image.ami_id} could not be tagged in {region}"):
            aws.ec2(there).create_tags(
                Resources=[image.ami_id], Tags=[{"Key": PROVENANCE, "Value": value}]
            )

    in_regions(wrong, attest_there)


def _statement(predicate: dict[str, Any], image: Image) -> bytes:
    """The statement about an image, as JSON."""
    from google.protobuf import json_format
    from in_toto_attestation.v1.resource_descriptor import ResourceDescriptor
    from in_toto_attestation.v1.statement import Statement

    signed = {"snapshots": list(image.snapshots), "tags": signed_tags(image)}
    subject = ResourceDescriptor(
        name=subject_name(image.region, image.ami_id),
        digest={"sha256": image_digest(image.ami_id, signed)},
        annotations=signed,
    )
    statement = Statement([subject.pb], _PREDICATE, predicate)
    statement.validate()
    data = json_format.MessageToDict(statement.pb)
    return json.dumps(data, sort_keys=True, separators=(",", ":")).encode()


def _predicate(record: Record) -> dict[str, Any]:
    """What was built from what, by whom, with which outcome."""
    versions = record.versions or {}
    parent = record.source_ami
    inputs: list[dict[str, Any]] = [
        {"name": "recipe digest", "digest": {"sha256": str(record.recipe_digest)}},
        {"uri": f"git:{record.git_commit}", "name": "checkout"},
    ]
    if parent is not None:
        inputs.append({"uri": f"ami:{record.region}/{parent.ami_id}", "name": parent.name})
    if record.input_digest:
        inputs.append({"name": "input digest", "digest": {"sha256": record.input_digest}})
    checks = record.checks
    return {
        "buildDefinition": {
            "buildType": _BUILD_TYPE,
            "externalParameters": {"recipe": str(record.recipe.get("name"))},
            "resolvedDependencies": inputs,
        },
        "runDetails": {
            "builder": {"id": f"ami-kiln {record.target}, {record.packer or 'Packer unknown'}"},
            "metadata": {
                "invocationId": record.run_id,
                "startedOn": record.started,
                "finishedOn": record.finished or "",
                "checks": f"{checks.passed} passed, {checks.failed} failed" if checks else "none",
            },
            "byproducts": [
                {"name": "version-info", "digest": {"sha256": canonical_digest(versions)}},
                *_bill(record),
            ],
        },
    }


def _bill(record: Record) -> list[dict[str, Any]]:
    """The digest of the SBOM that `./invoke sbom` prints; nothing without a version-info."""
    if not record.versions:
        return []
    with contextlib.suppress(KilnError), version_info.reading(record.run_id):
        bill = json.loads(sbom.cyclonedx(record.versions, record.recipe))
        # The time at which it was made is not part of what is on the image.
        bill.get("metadata", {}).pop("timestamp", None)
        return [
            {"name": "SBOM without its timestamp", "digest": {"sha256": canonical_digest(bill)}}
        ]
    return []
