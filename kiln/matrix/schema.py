"""The schema of `amis.yaml`. Messages about what violates it are in `violations.py`."""

from __future__ import annotations

import json
from datetime import date
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    field_validator,
    model_validator,
)

from kiln.base import vocabulary
from kiln.base.vocabulary import (
    Arch,
    DriverSource,
    Family,
    Flavor,
    KernelModule,
    PackageManager,
)
from kiln.matrix.account import Aws
from kiln.matrix.publishing import Publish
from kiln.telemetry.settings import Telemetry


def _text(form: vocabulary.Form) -> StringConstraints:
    return StringConstraints(pattern=form.pattern, max_length=form.longest)


Version = Annotated[str, _text(vocabulary.VERSION)]
Driver = Annotated[str, _text(vocabulary.DRIVER)]
Release = Annotated[str, _text(vocabulary.THREE_NUMBERS)]
Cudnn = Annotated[str, _text(vocabulary.CUDNN)]
Kubernetes = Annotated[str, _text(vocabulary.KUBERNETES)]
Package = Annotated[str, _text(vocabulary.PACKAGE)]
User = Annotated[str, _text(vocabulary.USER)]
Device = Annotated[str, _text(vocabulary.DEVICE)]
Id = Annotated[str, _text(vocabulary.ID)]
InstanceType = Annotated[str, _text(vocabulary.INSTANCE_TYPE)]
Line = Annotated[str, _text(vocabulary.STACK_OF_LINE)]
Owner = Annotated[str, _text(vocabulary.OWNER)]
Parameter = Annotated[str, _text(vocabulary.PARAMETER)]
AmiName = Annotated[str, _text(vocabulary.AMI_NAME)]
Name = Annotated[str, _text(vocabulary.NAME)]
CudaRepo = Annotated[str, _text(vocabulary.CUDA_REPO)]
Label = Annotated[str, _text(vocabulary.LABEL)]
RuleId = Annotated[str, _text(vocabulary.RULE_ID)]
Reason = Annotated[str, StringConstraints(pattern=vocabulary.REASON.pattern, max_length=400)]


