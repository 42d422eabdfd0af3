"""Tasks about what is on an image: diff, sbom."""

from __future__ import annotations

from invoke import Context

from kiln.cli.flags import JSON
from kiln.cli.front import say, show, task


@task(
    positional=["a", "b"],
    help={"a": "AMI name or record", "b": "the newer AMI or record", **JSON},
)
def diff(c: Context, a: str, b: str, json: bool = False) -> None:
    """What differs between two builds: packages, kernel, driver, CUDA; the riskiest first."""
    from kiln.image import diff as comparison

    show(comparison.compare_images(a, b), as_json=json, text=comparison.diff_text)


@task(positional=["ami"], help={"ami": "AMI name, AMI id, record.json or version-info.json"})
def sbom(c: Context, ami: str) -> None:
    """The CycloneDX SBOM of a built AMI, as JSON on standard output."""
    from kiln.image import sbom as bom

    say(bom.of_name(ami))
