"""cfn-lint, which knows the schema of each resource of CloudFormation, in this process: its start
takes as long as a template."""

from __future__ import annotations


def mistakes(template: str, *regions: str) -> list[str]:
    """What cfn-lint says against a template in these regions."""
    from cfnlint.api import lint

    return [str(match) for match in lint(template, regions=list(regions))]
