"""The schema of `amis.yaml`, and messages about violations of it."""

from __future__ import annotations

import json
from datetime import date
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    field_validator,
    model_validator,
)

from kiln.base import vocabulary
from kiln.base.errors import did_you_mean
from kiln.base.findings import Finding
from kiln.base.located import Located, Path_, dotted
from kiln.base.vocabulary import (
    Arch,
    DriverSource,
    Family,
    Flavor,
    KernelModule,
    PackageManager,
)
from kiln.matrix.account import Aws, SubnetChoice
from kiln.matrix.mistakes import mistake, refused
from kiln.matrix.publishing import LaunchTemplate, Publish, Share
from kiln.telemetry.settings import Telemetry


def _text(form: vocabulary.Form) -> StringConstraints:
    return StringConstraints(pattern=form.pattern, max_length=vocabulary.LONGEST)


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

    size: int = Field(100, ge=8, le=16384, description="GiB")
    type: Literal["gp3"] = "gp3"
    iops: int = Field(3000, ge=3000, le=16000)
    throughput: int = Field(125, ge=125, le=1000, description="MiB/s")


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


def validated(document: Located, *, needs_stacks: bool = True) -> MatrixModel:
    """The matrix in a YAML document; an overlay's needs no `stacks`.

    Raises KilnError (exit status 2) with one line and one finding per mistake; each line begins
    with file:line:column.
    """
    if not isinstance(document.data, dict):
        what = "the matrix is not a mapping: it needs `stacks` and `amis`, see docs/matrix.md"
        raise refused([mistake(document.place(()), what)])
    try:
        data = document.data if needs_stacks else {"stacks": {}, **document.data}
        return MatrixModel.model_validate(data)
    except ValidationError as error:
        problems = [dict(problem) for problem in error.errors()]
        # Pydantic counts what is right: a list of one wrong value is not empty for its author.
        meant = [
            problem
            for problem in problems
            if not (problem["type"] == "too_short" and problem["input"])
        ]
        raise refused(_explain(document, problem) for problem in meant or problems) from None


def _explain(document: Located, problem: dict[str, Any]) -> Finding:
    """Where, what is wrong, the nearest valid value."""
    path = tuple(part for part in problem["loc"] if part != "[key]")
    if problem["type"] == "missing":
        return mistake(document.place(path[:-1]), f"{dotted(path)} is missing")
    is_key = "[key]" in problem["loc"] or problem["type"] == "extra_forbidden"
    place = document.key_place(path) if is_key else document.place(path)
    return mistake(place, f"{dotted(path)}{_wrong(path, problem)}")


def _wrong(path: Path_, problem: dict[str, Any]) -> str:
    """What follows the path in a message about the key or value there."""
    kind, wrong = problem["type"], problem.get("input")
    if kind == "extra_forbidden":
        key = str(path[-1])
        hint = did_you_mean(_RENAMED.get(key, key), _known_keys(path[:-1]))
        return f": there is no key {path[-1]!r} here: {hint}"
    if wrong is None:
        return " is empty: give it a value, or remove the line"
    if kind == "literal_error":
        return f": {wrong!r} is not allowed: {did_you_mean(str(wrong), _literals(problem))}"
    return f": {reason(problem, wrong)}"


def reason(problem: dict[str, Any], wrong: Any) -> str:
    """Pydantic's message in the terms of the file."""
    kind = problem["type"]
    if kind == "string_type" and problem["loc"][-1] in _VERSIONS:
        return f"{wrong!r} is not text: write the whole version, or put it in quotes"
    context = {"wrong": _short(wrong), **problem.get("ctx", {})}
    if kind == "value_error":
        return str(problem["msg"]).removeprefix("Value error, ")
    if kind == "string_pattern_mismatch":
        latest = " (latest is not allowed: name the version)" if wrong == "latest" else ""
        return f"{wrong!r} is not {vocabulary.DESCRIBED[context['pattern']]}{latest}"
    known = _WORDS.get(kind, str(problem["msg"]).lower() + " (it is {wrong})")
    return known.format(**context)


def _short(wrong: Any) -> str:
    text = repr(wrong)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


_SHOWN = 80
_WORDS = {
    "string_type": "{wrong} is not text: put it in quotes if it should be",
    "string_too_long": "is longer than {max_length} characters: {wrong}",
    "int_parsing_size": "is too large for a number: {wrong}",
    "int_type": "must be a whole number, not {wrong}",
    "int_parsing": "must be a whole number, not {wrong}",
    "int_from_float": "must be a whole number, not {wrong}",
    "model_type": "must be a mapping, like {{key: value}}, not {wrong}",
    "dict_type": "must be a mapping, like {{key: value}}, not {wrong}",
    "list_type": "must be a list, like [a, b], not {wrong}",
    "tuple_type": "must be a list, like [a, b], not {wrong}",
    "too_short": "must not be empty",
    "too_long": "has more than {max_length} entries",
    "bool_type": "must be true or false, not {wrong}",
    "bool_parsing": "must be true or false, not {wrong}",
    "greater_than_equal": "must be at least {ge}, not {wrong}",
    "less_than_equal": "must be at most {le}, not {wrong}",
    "multiple_of": "must be a multiple of {multiple_of}, not {wrong}",
}


# Old names of keys: the message proposes the new one.
_RENAMED = {"source": "parents"}
# Keys that hold versions: a number there needs quotes, or its missing part.
_VERSIONS = {*StackFields.model_fields, "kubernetes", "parallelcluster"}


def _literals(problem: dict[str, Any]) -> list[str]:
    expected = str(problem.get("ctx", {}).get("expected", ""))
    return [word.strip("' ") for word in expected.replace(" or ", ",").split(",")]


def _known_keys(path: tuple[str | int, ...]) -> list[str]:
    """The valid keys of the mapping at `path`."""
    inner: dict[str | int, type[BaseModel]] = {
        "volume": VolumeModel,
        "telemetry": Telemetry,
        "accept": AcceptModel,
        "publish": Publish,
        "share": Share,
        "aws": Aws,
        "subnet_filter": SubnetChoice,
    }
    outer: dict[str | int, type[BaseModel]] = {
        "defaults": RowSettings,
        "distros": DistroModel,
        "stacks": StackFields,
        "amis": RowModel,
    }
    if not path:
        return list(MatrixModel.model_fields)
    if "launch_templates" in path:
        return list(LaunchTemplate.model_fields)
    if "parents" in path:
        return list(SourceAmiModel.model_fields)
    named = next((part for part in reversed(path) if isinstance(part, str)), "")
    return list(inner.get(named, outer[path[0]]).model_fields)
