"""A recipe: everything that decides what is on one AMI."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import date
from typing import Any

from kiln.base.account import Account
from kiln.base.findings import Place


@dataclass(frozen=True)
class SourceAmi:
    """How the parent AMI is found: a public SSM parameter, or an owner and a name filter."""

    ssm_parameter: str | None = None
    owner: str | None = None
    name: str | None = None

    def __str__(self) -> str:
        if self.ssm_parameter:
            return f"ssm:{self.ssm_parameter}"
        return f"newest of {self.owner} named {self.name}"


@dataclass(frozen=True)
class Distro:
    """A Linux distribution as EC2 offers it. `family` is al or debian."""

    id: str
    name: str
    family: str
    package_manager: str
    ssh_user: str
    root_device: str
    cuda_repo: str


@dataclass(frozen=True)
class Volume:
    """The root volume. Size in GiB, throughput in MiB/s."""

    size: int = 100
    type: str = "gp3"
    iops: int = 3000
    throughput: int = 125


@dataclass(frozen=True)
class Acceptance:
    """A warning that a row accepts: the rule, why, the last day, and where it stands."""

    rule: str
    reason: str
    until: date
    place: Place


@dataclass(frozen=True)
class Row:
    """Where in the matrix a recipe comes from, for messages; the warnings that it accepts; how its
    builds use an AWS account.

    `origins` maps a field of the recipe to the place of its value: in the row, its stack,
    `defaults` or `distros`. It lacks fields that the matrix does not set.
    """

    file: str
    line: int
    index: int
    column: int | None = None
    origins: Mapping[str, Place] = field(default_factory=dict, repr=False)
    accepted: tuple[Acceptance, ...] = ()
    account: Account = field(default_factory=Account, repr=False)

    @property
    def place(self) -> Place:
        """The row's own place."""
        return Place(self.file, self.line, self.column, f"amis.{self.index}")

    def without(self, *names: str) -> Row:
        """The row without the origins of fields that are set elsewhere (the command line)."""
        origins = {name: place for name, place in self.origins.items() if name not in names}
        return replace(self, origins=origins)

    def has(self, name: str) -> bool:
        """Does the row itself, rather than its stack or a default, set this field?"""
        return name in self.origins and self.origins[name].path.startswith(f"amis.{self.index}.")

    def place_of(self, *names: str) -> Place:
        """Where to report a finding about these fields.

        That is the first field which the row itself sets, since stack and defaults serve other
        rows too; otherwise the first that is set anywhere; otherwise the row.
        """
        settings = [name for name in names if name in self.origins]
        own = [name for name in settings if self.has(name)]
        return self.origins[(own or settings)[0]] if settings else self.place


@dataclass(frozen=True)
class Recipe:
    """One AMI. Every field but `row` goes into the digest.

    `name` is the AMI's, with its versions; `line` names its folder and stays when they change.
    A GPU stack field that is None means that the component is not on the image.
    `package_snapshot` None means the distribution's archive as it is on the day of the bake.
    """

    name: str
    line: str
    distro: Distro
    arch: str
    flavor: str
    stack: str
    source_ami: SourceAmi
    driver: str
    driver_source: str
    kernel_module: str
    kernel: str | None
    cuda: str | None
    cudnn: str | None
    nccl: str | None
    efa: str | None
    ofi_nccl: str | None
    gdrcopy: str | None
    dcgm: str | None
    dcgm_exporter: str | None
    container_toolkit: str | None
    cloudwatch_agent: str | None
    mig_parted: str | None
    nvlsm: str | None
    imex: bool
    components: tuple[str, ...]
    instance_type: str
    verify_instance_type: str
    target_instance_types: tuple[str, ...]
    volume: Volume
    kubernetes: str | None
    parallelcluster: str | None
    telemetry: dict[str, Any]
    mig_config: str | None
    extended_support: bool
    package_snapshot: str | None
    row: Row = field(compare=False)

    @property
    def cuda_series(self) -> str | None:
        """CUDA's major.minor, as in the names of its packages and folder: 11.6.2 → 11.6."""
        return ".".join(self.cuda.split(".")[:2]) if self.cuda else None

    @property
    def channel_line(self) -> str:
        """What consumers follow, as in names of parameters: al2023/lts/base/x86_64."""
        tail = f"-{self.flavor}-{self.arch}"
        stack = self.line.removeprefix(f"{self.distro.id}-").removesuffix(tail)
        return f"{self.distro.id}/{stack}/{self.flavor}/{self.arch}"

    @property
    def driver_branch(self) -> str:
        """The driver's branch: 510.47.03 → 510."""
        return self.driver.split(".", 1)[0]

    def as_json(self) -> dict[str, Any]:
        """The recipe as plain data; its row only as file, line and index."""
        row = {"file": self.row.file, "line": self.row.line, "index": self.row.index}
        return {**asdict(replace(self, row=Row("", 0, 0))), "row": row}

    def digest(self, files: dict[str, bytes] | None = None) -> str:
        """SHA-256 over the recipe and the files it bakes in, as hex.

        `files` maps a path in the checkout to its content. The row's place in the matrix does not
        count: moving a line does not make another AMI.
        """
        data = self.as_json()
        del data["row"]
        total = hashlib.sha256(json.dumps(data, sort_keys=True).encode())
        for path, content in sorted((files or {}).items()):
            total.update(path.encode() + b"\0" + hashlib.sha256(content).digest())
        return total.hexdigest()
