"""Tasks about what is on an image: diff, sbom."""

from __future__ import annotations

from invoke import Context

from kiln.cli.flags import JSON, RECORDS, account_help, replaces_settings
from kiln.cli.front import say, show, task


@task(
    positional=["a", "b"],
    help={
        "a": "AMI id, AMI name or record of a build: ./invoke diff A B",
        "b": "the newer build",
        **account_help(RECORDS),
        **JSON,
    },
)
@replaces_settings(RECORDS)
def diff(c: Context, a: str, b: str, aws_flags: dict[str, str], json: bool = False) -> None:
    """What differs between two builds: packages, kernel, driver, CUDA; the riskiest first."""
    from kiln.cli import fetched_records
    from kiln.image import diff as comparison

    fetched_records.bring_for_names(aws_flags, a, b)
    show(comparison.compare_images(a, b), as_json=json, text=comparison.diff_text)


@task(
    positional=["ami"],
    help={
        "ami": "AMI name, AMI id, record.json or version-info.json",
        "json": "print errors as JSON too; the SBOM is JSON anyway",
        **account_help(RECORDS),
    },
)
@replaces_settings(RECORDS)
def sbom(c: Context, ami: str, aws_flags: dict[str, str], json: bool = False) -> None:
    """The CycloneDX SBOM of a built AMI, as JSON on standard output."""
    from kiln.cli import fetched_records
    from kiln.image import sbom as bom

    fetched_records.bring_for_names(aws_flags, ami)
    say(bom.image_sbom(ami))
