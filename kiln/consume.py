"""Documents that launch a channel's image: what each kind of team pastes or applies.

A `LaunchRequest` holds what is asked for, a `Kind` the template of templates/consume that prints
it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, InstanceOf, ValidationError

from kiln import facts
from kiln.base import vocabulary
from kiln.base.errors import KilnError, did_you_mean, operation_failed
from kiln.base.recipe import Recipe
from kiln.base.tags import CHANNEL, LINE, MIG_CONFIG, PARENT_CHANNEL, PARENT_LINE
from kiln.base.templates import render
from kiln.cloud import aws
from kiln.cloud.target import Target
from kiln.compat.which import rows_for
from kiln.facts import InstanceType
from kiln.mig.k8s import k8s_configuration, operator_values, plugin_values
from kiln.publish import channels, lines

# `mig_config` of a row whose GPUs stay whole.
_WHOLE = (None, "none", "all-disabled")
# https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_CreatePlacementGroup.html
_PLACEMENT_GROUP = vocabulary.Form(vocabulary.TAG_VALUE.pattern, "the name of a placement group")


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
    region: Annotated[str, vocabulary.REGION]
    recipe: InstanceOf[Recipe]
    instance_types: tuple[InstanceOf[InstanceType], ...]
    label: str | None = None
    strategy: Literal["single", "mixed"] = "mixed"
    image_id: str | None = None
    owner: Literal["ami", "operator"] = "ami"
    # Argo makes a list of as many items before it starts the first.
    jobs: int | None = Field(default=None, ge=1, le=10_000)
    instance_profile: Annotated[str, vocabulary.INSTANCE_PROFILE] = ""
    placement_group: Annotated[str, _PLACEMENT_GROUP] = ""
    capacity_reservation: Annotated[str, vocabulary.RESERVATION_ID] = ""
    capacity_block: Annotated[str, vocabulary.RESERVATION_ID] = ""

    @property
    def instance_type(self) -> InstanceType:
        """The first instance type; most documents have one."""
        return self.instance_types[0]

    @property
    def by_type(self) -> list[LaunchRequest]:
        """A copy of the request for each of its instance types alone."""
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
        """Return the first comment of a document."""
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
        devices = [(0, 0, "interface")]
        devices += [(card, 0 if card else 1, "efa-only") for card in kind.efa_cards]
        names = ("NetworkCardIndex", "DeviceIndex", "InterfaceType")
        return [dict(zip(names, device, strict=True)) for device in devices]

    def launch_data(self, groups: Any, metadata_tags: str = "enabled") -> dict[str, Any]:
        """Return the LaunchTemplateData that all documents share: IMDSv2, root disk, tags, network.

        `groups` are the security groups, or what stands for them. Two hops let containers reach
        IMDS. With EFA the groups must allow all traffic within themselves.
        """
        tags = [{"Key": key, "Value": value} for key, value in self.tags.items()]
        root_disk = {
            "VolumeSize": self.recipe.volume.size,
            "VolumeType": "gp3",
            "Encrypted": True,
            "DeleteOnTermination": True,
        }
        data: dict[str, Any] = {
            "MetadataOptions": {
                "HttpTokens": "required",
                "HttpPutResponseHopLimit": 2,
                "InstanceMetadataTags": metadata_tags,
            },
            "BlockDeviceMappings": [
                {"DeviceName": self.recipe.distro.root_device, "Ebs": root_disk}
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
        """Return LaunchTemplateData, or with a subnet the same for RunInstances, with the account's
        settings.

        https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/capacity-blocks-launch.html
        """
        data: dict[str, Any] = {
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


def launch_request(
    line: str,
    channel: str,
    region: str,
    *,
    instance_types: str | None = None,
    label: str | None = None,
    row: lines.Line | None = None,
    **settings: Any,
) -> LaunchRequest:
    """Return the request that flags ask for; `settings` are further fields, None for their default.

    Without instance types (names with commas between) the request has the one that verifies the
    row, without a label the layout that the image makes by itself. `row` is the line's, if known.
    """
    row = row or lines.load_line(line)
    lines.require_channel(channel, row.settings)
    types = tuple(
        facts.instance(name)
        for name in dict.fromkeys((instance_types or row.recipe.verify_instance_type).split(","))
    )
    if label is None and types[0].mig and row.recipe.mig_config not in _WHOLE:
        label = row.recipe.mig_config
    try:
        wanted = LaunchRequest(
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
        why = first["msg"].removeprefix("Value error, ")
        raise KilnError(f"--{flag}: {why}") from None
    if wanted.capacity_reservation and wanted.capacity_block:
        raise KilnError("instances start in a capacity reservation or in a block, not both")
    _require_served_types(wanted)
    return wanted


def _require_served_types(wanted: LaunchRequest) -> None:
    row = wanted.recipe.changed(mig_config=wanted.label) if wanted.label else wanted.recipe
    for kind in wanted.instance_types:
        hint = f"./invoke which --instance-type {kind.type} names the rows that serve it"
        if kind.arch != row.arch:
            raise KilnError(
                f"{kind.type} has a processor of {kind.arch}, {wanted.line} is for {row.arch}",
                hint=hint,
            )
        if wanted.label is not None:
            k8s_configuration(wanted.label, wanted.strategy, instance_type=kind.type)
        answer = rows_for(kind.type, [row])
        if answer["does_not"]:
            reasons = "; ".join(answer["does_not"][0]["reasons"])
            raise KilnError(f"{wanted.line} does not serve {kind.type}: {reasons}", hint=hint)


def pinned(target: Target, wanted: LaunchRequest) -> LaunchRequest:
    """Return the request with the AMI id that the channel holds in the target's region."""
    held = channels.held(target, wanted.line, wanted.channel)
    if held is None:
        raise operation_failed(
            f"{wanted.channel} of {wanted.line} holds nothing in {target.region}",
            hint="./invoke channels shows what is where",
        )
    return wanted.model_copy(update={"region": target.region, "image_id": held.image_id})


