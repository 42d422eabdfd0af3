"""A recipe: everything that decides what is on one AMI.

`Stack`, `SourceAmi`, `Volume` and `Acceptance` are parts of amis.yaml, too: kiln.matrix.model.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import date
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationInfo, field_validator, model_validator

from kiln.base import vocabulary
from kiln.base.account import Account, Block, InstanceType
from kiln.base.errors import Place, did_you_mean
from kiln.base.vocabulary import Arch, DriverSource, Flavor, KernelModule, names_in

Version = Annotated[str, vocabulary.VERSION]
Release = Annotated[str, vocabulary.THREE_NUMBERS]
Driver = Annotated[str, vocabulary.DRIVER]
Kubernetes = Annotated[str, vocabulary.KUBERNETES]
Label = Annotated[str, vocabulary.LABEL]


def placeholders(*allowed: str) -> AfterValidator:
    """Require that the `{…}` of a text are among these."""

    def check(text: str) -> str:
        for name in names_in(text):
            if name not in allowed:
                raise ValueError(f"unknown placeholder {{{name}}}: {did_you_mean(name, allowed)}")
        return text

    return AfterValidator(check)


class SourceAmi(Block):
    """Look-up of the parent AMI: a public SSM parameter, or an owner and a name filter. In a matrix
    `{arch}`, `{deb_arch}`, `{kubernetes}` and `{parallelcluster}` are filled in per row."""

    ssm_parameter: Annotated[str, vocabulary.PARAMETER] | None = None
    """public SSM parameter with the AMI's id"""
    owner: Annotated[str, vocabulary.OWNER] | None = None
    """account or alias that owns it"""
    name: Annotated[str, vocabulary.AMI_NAME] | None = None
    """name filter; the newest match is taken"""

    @model_validator(mode="after")
    def _one_way(self) -> SourceAmi:
        if bool(self.ssm_parameter) == bool(self.owner and self.name):
            raise ValueError("give either ssm_parameter, or owner and name")
        return self

    def __str__(self) -> str:
        if self.ssm_parameter:
            return f"ssm:{self.ssm_parameter}"
        return f"newest of {self.owner} named {self.name}"


_PARENT = placeholders("arch", "deb_arch", "kubernetes", "parallelcluster")


class ParentImage(SourceAmi):
    """Look-up of the parent AMI: a public SSM parameter, or an owner and a name filter. `{arch}`,
    `{deb_arch}`, `{kubernetes}` and `{parallelcluster}` are filled in per row."""

    ssm_parameter: Annotated[str, vocabulary.PARAMETER, _PARENT] | None = None
    """public SSM parameter with the AMI's id"""
    name: Annotated[str, vocabulary.AMI_NAME, _PARENT] | None = None
    """name filter; the newest match is taken"""


class Distro(Block):
    """A Linux distribution as EC2 offers it."""

    id: Annotated[str, vocabulary.ID]
    name: Annotated[str, vocabulary.NAME]
    family: vocabulary.Family
    package_manager: vocabulary.PackageManager
    ssh_user: Annotated[str, vocabulary.USER]
    root_device: Annotated[str, vocabulary.DEVICE]
    cuda_repo: Annotated[str, vocabulary.CUDA_REPO]


class Volume(Block):
    """The root volume."""

    # EC2's limits of gp3: https://docs.aws.amazon.com/ebs/latest/userguide/general-purpose.html
    size: int = Field(100, ge=8, le=65536)
    """GiB"""
    type: Literal["gp3"] = "gp3"
    """EBS volume type"""
    iops: int = Field(3000, ge=3000, le=80000)
    """at most 500 per GiB"""
    throughput: int = Field(125, ge=125, le=2000)
    """MiB/s, at most 0.25 per IOPS"""

    @model_validator(mode="after")
    def _in_proportion(self) -> Volume:
        if self.iops > 500 * self.size:
            raise ValueError(f"iops {self.iops} need size: {-(-self.iops // 500)} or more")
        if self.throughput * 4 > self.iops:
            raise ValueError(
                f"throughput {self.throughput} needs iops: {self.throughput * 4} or more"
            )
        return self


class Acceptance(Block):
    """A warning of `check` that the row accepts, so that `check --strict` passes."""

    rule: Annotated[str, vocabulary.RULE_ID]
    """the rule that warns: DRV-EOL"""
    reason: Annotated[str, vocabulary.REASON]
    """why the row accepts it"""
    until: date
    """the last day: 2027-03-31; after it `check` fails"""


class Accepted(Acceptance):
    """An accepted warning, and where the row says so."""

    place: Place


