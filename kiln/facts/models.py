"""The tables of facts that an overlay may change, as pydantic models.

A model is validated in the context of the whole table (`whole`) and of the others (`read`), so that
a name of something else must exist. In `x: Annotated[str, placeholders(…)]` only these `{…}` are
filled in. Beside a block `x` its `x_source` and `x_confirmed` are allowed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import date
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationInfo, model_validator

from kiln.base import vocabulary
from kiln.base.account import Block
from kiln.base.errors import did_you_mean
from kiln.base.recipe import Driver, ParentImage, placeholders
from kiln.base.vocabulary import Arch, Family, Flavor, Form, PackageManager, quoted


def one_of(what: str, names: Callable[[dict[str, Any]], Iterable[str]]) -> AfterValidator:
    """Require a name of something else; `names` gets the context of the validation."""

    def check(value: str, info: ValidationInfo) -> str:
        known = list(names(info.context or {}) or ())
        if value not in known:
            hint = did_you_mean(value, known)
            raise ValueError(f"{quoted(value)}: there is no such {what}: {hint}")
        return value

    return AfterValidator(check)


def _source(text: str, info: ValidationInfo) -> str:
    """Refuse the misspelt short name of a source; anything but a single word is a source."""
    names = (info.context or {})["whole"].get("sources", {})
    for part in text.split("; ") if names else ():
        if part not in names and part not in ("none", "ours") and not set(" :/") & set(part):
            hint = did_you_mean(part, names)
            raise ValueError(f"{quoted(part)} is no entry of this table's `sources`: {hint}")
    return text


def _day(text: str) -> str:
    """A day (2028-06-30) or a month (2028-06); `<=` before it means not later."""
    day = text.removeprefix("<=")
    try:
        date.fromisoformat(day if len(day) > len("2028-06") else f"{day}-01")
    except ValueError:
        raise ValueError(f"{quoted(text)} is not a day or a month such as 2026-11-20") from None
    return text


def _measured(context: dict[str, Any]) -> Iterable[str]:
    return sorted({entry["kernel"] for entry in context["read"]("kernel_builds")["measured"]})


Source = Annotated[str, AfterValidator(_source)]
Day = Annotated[str, AfterValidator(_day)]
Series = Annotated[str, Form(r"^[0-9]+\.[0-9]+$", "a series such as '6.12'")]
Branch = Annotated[str, Form(r"^[0-9]{3}$", "a driver's branch such as '580'")]
PciId = Annotated[str, Form(r"^[0-9a-f]{4}$", "a PCI device id such as '2330'")]
Fingerprint = Annotated[
    str, Form(r"^[0-9A-F]{40}$", "a primary fingerprint: 40 capital hexadecimal digits")
]
RepositoryName = Annotated[
    str, Form(r"^[a-z0-9][a-z0-9.-]*$", "a repository's name such as nvidia-cuda")
]
Module = Literal["open", "proprietary"]
GpuName = Annotated[
    str, one_of("GPU in instances.yaml", lambda context: context["read"]("instances")["gpus"])
]
CudaRepo = Annotated[
    str, one_of("repository in cuda.yaml", lambda context: context["read"]("cuda")["repos"])
]
MeasuredKernel = Annotated[str, one_of("kernel in kernel_builds.yaml", _measured)]
_OF_ARCHIVE = ("arch", "codename", "deb", "distro", "nvidia", "os", "release", "uname")
_OF_DOWNLOAD = ("arch", "archive", "deb", "distro", "family", "nvidia", "os", "repo", "uname")
_OF_RECIPE = (*_OF_DOWNLOAD, "branch", "version")
ArchiveText = Annotated[str, placeholders(*_OF_ARCHIVE)]
VendorText = Annotated[str, placeholders(*_OF_ARCHIVE, "url")]
PackageText = Annotated[
    str,
    placeholders(*_OF_RECIPE, "cuda_major", "cuda_package", "cuda_series", "driver_cuda", "module"),
]
# A URL of an overlay's component.
OwnUrl = Annotated[str, placeholders(*_OF_DOWNLOAD)]
# Conditions of a row of names or URLs: `from` and `below` compare the version, others a field.
When = dict[
    Literal["from", "below", "arch", "archive", "distro", "family", "module", "os"],
    str | list[str],
]


class Fact(Block):
    """A fact with its source; `unsure` names unconfirmed fields of a confirmed one."""

    source: Source | None = None
    confirmed: bool = True
    unsure: tuple[str, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _without_side_notes(cls, data: Any, info: ValidationInfo) -> Any:
        if not isinstance(data, Mapping):
            return data
        for key, text in data.items():
            if str(key).endswith("_source"):
                _source(str(text), info)
        notes = ("_source", "_sources", "_confirmed")
        return {key: value for key, value in data.items() if not str(key).endswith(notes)}


class Table(Fact):
    """A file of facts. `schema` names its kind, `as_of` the day on which it was read."""

    kind: str = Field("", alias="schema")
    as_of: Day | None = None
    sources: dict[str, str] = {}


# ------------------------------------------------------------------- instances.yaml


class Prefers(Block):
    module: Module
    options: tuple[str, ...] = ()


class Gpu(Fact):
    ec2_name: str
    product: str
    arch: str
    compute_capability: Series
    memory_mib: int
    mig: bool
    open_modules: Literal["supported", "required", "unsupported"]
    pci_device_ids: tuple[PciId, ...]
    application_clocks: tuple[int, int] | None = None
    auto_boost: bool = False
    prefers: Prefers | None = None


class NvSwitch(Fact):
    pci_device_id: PciId
    count: int


class GpuInstance(Fact):
    type: Annotated[str, vocabulary.INSTANCE_TYPE]
    gpu: Annotated[str, one_of("GPU in instances.yaml", lambda context: context["whole"]["gpus"])]
    count: int
    arch: Arch
    vcpus: int
    memory_mib: int
    network_cards: int
    efa: int
    efa_cards: tuple[int, ...] | None = None
    gpu_memory_mib: int | None = None
    fractional: bool = False
    grid_driver: bool = False
    nvswitch: bool = False
    nvlsm: bool = False
    imex: bool = False
    offered: bool = True


class Instances(Table):
    gpus: dict[str, Gpu]
    nvswitches: dict[str, NvSwitch]
    types: tuple[GpuInstance, ...]


# ------------------------------------------------------------------- drivers.yaml


class DriverBranch(Fact):
    kind: Literal["LTS", "PB", "NFB"] | None
    released: str
    end_of_life: Day | None
    native_cuda: Series
    modules: tuple[Module, ...]
    versions: dict[Driver, Day | None]
    betas: dict[Driver, Day] = {}


def _known_branches(branches: dict[str, DriverBranch]) -> dict[str, DriverBranch]:
    for name, branch in branches.items():
        for version in (*branch.versions, *branch.betas):
            if not version.startswith(f"{name}."):
                raise ValueError(f"{version} is not of branch {name}")
    return branches


class Architecture(Fact):
    last_branch: Branch
    last_cuda_major: str


class GpuDrivers(Fact):
    first_branch: Branch
    known_from: str | None = None
    unknown_before: str | None = None
    used_by_aws_from: str | None = None


class MinimumKernel(Fact):
    from_branch: Branch
    kernel: Series


class NvlsmRelease(Fact):
    driver: Driver | None = None


class Nvlsm(Fact):
    program: str
    versions: dict[str, NvlsmRelease]


class VersionUrl(Fact):
    url: Annotated[str, placeholders("version")]


class Drivers(Table):
    branches: Annotated[dict[Branch, DriverBranch], AfterValidator(_known_branches)]
    architectures: dict[str, Architecture]
    gpus: dict[GpuName, GpuDrivers]
    minimum_kernel: tuple[MinimumKernel, ...]
    fabricmanager: dict[Literal["first_arm64", "first_tar_xz", "source"], str]
    nvlsm: Nvlsm
    urls: dict[str, VersionUrl]


# ------------------------------------------------------------------- cuda.yaml, efa.yaml, nccl.yaml


class CudaRelease(Fact):
    driver: Driver | None


class CudaRepository(Fact):
    arches: tuple[Arch, ...]
    first: dict[Arch, str] = {}
    last: str | None = None
    drivers: dict[Literal["first", "last"], Branch] = {}


class CudnnBuilds(Fact):
    since: str = Field(alias="from")
    majors: tuple[str, ...]


class LateLibrary(Fact):
    repo: str
    library: str
    first: str


class MissingCudnn(Fact):
    repo: str
    since: str = Field(alias="from")


class KnownGood(Fact):
    name: str
    check: dict[str, Any]
    other_cuda: tuple[str, ...] = ()
    other_kubernetes: tuple[str, ...] = ()


class Cuda(Table):
    floors: dict[str, Driver]
    releases: dict[str, CudaRelease]
    repos: dict[str, CudaRepository]
    cudnn: tuple[CudnnBuilds, ...]
    libraries_late: tuple[LateLibrary, ...]
    cudnn_missing: tuple[MissingCudnn, ...]
    known_good: tuple[KnownGood, ...]


class EfaRelease(Fact):
    date: str | None = None
    libfabric: str | None = None
    rdma_core: str | None = None
    driver: str | None = None
    ofi_nccl: str | None = None


class EfaDistribution(Fact):
    first: str | None = None
    last: str | None = None


class EfaForDriver(Fact):
    driver_branch: Branch
    installer: str


class EfaForKernel(Fact):
    installer: str
    kernel: Series


class Efa(Table):
    releases: dict[str, EfaRelease]
    os: dict[str, EfaDistribution]
    bundles_plugin_from: dict[Arch, str]
    bundles_plugin_on: dict[Arch, tuple[str, ...]]
    gdr: tuple[EfaForDriver, ...]
    minimum_kernel: tuple[EfaForKernel, ...]


class NcclRelease(Fact):
    date: Day
    cuda: tuple[str, ...] | None


class NcclPackages(Fact):
    library: Annotated[str, placeholders("series", "version")]
    headers: Annotated[str, placeholders("series", "version")]


class PluginMinimum(Fact):
    since: str = Field(alias="from")
    nccl: str


class Nccl(Table):
    versions: dict[str, NcclRelease]
    packages: dict[Literal["deb", "rpm"], NcclPackages]
    plugin: tuple[PluginMinimum, ...]
    plugin_cuda13: str


# ------------------------------------------------------------------- distros.yaml


class Snapshots(Fact):
    kind: Literal["releasever", "apt"]
    form: str
    what: str
    first: str = Field("", alias="from")
    lines: tuple[Annotated[str, placeholders("codename", "snapshot")], ...] = ()


class Extended(Block):
    name: str
    until: Day
    automatic: bool


class KernelSeries(Fact):
    series: Series
    parameter: str | None = None
    packages: tuple[Annotated[str, vocabulary.PACKAGE], ...] = ()
    release: str | None = None
    measured: MeasuredKernel | None = None
    proxy: MeasuredKernel | None = None
    rolls: bool = False


class Kernels(Block):
    default: str
    entries: dict[str, KernelSeries]

    @model_validator(mode="after")
    def _default_exists(self) -> Kernels:
        if self.default not in self.entries:
            hint = did_you_mean(self.default, self.entries)
            raise ValueError(f"default: there is no entry {self.default!r}: {hint}")
        return self


_End = Annotated[str, placeholders("cuda_repo", "last_cuda", "last_driver", "last_efa")]
_SnapshotName = Annotated[
    str,
    one_of("entry of `package_snapshots`", lambda context: context["whole"]["package_snapshots"]),
]


class Distribution(Fact):
    name: Annotated[str, vocabulary.NAME]
    vendor: str
    family: Family | None = None
    package_manager: PackageManager
    ssh_user: Annotated[str, vocabulary.USER] | None = None
    root_device: Annotated[str, vocabulary.DEVICE] | None = None
    codename: Annotated[str, vocabulary.CUDA_REPO] | None = None
    cuda_repo: CudaRepo
    parents: dict[Flavor, ParentImage] = {}
    tried: dict[Flavor, tuple[Arch, ...]] = {}
    end_of_life: Day
    extended: Extended | None = None
    past_end_of_life: Literal["warning"] | None = None
    end_means: _End | None = None
    glibc: Series | None = None
    kernels: Kernels | None = None
    package_snapshot: _SnapshotName | None = None
    packaged_drivers: dict[Branch, Driver] = {}
    open_only_from: Branch | None = None

    @model_validator(mode="after")
    def _complete_for_a_bake(self) -> Distribution:
        needed = ["family", "ssh_user", "root_device", "kernels"]
        needed += ["codename"] if self.family == "debian" else []
        lacking = [name for name in needed if getattr(self, name) is None]
        if self.parents and lacking:
            raise ValueError(
                f"lacks {', '.join(lacking)}, which a distribution with `parents` needs: "
                "docs/add-a-distribution.md says what each is"
            )
        return self


class FlavorOnDistribution(Block):
    first: str | None = None
    last: str | None = None
    removed: str | None = None
    ended: Day | None = None


class KernelFrom(Block):
    since: str = Field(alias="from")
    kernel: str


class FlavorFacts(Fact):
    kubernetes: dict[str, dict[Literal["standard", "extended"], Day]] = {}
    needs_cluster: tuple[str, ...] = ()
    os: dict[str, FlavorOnDistribution]
    arches: tuple[Arch, ...] = ()
    kernels: dict[str, str | tuple[KernelFrom, ...]] = {}
    disk: int
    brings: dict[str, dict[Literal["driver", "efa"], str]] = {}


class Distros(Table):
    package_snapshots: dict[str, Snapshots]
    distros: dict[Annotated[str, vocabulary.ID], Distribution]
    flavors: dict[Flavor, FlavorFacts]


# ------------------------------------------------------------------- where packages come from


class Archive(Fact):
    when: When
    name: RepositoryName
    kind: Literal["apt", "rpm"]
    url: ArchiveText | None = None
    mirror_list: ArchiveText | None = None
    suites: tuple[ArchiveText, ...] = ()
    components: tuple[str, ...] = ()
    keys: str
    signed: bool = True


class VendorRepository(Block):
    url: VendorText
    suites: tuple[VendorText, ...] = ()
    components: tuple[str, ...] = ()
    only: tuple[str, ...] = ()


class Vendor(Fact):
    name: RepositoryName
    apt: VendorRepository | None = None
    rpm: VendorRepository | None = None


class ArchiveKeys(Fact):
    fingerprints: tuple[Fingerprint, ...]
    file: str | None = None
    url: str | None = None


class Archives(Table):
    archives: tuple[Archive, ...]
    vendors: dict[str, Vendor]
    keys: dict[str, ArchiveKeys]


class Repository(Fact):
    when: When = {}
    url: Annotated[str, placeholders(*_OF_RECIPE)]


class VendorFile(Fact):
    when: When = {}
    url: Annotated[str, placeholders(*_OF_RECIPE, "build")]
    version: str | None = None


class Downloads(Table):
    processors: dict[Arch, dict[Literal["uname", "deb", "nvidia"], str]]
    repositories: dict[str, tuple[Repository, ...]]
    downloads: dict[str, tuple[VendorFile, ...]]


class PackageNames(Fact):
    when: When = {}
    names: tuple[PackageText, ...]
    unversioned: tuple[PackageText, ...] = ()
    built_for: PackageText = ""


class PackagesTable(Table):
    packages: dict[str, tuple[PackageNames, ...]]
    streams: dict[str, dict[Module | Literal["source"], Annotated[str, placeholders("branch")]]]
    lustre: dict[Literal["topics", "source"], str | dict[str, str]]
    lacks: dict[str, dict[str, dict[Literal["why", "source"], str]]]


class SigningKey(Fact):
    fingerprint: Fingerprint
    signs: str
    sources: tuple[str, ...] = ()


class Keys(Table):
    keys: dict[str, SigningKey]


class Checksums(Table):
    files: tuple[PublishedFile, ...]


class PublishedFile(Block):
    url: Annotated[str, placeholders("version")]
    source: str | dict[str, str]
    sha256: dict[str, Annotated[str, vocabulary.SHA256]]
    confirmed: bool = True

    @model_validator(mode="after")
    def _each_has_a_source(self) -> PublishedFile:
        if isinstance(self.source, dict) and (lacking := self.sha256.keys() - self.source.keys()):
            raise ValueError(f"source: names no source of the hash of {', '.join(sorted(lacking))}")
        return self


# Each table that an overlay may change, by the name of its file.
TABLES: dict[str, type[Table]] = {
    "archives": Archives,
    "checksums": Checksums,
    "cuda": Cuda,
    "distros": Distros,
    "downloads": Downloads,
    "drivers": Drivers,
    "efa": Efa,
    "instances": Instances,
    "keys": Keys,
    "nccl": Nccl,
    "packages": PackagesTable,
}
