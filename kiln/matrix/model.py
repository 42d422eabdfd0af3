"""The model of `amis.yaml`: its schema, for the reader and for editors."""

from __future__ import annotations

import json
from typing import Annotated, Any

from pydantic import Field, field_validator

from kiln.base import vocabulary
from kiln.base.account import Aws, Block, InstanceType
from kiln.base.recipe import Acceptance, Kubernetes, Label, Release, SourceAmi, Stack, Volume
from kiln.base.vocabulary import Arch, Family, Flavor, PackageManager
from kiln.matrix.publishing import Publish
from kiln.telemetry.settings import Telemetry

Id = Annotated[str, vocabulary.ID]


class DistroSettings(Block):
    """Overrides for a distribution; fields left out are as in
    kiln/facts/knowledge/distros.yaml."""

    name: Annotated[str, vocabulary.NAME] | None = None
    family: Family | None = None
    package_manager: PackageManager | None = None
    ssh_user: Annotated[str, vocabulary.USER] | None = None
    root_device: Annotated[str, vocabulary.DEVICE] | None = None
    cuda_repo: Annotated[str, vocabulary.CUDA_REPO] | None = None
    """NVIDIA's name of the distribution in its CUDA repository"""
    parents: dict[Flavor, SourceAmi] = {}
    """parent AMI per flavor"""

    @field_validator("*", mode="before")
    @classmethod
    def _not_empty(cls, value: Any) -> Any:
        """Refuse a key without a value, which would silently override nothing."""
        if value is None:
            raise ValueError("is empty: give it a value, or remove the line")
        return value


class Settings(Block):
    """The settings of a row besides its stack; `defaults` sets them for all rows."""

    instance_type: dict[Arch, InstanceType] = {}
    """instance type that bakes, per arch"""
    verify_instance_type: dict[Arch, InstanceType] = {}
    """instance type on which the AMI is checked, per arch"""
    target_instance_types: tuple[InstanceType, ...] = ()
    """instance types that the AMI serves, for `check`"""
    volume: Volume | None = None
    without: tuple[str, ...] = ()
    """components to leave out"""
    kubernetes: Kubernetes | None = None
    """Kubernetes version, for flavor eks"""
    parallelcluster: Release | None = None
    """ParallelCluster version, for flavor parallelcluster"""
    telemetry: Telemetry | None = None
    """see docs/telemetry-cloudwatch.md"""
    publish: Publish | None = None
    """see docs/publish.md"""
    aws: Aws | None = None
    """see docs/your-account.md"""
    mig_config: Label | None = None
    """default MIG layout, such as all-1g.5gb"""
    extended_support: bool | None = None
    """you have the distribution's extended support (Ubuntu Pro), for `check`"""
    package_snapshot: str | None = None
    """the distribution's packages as they were: a release of Amazon Linux 2023, or a UTC time for
    Ubuntu and Debian"""


class MatrixRow(Settings, Stack):
    """One row of the matrix: distro × stack × flavors × arches."""

    distro: str
    stack: str
    line: Annotated[str, vocabulary.STACK_OF_LINE] | None = None
    """replaces the stack in the name of the AMI's folder in packer/, for rows that would share
    one"""
    accept: tuple[Acceptance, ...] = ()
    """warnings of `check` that the row accepts for a time"""
    flavors: tuple[Flavor, ...] = Field(("base",), min_length=1)
    arches: tuple[Arch, ...] = Field(("x86_64",), min_length=1)


class Matrix(Block):
    """The whole of `amis.yaml`."""

    defaults: Settings = Settings()
    distros: dict[Id, DistroSettings] = {}
    """overrides for known distributions"""
    stacks: dict[Id, Stack]
    amis: tuple[MatrixRow, ...] = Field(min_length=1)


def matrix_json_schema() -> str:
    """The schema of `amis.yaml` as JSON Schema, for editors."""
    schema = Matrix.model_json_schema()
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "AMI Kiln matrix"
    return json.dumps(schema, indent=2) + "\n"
