"""The templates of engines that run the nights, made from the IAM policies in docs/."""

from __future__ import annotations

import json
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from kiln.base.paths import ROOT, TEMPLATES
from kiln.cloud import iam

CODEBUILD_TEMPLATE = ROOT / "deploy" / "nightly-codebuild.yaml"


def codebuild_text() -> str:
    """The content of deploy/nightly-codebuild.yaml: `./invoke generate` writes it."""
    environment = Environment(  # noqa: S701 - YAML, and the values are JSON
        loader=FileSystemLoader(TEMPLATES / "deploy"),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
    )
    return environment.get_template(f"{CODEBUILD_TEMPLATE.name}.j2").render(
        build_policy=json.dumps(iam.policy(), indent=2),
        old_packer_policy=json.dumps(iam.policy("packer_1_6"), indent=2),
        publish_policy=json.dumps(iam.publishing_policy("publish"), indent=2),
    )


def codebuild_template(path: Path = CODEBUILD_TEMPLATE) -> str:
    """The template as it is committed."""
    return path.read_text(encoding="utf-8")
