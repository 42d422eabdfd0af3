"""docs/publish-compared.md has every setting of EC2 Image Builder, as botocore's model has them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from botocore.loaders import Loader

from kiln.base.paths import ROOT

TABLE = (ROOT / "docs" / "publish-compared.md").read_text(encoding="utf-8")
MODEL = Loader().load_service_model("imagebuilder", "service-2")
# What is configured: pipelines, machines, recipes, distribution, lifecycle.
REQUESTS = (
    "CreateImagePipelineRequest",
    "CreateImageRecipeRequest",
    "CreateInfrastructureConfigurationRequest",
    "CreateDistributionConfigurationRequest",
    "CreateLifecyclePolicyRequest",
)
# Settings that only name the resource, lead to another one that is asked too, or make a call safe.
NAMES = {
    *("clientToken", "description", "name", "tags"),
    *("containerRecipeArn", "imageRecipeArn", "infrastructureConfigurationArn"),
    *("distributionConfigurationArn", "executionRole", "distributions", "policyDetails"),
    *("resourceType", "parentImage", "schedule", "workingDirectory"),
}


def settings() -> Iterator[str]:
    shapes: Mapping[str, Any] = MODEL["shapes"]
    for request in REQUESTS:
        yield from set(shapes[request]["members"]) - NAMES
    for shape in ("Distribution", "LaunchPermissionConfiguration", "ImageScanningConfiguration"):
        yield from set(shapes[shape]["members"]) - {"ecrConfiguration"}


def actions() -> Iterator[str]:
    """The calls that do something; those that make, show or change a resource are its settings."""
    for name in MODEL["operations"]:
        if not re.match(r"(Create|Delete|Get|List|Update|Tag|Untag)[A-Z]", name):
            yield name


# The table has the shape instead of the setting that holds it.
SHAPES = {
    "imageScanningConfiguration": "ImageScanningConfiguration",
    "imageScanningEnabled": "ImageScanningConfiguration",
    "amiDistributionConfiguration": "AmiDistributionConfiguration",
    "launchTemplateConfigurations": "LaunchTemplateConfiguration",
    "ssmParameterConfigurations": "SsmParameterConfiguration",
    "workflows": "CreateWorkflow",
}


@pytest.mark.parametrize("name", sorted({*settings(), *actions()}))
def test_the_table_names_what_image_builder_offers(name: str) -> None:
    assert re.search(rf"\b{SHAPES.get(name, name)}\b", TABLE)
