"""The launch request that a document is written for: validated once, printed by a template."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    InstanceOf,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from kiln import facts
from kiln.base import vocabulary
from kiln.base.errors import KilnError
from kiln.base.recipe import Recipe
from kiln.base.tags import CHANNEL, LINE, MIG_CONFIG
from kiln.cloud import aws
from kiln.compat.which import rows_for
from kiln.facts import InstanceType
from kiln.mig.k8s import k8s_configuration, operator_values, plugin_values
from kiln.publish import channels, line_flags

# `mig_config` of a row whose GPUs stay whole.
_WHOLE = (None, "none", "all-disabled")
_FORMS = {
    "region": vocabulary.REGION,
    "instance_profile": vocabulary.INSTANCE_PROFILE,
    # https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_CreatePlacementGroup.html
    "placement_group": vocabulary.Form(
        vocabulary.TAG_VALUE.pattern, "the name of a placement group"
    ),
    "capacity_reservation": vocabulary.RESERVATION_ID,
    "capacity_block": vocabulary.RESERVATION_ID,
}


class LaunchRequest(BaseModel):
    """A line, a channel, instance types, a MIG layout, and the names of an account.

    `image_id` is None where the document follows the channel by itself. `label` is the MIG layout
    that machines make at boot, None for whole GPUs; `strategy` is how Kubernetes shows its slices,
    `owner` makes them: the AMI's gpu-mig, or the GPU operator. `jobs` is None for one job on each
    slice of a node.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    line: str
    channel: str
    region: str
    recipe: InstanceOf[Recipe]
    instance_types: tuple[InstanceOf[InstanceType], ...]
    label: str | None = None
    strategy: Literal["single", "mixed"] = "mixed"
    image_id: str | None = None
    owner: Literal["ami", "operator"] = "ami"
    # Argo makes a list of as many items before it starts the first.
    jobs: int | None = Field(default=None, ge=1, le=10_000)
    instance_profile: str = ""
    placement_group: str = ""
    capacity_reservation: str = ""
    capacity_block: str = ""

    @field_validator(*_FORMS)
    @classmethod
    def _require_form(cls, value: str, info: ValidationInfo) -> str:
        name = str(info.field_name)
        return _FORMS[name].required(value, f"--{name.replace('_', '-')}")

    @model_validator(mode="after")
    def _require_one_market(self) -> LaunchRequest:
        if self.capacity_reservation and self.capacity_block:
            raise KilnError("instances start in a capacity reservation or in a block, not both")
        return self

    @model_validator(mode="after")
    def _require_served_types(self) -> LaunchRequest:
        row = self.recipe.changed(mig_config=self.label) if self.label else self.recipe
        for kind in self.instance_types:
            hint = f"./invoke which --instance-type {kind.type} names the rows that serve it"
            if kind.arch != self.recipe.arch:
                raise KilnError(
                    f"{kind.type} has a processor of {kind.arch}, {self.line} is for "
                    f"{self.recipe.arch}",
                    hint=hint,
                )
            if self.label is not None:
                k8s_configuration(self.label, self.strategy, instance_type=kind.type)
            answer = rows_for(kind.type, [row])
            if answer["does_not"]:
                reasons = "; ".join(answer["does_not"][0]["reasons"])
                raise KilnError(f"{self.line} does not serve {kind.type}: {reasons}", hint=hint)
        return self

    @property
    def instance_type(self) -> InstanceType:
        """The first instance type; most documents have one."""
        return self.instance_types[0]

    @property
    def by_type(self) -> list[LaunchRequest]:
        """The same request for each instance type alone."""
        return [self.model_copy(update={"instance_types": (kind,)}) for kind in self.instance_types]

    @property
    def parameter(self) -> str:
        """The name of the parameter that holds the channel's AMI id."""
        return channels.image_parameter(self.line, self.channel)

    @property
    def image(self) -> str:
        """The image as RunInstances and launch templates take it."""
        return self.image_id or f"resolve:ssm:{self.parameter}"

    @property
    def name(self) -> str:
        """The name of the resources, unique for each line and channel: gpu-al2023-lts-eks."""
        distro, stack, flavor, arch = self.line.split("/")
        parts = ["gpu", distro, stack, flavor]
        parts += ["arm64"] if arch == "arm64" else []
        parts += [self.channel] if self.channel != "stable" else []
        return "-".join(parts).replace("_", "-")

    def title(self, what: str) -> str:
        """The first comment of a document."""
        held = f"channel {self.channel}" + (f" ({self.image_id})" if self.image_id else "")
        return f"{what}: {self.line}, {held}, on {self.instance_type.type}"

    @property
    def tags(self) -> dict[str, str]:
        """The tags of the instances, with their MIG layout."""
        own = {"Name": self.name, LINE: self.line, CHANNEL: self.channel}
        return own | ({MIG_CONFIG: self.label} if self.label else {})

    @property
    def layout(self) -> str:
        """The comment in user data from which gpu-mig reads the layout; "" for whole GPUs."""
        return f"# {MIG_CONFIG}={self.label}" if self.label else ""

    @property
    def reservation(self) -> str:
        """The id of the capacity reservation or block."""
        return self.capacity_reservation or self.capacity_block

    @property
    def system_type(self) -> str:
        """An instance type without a GPU, for what a cluster runs besides its jobs."""
        return "m6i.large" if self.recipe.arch == "x86_64" else "m6g.large"

    @property
    def deb_arch(self) -> str:
        """The processor as Kubernetes calls it."""
        return vocabulary.DEB_ARCH[self.recipe.arch]

    @property
    def partition(self) -> str:
        """The region's partition, as in ARNs."""
        return aws.partition(self.region)

    @property
    def cards(self) -> list[dict[str, Any]]:
        """The network interfaces of an instance type with EFA, as launch templates take them.

        One has an address; one for EFA alone is on each card that can:
        https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-acc-inst-types.html
        """
        kind = self.instance_type
        if not (kind.efa and self.recipe.efa):
            return []
        if not kind.efa_published:
            raise KilnError(
                f"nobody has published which network cards of {kind.type} have EFA",
                hint="take an image without EFA, or write the cards into "
                "kiln/facts/knowledge/instances.yaml",
            )
        first = {"NetworkCardIndex": 0, "DeviceIndex": 0, "InterfaceType": "interface"}
        return [
            first,
            *(
                {
                    "NetworkCardIndex": card,
                    "DeviceIndex": 0 if card else 1,
                    "InterfaceType": "efa-only",
                }
                for card in kind.efa_cards
            ),
        ]

    def launch_data(self, groups: Any, metadata_tags: str = "enabled") -> dict[str, Any]:
        """The LaunchTemplateData that all documents share: IMDSv2, root disk, tags, network.

        `groups` are the security groups, or what stands for them. Two hops let containers reach
        IMDS. With EFA the groups must allow all traffic within themselves.
        """
        tags = [{"Key": key, "Value": value} for key, value in self.tags.items()]
        data: dict[str, Any] = {
            "MetadataOptions": {
                "HttpTokens": "required",
                "HttpPutResponseHopLimit": 2,
                "InstanceMetadataTags": metadata_tags,
            },
            "BlockDeviceMappings": [
                {
                    "DeviceName": self.recipe.distro.root_device,
                    "Ebs": {
                        "VolumeSize": self.recipe.volume.size,
                        "VolumeType": "gp3",
                        "Encrypted": True,
                        "DeleteOnTermination": True,
                    },
                }
            ],
            "TagSpecifications": [
                {"ResourceType": kind, "Tags": tags} for kind in ("instance", "volume")
            ],
        }
        if self.cards:
            more = {"Groups": groups, "DeleteOnTermination": True}
            return data | {"NetworkInterfaces": [card | more for card in self.cards]}
        return data | {"SecurityGroupIds": groups}

    def run_data(self, group: str, subnet: str | None = None) -> dict[str, Any]:
        """LaunchTemplateData, or with a subnet the same for RunInstances, with account settings.

        https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/capacity-blocks-launch.html
        """
        data = {
            "ImageId": self.image,
            "InstanceType": self.instance_type.type,
            **self.launch_data([group]),
        }
        if self.instance_profile:
            data["IamInstanceProfile"] = {"Name": self.instance_profile}
        if self.placement_group:
            data["Placement"] = {"GroupName": self.placement_group}
        if self.reservation:
            target = {"CapacityReservationId": self.reservation}
            data["CapacityReservationSpecification"] = {"CapacityReservationTarget": target}
        if self.capacity_block:
            data["InstanceMarketOptions"] = {"MarketType": "capacity-block"}
        if subnet:
            for card in data.get("NetworkInterfaces", [data]):
                card["SubnetId"] = subnet
        return data

    @property
    def node_resources(self) -> dict[str, int]:
        """The resources that a node offers to pods, with EFA."""
        kind = self.instance_type
        resources = {"nvidia.com/gpu": kind.gpu_count or 1}
        if self.label:
            answer = k8s_configuration(self.label, self.strategy, instance_type=kind.type)
            resources = dict(answer["resources"])
        return resources | ({"vpc.amazonaws.com/efa": kind.efa_interfaces} if self.cards else {})

    @property
    def slices(self) -> tuple[str, int]:
        """The resource that a job requests, and its number on a node: the most frequent slice."""
        offered = {name: n for name, n in self.node_resources.items() if "efa" not in name}
        return max(offered.items(), key=lambda pair: pair[1])

    @property
    def operator_values(self) -> dict[str, Any]:
        """The values of the chart gpu-operator."""
        strategy = self.strategy if self.label or self.owner == "operator" else "none"
        return operator_values(strategy, self.owner) | {
            "devicePlugin": {"enabled": True},
            "dcgmExporter": {"enabled": self.recipe.dcgm_exporter is None},
        }

    @property
    def plugin_values(self) -> dict[str, Any]:
        """The values of the chart nvidia-device-plugin."""
        return plugin_values(self.strategy if self.label else "none")