@dataclass(frozen=True)
class Kind:
    """A kind of document; `template` is its file in templates/consume.

    It takes the flags in `options`, and images of one `flavor` and of `distros`, which has the
    reader's name of each; empty for all. With `needs_id` the reader resolves no parameter, so the
    document holds an AMI's id.
    """

    template: str
    summary: str
    options: tuple[str, ...] = ()
    flavor: str = ""
    distros: Mapping[str, str] = field(default_factory=dict)
    needs_id: bool = False
    several_types: bool = False

    @property
    def name(self) -> str:
        """The name, as `--for` takes it: that of the template."""
        return self.template.partition(".")[0]

    def require_flags(self, flags: Mapping[str, object]) -> None:
        """Refuse a flag, by its name in the command line, that the document has no place for."""
        for flag, used in flags.items():
            if used and flag not in self.options:
                takers = ", ".join(kind.name for kind in KINDS.values() if flag in kind.options)
                raise KilnError(f"{self.name} takes no {flag}", hint=f"those that do: {takers}")

    def document(self, wanted: LaunchRequest, *, template: str = "") -> str:
        """Return the document for a request, or another `template` of the kind."""
        self.require_request(wanted)
        kubernetes = facts.table("mig-kubernetes")
        return render(
            f"consume/{template or self.template}.j2",
            wanted=wanted,
            kind=self,
            distro=self.distros.get(wanted.recipe.distro.id, ""),
            partition=aws.partition(wanted.region),
            kubernetes_arch=vocabulary.DEB_ARCH[wanted.recipe.arch],
            plugin_values=plugin_values(wanted.strategy if wanted.label else "none"),
            mig_config=MIG_CONFIG,
            parent_line=PARENT_LINE,
            parent_channel=PARENT_CHANNEL,
            node_label=kubernetes["node_label"],
            operator_version=kubernetes["charts"]["gpu-operator"]["version"],
        )

    def require_request(self, wanted: LaunchRequest) -> None:
        """Refuse a line, a layout or several instance types that the kind is not for."""
        if self.flavor not in ("", wanted.recipe.flavor):
            raise KilnError(
                f"{self.name} takes images of flavor {self.flavor}; {wanted.line} is of flavor "
                f"{wanted.recipe.flavor}",
                hint="./invoke channels names the lines",
            )
        if self.distros and wanted.recipe.distro.id not in self.distros:
            raise KilnError(
                f"{self.name} takes images of distribution {' or '.join(self.distros)}",
                hint="./invoke channels names the lines",
            )
        if wanted.label and self.flavor == "ecs":
            # https://github.com/aws/containers-roadmap/issues/1775
            raise KilnError(
                f"{self.name} takes no MIG layout ({wanted.label}): ECS gives out whole GPUs, "
                "not slices"
            )
        if len(wanted.instance_types) > 1 and not self.several_types:
            raise KilnError(
                f"{self.name} is for one instance type, not {len(wanted.instance_types)}",
                hint="run consume for each; --for parallelcluster takes several",
            )


