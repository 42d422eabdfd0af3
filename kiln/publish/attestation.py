"""Signs a statement of where a published AMI comes from (provenance.py)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kiln.base.errors import KilnError
from kiln.base.paths import matrix_file
from kiln.base.tags import PROVENANCE
from kiln.cloud import aws
from kiln.cloud.images import Image, require_image
from kiln.cloud.target import Target
from kiln.matrix.publishing import Sign
from kiln.pipeline.record import Record
from kiln.publish import parameters, provenance
from kiln.publish.regions import in_regions


def attest(
    target: Target, record: Record, images: Mapping[str, str], sign: Sign, folder: Path | None
) -> None:
    """Sign a statement for each image that does not match the one it has, and tag the image.

    One statement per region: SSM takes eight kilobytes.
    Raises KilnError: exit status 2 for a key that cannot sign, 1 if an operation failed.
    """
    key = provenance.public_key(sign, target)
    wrong = provenance.mismatches(target, images, key)
    predicate = _predicate(record)
    tags = parameters.tags_of_row(str(record.recipe["name"]))

    def attest_there(region: str) -> None:
        there = target.in_region(region)
        image = require_image(there, images[region])
        envelope = sign_statement(_statement(predicate, image), sign, target)
        with aws.explained(f"the statement of {record.run_id} could not be kept in {region}"):
            parameters.put(
                there,
                tags,
                Name=provenance.statement_parameter(record.run_id),
                Value=envelope,
                Type="String",
                Tier="Intelligent-Tiering",  # four kilobytes fit into a standard parameter
                Overwrite=True,
                Description="where an AMI comes from, signed, by AMI Kiln",
            )
        if folder is not None and folder.is_dir():
            (folder / f"provenance-{region}.json").write_text(envelope + "\n", encoding="utf-8")
        value = f"{region} {record.run_id} {hashlib.sha256(envelope.encode()).hexdigest()}"
        with aws.explained(f"{image.ami_id} could not be tagged in {region}"):
            aws.ec2(there).create_tags(
                Resources=[image.ami_id], Tags=[{"Key": PROVENANCE, "Value": value}]
            )

    in_regions([region for region in wrong if wrong[region]], attest_there)


def sign_statement(statement: bytes, sign: Sign, target: Target) -> str:
    """Return the statement in its signed envelope, as JSON."""
    from securesystemslib.dsse import Envelope
    from securesystemslib.signer import AWSSigner, CryptoSigner

    class KmsSigner(AWSSigner):
        """AWSSigner with the target's credentials and region."""

        def __init__(self, key_id: str) -> None:
            self.aws_key_id, self.client = key_id, aws.kms(target)
            self._public_key = provenance.kms_key(key_id, target)
            self.aws_algo = self.aws_algos[self._public_key.scheme]

    envelope = Envelope(statement, provenance.PAYLOAD_TYPE, {})
    if sign.kms_key:
        with aws.explained(f"the KMS key {sign.kms_key} could not sign in {target.region}"):
            envelope.sign(KmsSigner(sign.kms_key))
    else:
        path = matrix_file().parent / str(sign.key_file)
        key = provenance.read_pem(path)
        if not hasattr(key, "public_key"):
            raise KilnError(f"{path}: a private key is needed to sign")
        envelope.sign(CryptoSigner(key))
    return json.dumps(envelope.to_dict(), separators=(",", ":"))


def _statement(predicate: dict[str, Any], image: Image) -> bytes:
    signed = provenance.signed_facts(image)
    name = provenance.subject_name(image.region, image.ami_id)
    # AMIs have no digest of their own.
    digest = _digest([image.ami_id, signed])
    statement = {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": name, "digest": digest, "annotations": signed}],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": predicate,
    }
    return _canonical(statement)


def _predicate(record: Record) -> dict[str, Any]:
    inputs: list[dict[str, Any]] = [
        {"name": "recipe digest", "digest": {"sha256": str(record.recipe_digest)}},
        {"uri": f"git:{record.git_commit}", "name": "checkout"},
    ]
    if parent := record.source_ami:
        inputs.append({"uri": f"ami:{record.region}/{parent.ami_id}", "name": parent.name})
    if record.input_digest:
        inputs.append({"name": "input digest", "digest": {"sha256": record.input_digest}})
    checks = record.checks
    return {
        "buildDefinition": {
            # Not an address that answers.
            "buildType": "https://ami-kiln.invalid/build/v1",
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
            "byproducts": [{"name": "version-info", "digest": _digest(record.versions or {})}],
        },
    }


def _digest(data: Any) -> dict[str, str]:
    return {"sha256": hashlib.sha256(_canonical(data)).hexdigest()}


def _canonical(data: Any) -> bytes:
    return json.dumps(data, sort_keys=True, separators=(",", ":")).encode()