class Strict(BaseModel):
    """Refuses unknown keys, so that a typo is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class SourceAmiModel(Strict):
    """How the parent AMI is found. `{arch}`, `{deb_arch}`, `{kubernetes}` and `{parallelcluster}`
    are filled in per row."""

    ssm_parameter: Parameter | None = None
    owner: Owner | None = None
    name: AmiName | None = None

    @model_validator(mode="after")
    def _one_way(self) -> SourceAmiModel:
        if bool(self.ssm_parameter) == bool(self.owner and self.name):
            raise ValueError("give either ssm_parameter, or owner and name")
        return self


class DistroModel(Strict):
    """Overrides for a distribution; fields left out are as in
    kiln/facts/knowledge/distros.yaml."""

    name: Name | None = None
    family: Family | None = None
    package_manager: PackageManager | None = None
    ssh_user: User | None = None
    root_device: Device | None = None
    cuda_repo: CudaRepo | None = Field(
        None, description="NVIDIA's name of the distribution in its CUDA repository"
    )
    parents: dict[Flavor, SourceAmiModel] = Field(
        default_factory=dict, description="parent AMI per flavour"
    )

    @field_validator("*", mode="before")
    @classmethod
    def _not_empty(cls, value: Any) -> Any:
        """Refuse a key without a value, which would silently override nothing."""
        if value is None:
            raise ValueError("empty")
        return value


PACKAGE_SNAPSHOT: Any = Field(
    None,
    description="the distribution's packages as they were: a release of Amazon Linux 2023, or a "
    "UTC time for Ubuntu and Debian",
)


class StackFields(Strict):
    """The GPU stack. A row may override any field of its stack; null removes a component."""

    driver: Driver | None = None
    driver_source: DriverSource | None = None
    kernel_module: KernelModule | None = Field(
        None, description="both: both are built, and kiln-gpu-boot loads the one for the GPUs"
    )
    kernel: Package | None = Field(
        None, description="kernel package (series) to pin, by the distribution's name for it"
    )
    cuda: Release | None = None
    cudnn: Cudnn | None = None
    nccl: Release | None = None
    efa: Release | None = Field(None, description="EFA installer")
    ofi_nccl: Version | None = Field(
        None, description="aws-ofi-nccl built from source, if the EFA installer bundles none"
    )
    gdrcopy: Version | None = None
    dcgm: Release | None = None
    dcgm_exporter: Version | None = Field(
        None, description="DCGM's metrics for `telemetry: {dcgm: true}`; needs dcgm"
    )
    container_toolkit: Version | None = None
    cloudwatch_agent: Version | None = None
    mig_parted: Version | None = Field(
        None, description="NVIDIA's mig-parted, which gpu-mig uses if it is on the image"
    )
    nvlsm: Version | None = Field(
        None, description="NVLink subnet manager, for the NVSwitches of B200 and B300"
    )
    imex: bool | None = Field(None, description="nvidia-imex, for GB200 and GB300 hosts")
    package_snapshot: str | None = PACKAGE_SNAPSHOT


class VolumeModel(Strict):
    """The root volume."""

    # EC2's limits of gp3: https://docs.aws.amazon.com/ebs/latest/userguide/general-purpose.html
    size: int = Field(100, ge=8, le=65536, description="GiB")
    type: Literal["gp3"] = "gp3"
    iops: int = Field(3000, ge=3000, le=80000, description="at most 500 per GiB")
    throughput: int = Field(125, ge=125, le=2000, description="MiB/s, at most 0.25 per IOPS")

    @model_validator(mode="after")
    def _in_proportion(self) -> VolumeModel:
        if self.iops > 500 * self.size:
            raise ValueError(f"iops {self.iops} need size: {-(-self.iops // 500)} or more")
        if self.throughput * 4 > self.iops:
            raise ValueError(
                f"throughput {self.throughput} needs iops: {self.throughput * 4} or more"
            )
        return self


class RowSettings(Strict):
    """The settings of a row besides its stack; `defaults` sets them for all rows."""

    instance_type: dict[Arch, InstanceType] = Field(
        default_factory=dict, description="instance type that bakes, per arch"
    )
    verify_instance_type: dict[Arch, InstanceType] = Field(
        default_factory=dict, description="instance type on which the AMI is checked, per arch"
    )
    target_instance_types: list[InstanceType] = Field(
        default_factory=list, description="instance types that the AMI serves, for `check`"
    )
    volume: VolumeModel | None = None
    without: list[str] = Field(default_factory=list, description="components to leave out")
    kubernetes: Kubernetes | None = Field(None, description="Kubernetes version, for flavour eks")
    parallelcluster: Release | None = Field(
        None, description="ParallelCluster version, for flavour parallelcluster"
    )
    telemetry: Telemetry | None = Field(None, description="see docs/telemetry-cloudwatch.md")
    publish: Publish | None = Field(None, description="see docs/publish.md")
    aws: Aws | None = Field(None, description="see docs/your-account.md")
    mig_config: Label | None = Field(None, description="default label from mig-config.yaml")
    extended_support: bool | None = Field(
        None,
        description="you have the distribution's extended support (Ubuntu Pro), for `check`",
    )
    package_snapshot: str | None = PACKAGE_SNAPSHOT


class AcceptModel(Strict):
    """A warning of `check` that the row accepts, so that `check --strict` passes."""

    rule: RuleId = Field(description="the rule that warns: DRV-EOL")
    reason: Reason = Field(description="why the row accepts it")
    until: str = Field(description="the last day: 2027-03-31; after it `check` fails")

    @field_validator("until")
    @classmethod
    def _day(cls, value: str) -> str:
        try:
            day = date.fromisoformat(value) if vocabulary.DAY.fits(value) else None
        except ValueError:
            day = None
        if day is None:
            raise ValueError(f"{vocabulary.shown(value)} is not {vocabulary.DAY.what}")
        return value


class RowModel(RowSettings, StackFields):
    """One row of the matrix: distro × stack × flavours × arches."""

    distro: str
    stack: str
    line: Line | None = Field(
        None,
        description="replaces the stack in the name of the AMI's folder in packer/, for rows that "
        "would share one",
    )
    accept: list[AcceptModel] = Field(
        default_factory=list, description="warnings of `check` that the row accepts for a time"
    )
    flavors: list[Flavor] = Field(["base"], min_length=1)
    arches: list[Arch] = Field(["x86_64"], min_length=1)


class MatrixModel(Strict):
    """The whole of `amis.yaml`."""

    defaults: RowSettings = RowSettings()
    distros: dict[Id, DistroModel] = Field(
        default_factory=dict, description="overrides for known distributions"
    )
    stacks: dict[Id, StackFields]
    amis: list[RowModel] = Field(min_length=1)


def matrix_json_schema() -> str:
    """The schema of `amis.yaml` as JSON Schema, for editors."""
    schema = MatrixModel.model_json_schema()
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "AMI Kiln matrix"
    return json.dumps(schema, indent=2) + "\n"