_PLACED = ("--placement-group",)
_RESERVED = (*_PLACED, "--capacity-reservation", "--capacity-block")
_ALL = ("--instance-profile", *_RESERVED)
_ARGO = ("--jobs", "--walkthrough")
_CFN = "CloudFormation"
# Nodes that nodeadm sets up; EKS's other images want another user data.
_NODEADM = {"al2023": "AL2023"}
# https://docs.aws.amazon.com/batch/latest/APIReference/API_Ec2Configuration.html
_BATCH = {"al2": "ECS_AL2_NVIDIA", "al2023": "ECS_AL2023_NVIDIA"}
# https://docs.aws.amazon.com/parallelcluster/latest/ug/Image-section-v3.html
_PARALLELCLUSTER = {
    "al2": "alinux2",
    "al2023": "alinux2023",
    **{name: name for name in ("ubuntu2204", "ubuntu2404", "rhel8", "rhel9", "rocky8", "rocky9")},
}
_JSON = "the same for aws ec2 create-launch-template --cli-input-json"
_NODES = f"self-managed EKS nodes ({_CFN})"
_QUEUE = f"compute environment and queue ({_CFN})"
_KINDS = (
    Kind("launch-template.yaml", f"EC2 launch template ({_CFN})", _ALL),
    Kind("launch-template-json.json", _JSON, _ALL),
    Kind("cloudformation.yaml", f"Auto Scaling group ({_CFN})", _ALL),
    Kind("cli.sh", "aws ec2 run-instances", _ALL),
    Kind("terraform.tf", "launch template and Auto Scaling group", _ALL),
    Kind("packer.pkr.hcl", "a template on top of the image"),
    Kind("karpenter.yaml", "EC2NodeClass and NodePool", _ALL, "eks", _NODEADM),
    Kind("eksctl.yaml", "managed node group of eksctl", _RESERVED, "eks", _NODEADM, needs_id=True),
    Kind("eks-managed-nodegroup.yaml", f"EKS node group ({_CFN})", _RESERVED, "eks", _NODEADM),
    Kind("eks-self-managed.yaml", _NODES, _ALL, "eks", _NODEADM),
    Kind("gpu-operator.yaml", "values of the chart gpu-operator", ("--owner",), "eks"),
    Kind("device-plugin.yaml", "values of nvidia-device-plugin", (), "eks"),
    Kind("argo.yaml", "Argo Workflow over the slices", _ARGO, "eks", _NODEADM),
    Kind("ecs.yaml", f"capacity provider and task ({_CFN})", _ALL, "ecs"),
    Kind("batch.yaml", _QUEUE, _PLACED, "ecs", _BATCH),
    Kind(
        "parallelcluster.yaml",
        "cluster file",
        flavor="parallelcluster",
        distros=_PARALLELCLUSTER,
        needs_id=True,
        several_types=True,
    ),
)
KINDS = {kind.name: kind for kind in _KINDS}


def kind_named(name: str) -> Kind:
    """Return the kind with a name."""
    if name not in KINDS:
        raise KilnError(
            f"unknown format {name!r}",
            hint=did_you_mean(name, KINDS, listed_by="./invoke consume --list"),
        )
    return KINDS[name]
