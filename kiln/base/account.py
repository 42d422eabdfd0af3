"""How builds use an AWS account: the `aws` block of the matrix, with what flags and environment
replace in it.

It says nothing about what is on an image, so it is not part of a recipe or of its digest.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

# Of AWS's own tools, in the order in which they count.
REGION_VARIABLES = ("AWS_REGION", "AWS_DEFAULT_REGION")


@dataclass(frozen=True)
class SubnetFilter:
    """How to find a subnet: EC2's filters, and which to take of several matches."""

    filters: Mapping[str, str]
    most_free: bool = False
    random: bool = False


@dataclass(frozen=True)
class Account:
    """The settings of one build. `origins` maps each that is set to where that is: file and line,
    a flag, or a variable of the environment; of a mapping, each key (`tags.owner`)."""

    region: str | None = None
    subnet_id: str | None = None
    # Tried in order when EC2 has no capacity.
    subnet_ids: tuple[str, ...] = ()
    subnet_filter: SubnetFilter | None = None
    security_group_ids: tuple[str, ...] = ()
    ssh_interface: str | None = None
    ssh_source_cidrs: tuple[str, ...] = ()
    iam_instance_profile: str | None = None
    kms_key_id: str | None = None
    # Of the recipe's arch, in the order in which they are tried.
    instance_types: tuple[str, ...] = ()
    spot: bool = False
    capacity_reservation_id: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    proxy: str | None = None
    no_proxy: tuple[str, ...] = ()
    mirrors: Mapping[str, str] = field(default_factory=dict)
    # Component, or `all` for those that are not named, → how long its provisioner may take: 90m.
    time_limits: Mapping[str, str] = field(default_factory=dict)
    # Where records of runs are kept for other machines.
    records_bucket: str | None = None
    # Of the roles of a stack (`deploy.codebuild`): a build makes none.
    permissions_boundary: str | None = None
    origins: Mapping[str, str] = field(default_factory=dict, compare=False)

    @property
    def region_of_caller(self) -> bool:
        """Whether the region is from a flag or the environment, and not from a file."""
        return self.origins.get("region") in ("--region", *REGION_VARIABLES)

    def shown(self, without: Collection[str] = ()) -> list[str]:
        """Each setting that is set, as a line: its name, its value, where it comes from."""
        return [
            f"{name} {', '.join(f'{text} ({origin})' for text, origin in parts)}"
            for name in SETTINGS
            if name not in without and (parts := list(self._parts(name)))
        ]

    def as_json(self) -> dict[str, Any]:
        """Setting → its value as text, and where it comes from."""
        return {
            name: [{"value": text, "from": origin} for text, origin in parts]
            for name in SETTINGS
            if (parts := list(self._parts(name)))
        }

    def _parts(self, name: str) -> Iterator[tuple[str, str]]:
        value = getattr(self, name)
        if isinstance(value, Mapping):
            for key, text in value.items():
                yield f"{key}={text}", self.origins.get(f"{name}.{key}", "default")
        elif name in self.origins:
            yield _as_text(value), self.origins[name]


_NOT_OF_BUILDS = ("permissions_boundary", "origins")
# Those of a build, in the order in which they are shown.
SETTINGS = tuple(name for name in Account.__dataclass_fields__ if name not in _NOT_OF_BUILDS)

# Flag → its form, for help; the settings are those of `aws`, with dashes.
FORMS = {
    "tags": "--tags team=ml,cost-center=42",
    "subnet_id": "--subnet-id subnet-0123456789abcdef0",
    "subnet_ids": "--subnet-ids subnet-0123456789abcdef0,subnet-0fedcba9876543210",
    "subnet_filter": "--subnet-filter tag:Class=build,availability-zone=eu-central-1a",
    "security_group_ids": "--security-group-ids sg-0123456789abcdef0,sg-0fedcba9876543210",
    "ssh_interface": "--ssh-interface private_ip",
    "ssh_source_cidrs": "--ssh-source-cidrs 10.0.0.0/8,192.0.2.7/32",
    "kms_key_id": "--kms-key-id alias/ami",
    "iam_instance_profile": "--iam-instance-profile kiln-builder",
    "instance_types": "--instance-types g4dn.xlarge,g5.xlarge",
    "spot": "--spot",
    "capacity_reservation_id": "--capacity-reservation-id cr-0123456789abcdef0",
    "proxy": "--proxy http://proxy.example.com:3128",
    "no_proxy": "--no-proxy .example.com,10.0.0.0/8",
    "mirrors": '--mirrors "https://developer.download.nvidia.com=https://mirror.example.com/nvidia"',
    "time_limits": "--time-limits all=3h,nvidia-driver=4h",
    "records_bucket": "--records-bucket my-kiln-records",
}


def _as_text(value: object) -> str:
    if isinstance(value, SubnetFilter):
        chosen = ["most_free"] * value.most_free + ["random"] * value.random
        return " ".join([*(f"{key}={text}" for key, text in value.filters.items()), *chosen])
    if isinstance(value, tuple):
        return " ".join(value) or "none"
    return "none" if value is None else str(value).lower() if value in (True, False) else str(value)