def launch_request(
    line: str,
    channel: str,
    region: str,
    *,
    instance_types: str | None = None,
    label: str | None = None,
    row: line_flags.LineRow | None = None,
    **settings: Any,
) -> LaunchRequest:
    """The request that flags ask for; `settings` are further fields, None for their default.

    Without instance types (names with commas between) the request has the one that verifies the
    row, without a label the layout that the image makes by itself. `row` is the line's, if known.
    """
    row = row or line_flags.row_of(line)
    line_flags.channel_of(row, channel)
    wanted = row.recipe.verify_instance_type if instance_types is None else instance_types
    names = wanted.split(",")
    if "" in names or len(set(names)) < len(names):
        raise KilnError(
            f"--instance-type {wanted}: name each instance type once",
            hint="--instance-type p5.48xlarge",
        )
    types = tuple(facts.instance(name) for name in names)
    if label is None and types[0].mig and row.recipe.mig_config not in _WHOLE:
        label = row.recipe.mig_config
    try:
        return LaunchRequest(
            line=line,
            channel=channel,
            region=region,
            recipe=row.recipe,
            instance_types=types,
            label=label,
            **{name: value for name, value in settings.items() if value is not None},
        )
    except ValidationError as error:
        first = error.errors()[0]
        flag = str(first["loc"][0]).replace("_", "-")
        raise KilnError(f"--{flag} {first['input']}: {first['msg'].lower()}") from None
