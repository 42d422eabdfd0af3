"""Where a published AMI comes from: a signed statement (in-toto, SLSA provenance) that says what
its image in a region is, what it was built from and by whom, and what its checks said.

An AMI's tag names its statement, which is kept in its region's SSM beside the channels and with the
run's record. Formats: https://slsa.dev/spec/v1.0/provenance,
https://github.com/in-toto/attestation/blob/7bfb269c6eb5fe8ca56edf5e1cc17776a294457a/spec/v1/statement.md
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kiln.base import vocabulary
from kiln.base.errors import KilnError, operation_failed
from kiln.base.tags import KEEP, PREFIX, PROVENANCE, RETIRING
from kiln.cloud import aws
from kiln.cloud.target import Target
from kiln.publish import signatures
from kiln.publish.images import Image, describe_image
from kiln.publish.regions import in_regions

if TYPE_CHECKING:
    from securesystemslib.signer import SSlibKey

_ROOT = "/ami-kiln-provenance"
# What is set on an AMI after it was published.
_LATER = frozenset({PROVENANCE, KEEP, RETIRING})


def statement_parameter(run_id: str) -> str:
    """The SSM parameter that holds the statement of a run's AMI, in the AMI's region."""
    return f"{_ROOT}/{run_id}"


@dataclass(frozen=True)
class Provenance:
    """What a statement says about an AMI, and what of the AMI does not match it."""

    ami_id: str
    region: str
    statement: str | None
    said: dict[str, Any]
    wrong: tuple[str, ...]


def mismatches(
    target: Target, images: Mapping[str, str], key: SSlibKey
) -> dict[str, tuple[str, ...]]:
    """What of each image, by region, its statement does not say; empty for one that matches.

    Raises KilnError (exit status 1) if a region does not answer.
    """
    return in_regions(
        list(images),
        lambda region: verify_image(target.in_region(region), images[region], key).wrong,
    )


def verify_image(target: Target, ami_id: str, key: SSlibKey) -> Provenance:
    """Compare an AMI of the target's region with the statement that its tag names.

    Raises KilnError (exit status 1) if AWS does not answer or the AMI is not there.
    """
    image = describe_image(target, ami_id)
    if image is None:
        raise operation_failed(f"{ami_id} is not there in {target.region}")
    names = image.tags.get(PROVENANCE)
    if not names:
        return Provenance(ami_id, target.region, None, {}, (f"it has no tag {PROVENANCE}",))
    try:
        statement = _fetched(target, names, key)
    except _UnprovenError as missing:
        return Provenance(ami_id, target.region, names, {}, (str(missing),))
    try:
        summary, wrong = _summary(statement), tuple(_differences(image, statement))
    except (KeyError, TypeError, AttributeError):
        summary, wrong = {}, ("its statement is not one of AMI Kiln's, though the key signed it",)
    return Provenance(ami_id, target.region, names, summary, wrong)


def provenance_text(provenance: Provenance) -> str:
    """For a terminal."""
    lines = [f"{name:9} {_shown(value)}" for name, value in provenance.said.items()]
    lines += [f"wrong     {reason}" for reason in provenance.wrong]
    if not provenance.wrong:
        lines.append(
            f"{provenance.ami_id} in {provenance.region} is what its signed statement says"
        )
    return "\n".join(lines)


def _shown(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


class _UnprovenError(Exception):
    """Why there is no statement to compare with."""


def _fetched(target: Target, names: str, key: SSlibKey) -> Any:
    """The statement that a tag names, if the key has signed it."""
    region, _, rest = names.partition(" ")
    run_id, _, digest = rest.partition(" ")
    fits = vocabulary.REGION.fits(region) and vocabulary.RUN_ID.fits(run_id)
    if not fits or not vocabulary.SHA256.fits(digest):
        raise _UnprovenError(f"its tag {PROVENANCE} names no statement: {vocabulary.shown(names)}")
    name = statement_parameter(run_id)
    with aws.explained(f"the statement {name} could not be read in {region}"):
        parameters = aws.ssm(target.in_region(region)).get_parameters(Names=[name])["Parameters"]
    if not parameters:
        raise _UnprovenError(f"its statement is missing: there is no parameter {name} in {region}")
    envelope = str(parameters[0]["Value"])
    if sha256_of(envelope.encode()) != digest:
        raise _UnprovenError(f"the statement in {name} is not the one that its tag names")
    try:
        return json.loads(signatures.opened(envelope, key))
    except (KilnError, ValueError) as error:
        raise _UnprovenError(f"the statement in {name}: {error}") from None


def _differences(image: Image, statement: Any) -> Iterator[str]:
    """Where an image is not what the statement says of it."""
    subjects = {subject.get("name"): subject for subject in statement.get("subject", [])}
    subject = subjects.get(subject_name(image.region, image.ami_id))
    if subject is None:
        yield f"the statement is about {', '.join(map(str, subjects))}"
        return
    signed = subject.get("annotations", {})
    if signed.get("snapshots") != list(image.snapshots):
        was = ", ".join(signed.get("snapshots", [])) or "none"
        yield f"its snapshots are {', '.join(image.snapshots) or 'none'}, signed were {was}"
    tags = signed.get("tags", {})
    now = signed_tags(image)
    for key in sorted({*tags, *now}):
        if tags.get(key) != now.get(key):
            was = tags.get(key, "missing")
            yield f"its tag {key} is {now.get(key, 'missing')}, signed was {was}"
    if subject.get("digest", {}).get("sha256") != image_digest(image.ami_id, signed):
        yield "the statement's digest of the image is not that of its snapshots and tags"


def _summary(statement: Any) -> dict[str, Any]:
    """Who built it from what, for a person."""
    build = statement["predicate"]["buildDefinition"]
    run = statement["predicate"]["runDetails"]
    return {
        "recipe": build["externalParameters"]["recipe"],
        "builder": run["builder"]["id"],
        "run": run["metadata"]["invocationId"],
        "finished": run["metadata"]["finishedOn"],
        "from": [
            dependency.get("uri") or dependency.get("name")
            for dependency in build["resolvedDependencies"]
        ],
        "checks": run["metadata"]["checks"],
    }


def signed_tags(image: Image) -> dict[str, str]:
    return {
        key: value
        for key, value in sorted(image.tags.items())
        if key.startswith(PREFIX) and key not in _LATER
    }


def image_digest(ami_id: str, signed: Any) -> str:
    """Stands for the image: AMIs have no digest of their own."""
    return canonical_digest([ami_id, signed])


def subject_name(region: str, ami_id: str) -> str:
    return f"{region}/{ami_id}"


def canonical_digest(data: Any) -> str:
    return sha256_of(json.dumps(data, sort_keys=True, separators=(",", ":")).encode())


def sha256_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