class Stack(Block):
    """The GPU stack. A row may override any field of its stack; null removes a component."""

    driver: Driver | None = None
    """NVIDIA driver; required"""
    driver_source: DriverSource | None = None
    """NVIDIA's packages (default), its .run file, or the distribution's packages"""
    kernel_module: KernelModule | None = None
    """required; `both` builds both, and each boot loads the one for its GPUs"""
    kernel: Annotated[str, vocabulary.PACKAGE] | None = None
    """kernel package (series) to pin, by the distribution's name for it"""
    cuda: Release | None = None
    """CUDA toolkit"""
    cudnn: Annotated[str, vocabulary.CUDNN] | None = None
    """cuDNN, four numbers"""
    nccl: Release | None = None
    """NCCL, without the `+cuda` suffix"""
    efa: Release | None = None
    """EFA installer"""
    ofi_nccl: Version | None = None
    """aws-ofi-nccl built from source, if the EFA installer bundles none"""
    gdrcopy: Version | None = None
    """GDRCopy"""
    dcgm: Release | None = None
    """DCGM"""
    dcgm_exporter: Version | None = None
    """DCGM's metrics for `telemetry: {dcgm: true}`; needs the dcgm it was tested with"""
    container_toolkit: Version | None = None
    """NVIDIA container toolkit"""
    cloudwatch_agent: Version | None = None
    """CloudWatch agent"""
    nvlsm: Version | None = None
    """NVLink subnet manager, for the NVSwitches of B200 and B300; not the driver's version"""
    imex: bool | None = None
    """nvidia-imex, for GB200 and GB300 hosts"""
    package_snapshot: str | None = None
    """the distribution's packages as they were: a release of Amazon Linux 2023, or a UTC time for
    Ubuntu and Debian"""


class Row(Block):
    """The place of a recipe in the matrix, for messages; the warnings that it accepts; how its
    builds use an AWS account. A record has the file, line and index.

    `origins` maps a field of the recipe to the place of its value: in the row, its stack,
    `defaults` or `distros`. It lacks fields that the matrix does not set.
    """

    file: str
    line: int
    index: int
    column: Annotated[int | None, Field(exclude=True)] = None
    origins: Annotated[Mapping[str, Place], Field(exclude=True, repr=False)] = {}
    accepted: Annotated[tuple[Accepted, ...], Field(exclude=True)] = ()
    account: Annotated[Account, Field(exclude=True, repr=False)] = Account()

    @property
    def place(self) -> Place:
        """The row's own place."""
        return Place(self.file, self.line, self.column, f"amis.{self.index}")

    def without(self, *names: str) -> Row:
        """The row without the origins of fields that are set elsewhere (the command line)."""
        origins = {name: place for name, place in self.origins.items() if name not in names}
        return self.changed(origins=origins)

    def has(self, name: str) -> bool:
        """Return True if the row itself, rather than its stack or a default, sets this field."""
        return name in self.origins and self.origins[name].path.startswith(f"amis.{self.index}.")

    def place_of(self, *names: str) -> Place:
        """Return the place for a finding about these fields.

        That is the first field which the row itself sets, since stack and defaults serve other
        rows too; otherwise the first that is set anywhere; otherwise the row.
        """
        settings = [name for name in names if name in self.origins]
        own = [name for name in settings if self.has(name)]
        return self.origins[(own or settings)[0]] if settings else self.place


class Recipe(Stack):
    """One AMI. Every field but `row` goes into the digest.

    `name` is the AMI's, with its versions; `line` names its folder and stays when they change.
    A GPU stack field that is None means that the component is not on the image.
    `package_snapshot` None means the distribution's archive as it is on the day of the bake.
    `telemetry` has the settings that the matrix sets, `volume` all of them.
    """

    name: Annotated[str, vocabulary.RECIPE_NAME]
    line: str
    distro: Distro
    arch: Arch
    flavor: Flavor
    stack: str
    source_ami: SourceAmi
    driver: Driver
    driver_source: DriverSource = "repo"
    kernel_module: KernelModule
    imex: bool = False
    components: tuple[str, ...]
    instance_type: InstanceType
    verify_instance_type: InstanceType
    target_instance_types: tuple[InstanceType, ...] = ()
    volume: Volume = Volume()
    kubernetes: Kubernetes | None = None
    parallelcluster: Release | None = None
    telemetry: dict[str, Any] = {}
    mig_config: Label | None = None
    extended_support: bool = False
    row: Row

    @field_validator("driver_source", "imex", "extended_support", mode="before")
    @classmethod
    def _default_of_null(cls, value: Any, info: ValidationInfo) -> Any:
        return cls.model_fields[str(info.field_name)].default if value is None else value

    @property
    def channel_line(self) -> str:
        """The line that consumers follow, as in names of parameters: al2023/lts/base/x86_64."""
        tail = f"-{self.flavor}-{self.arch}"
        stack = self.line.removeprefix(f"{self.distro.id}-").removesuffix(tail)
        return f"{self.distro.id}/{stack}/{self.flavor}/{self.arch}"

    def to_dict(self) -> dict[str, Any]:
        """The recipe as plain data; `Recipe.model_validate` reads it."""
        return self.model_dump(mode="json")

    def digest(self, files: dict[str, bytes] | None = None) -> str:
        """SHA-256 over the recipe and the files it bakes in, as hex.

        `files` maps a path in the checkout to its content. The row's place in the matrix does not
        count: moving a line does not make another AMI.
        """
        data = self.model_dump(mode="json", exclude={"row"})
        total = hashlib.sha256(json.dumps(data, sort_keys=True).encode())
        for path, content in sorted((files or {}).items()):
            total.update(path.encode() + b"\0" + hashlib.sha256(content).digest())
        return total.hexdigest()
