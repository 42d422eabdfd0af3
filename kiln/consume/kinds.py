"""The kinds of documents: what each is for, which lines and flags it takes, and its template."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kiln import facts
from kiln.base.errors import KilnError, did_you_mean, operation_failed
from kiln.base.tags import MIG_CONFIG, PARENT_CHANNEL, PARENT_LINE
from kiln.base.templates import render
from kiln.cloud.target import Target
from kiln.consume.request import LaunchRequest
from kiln.publish import channels

_PROFILE, _PLACEMENT = ("--instance-profile",), ("--placement-group",)
_RESERVED = ("--capacity-reservation", "--capacity-block")
_ALL = _PROFILE + _PLACEMENT + _RESERVED
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


@dataclass(frozen=True)
class Kind:
    """A kind of document; `template` is its file in templates/consume.

    `flavor` and `distros` are those it takes, empty for all; `distros` has the reader's name of
    each. With `needs_id` the reader resolves no parameter, so the document holds an AMI's id.
    `note` is for who applies a document that cannot have comments.
    """

    name: str
    summary: str
    template: str
    flavor: str = ""
    distros: Mapping[str, str] = field(default_factory=dict)
    needs_id: bool = False
    options: tuple[str, ...] = ()
    several_types: bool = False
    layouts: bool = True
    note: str = ""

    def require_flags(self, flags: Mapping[str, object]) -> None:
        """Refuse a flag, by its name in the command line, that the document has no place for."""
        refused = [flag for flag, used in flags.items() if used and flag not in self.options]
        if refused:
            takers = [kind.name for kind in KINDS.values() if refused[0] in kind.options]
            raise KilnError(
                f"{self.name} takes no {refused[0]}", hint=f"those that do: {', '.join(takers)}"
            )

    def require_request(self, wanted: LaunchRequest) -> None:
        """Refuse a line, a layout or several instance types that the kind is not for."""
        if wanted.label and not self.layouts:
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
        for what, value, supported in (
            ("flavor", wanted.recipe.flavor, [self.flavor] if self.flavor else []),
            ("distribution", wanted.recipe.distro.id, list(self.distros)),
        ):
            if supported and value not in supported:
                raise KilnError(
                    f"{self.name} takes images of {what} {' or '.join(supported)}; "
                    f"{wanted.line} is of {what} {value}",
                    hint="./invoke channels names the lines",
                )

    def document(self, wanted: LaunchRequest, *, template: str = "") -> str:
        """The document for a request, or another `template` of the kind."""
        self.require_request(wanted)
        kubernetes = facts.table("mig-kubernetes")
        return render(
            f"consume/{template or self.template}.j2",
            wanted=wanted,
            kind=self,
            distro=self.distros.get(wanted.recipe.distro.id, ""),
            mig_config=MIG_CONFIG,
            parent_line=PARENT_LINE,
            parent_channel=PARENT_CHANNEL,
            node_label=kubernetes["node_label"],
            operator_version=kubernetes["charts"]["gpu-operator"]["version"],
        )


_KINDS = (
    Kind("launch-template", f"EC2 launch template ({_CFN})", "launch-template.yaml", options=_ALL),
    Kind(
        "launch-template-json",
        "the same for aws ec2 create-launch-template --cli-input-json",
        "launch-template-json.json",
        options=_ALL,
        note="change the security group, then: "
        "aws ec2 create-launch-template --cli-input-json file://FILE",
    ),
    Kind("cloudformation", f"Auto Scaling group ({_CFN})", "cloudformation.yaml", options=_ALL),
    Kind("cli", "aws ec2 run-instances", "cli.sh", options=_ALL),
    Kind("terraform", "launch template and Auto Scaling group", "terraform.tf", options=_ALL),
    Kind("packer", "a template on top of the image", "packer.pkr.hcl"),
    Kind(
        "karpenter",
        "EC2NodeClass and NodePool",
        "karpenter.yaml",
        "eks",
        _NODEADM,
        options=_ALL,
    ),
    Kind(
        "eksctl",
        "managed node group of eksctl",
        "eksctl.yaml",
        "eks",
        _NODEADM,
        needs_id=True,
        options=_PLACEMENT + _RESERVED,
    ),
    Kind(
        "eks-managed-nodegroup",
        f"EKS node group ({_CFN})",
        "eks-managed-nodegroup.yaml",
        "eks",
        _NODEADM,
        options=_PLACEMENT + _RESERVED,
    ),
    Kind(
        "eks-self-managed",
        f"self-managed EKS nodes ({_CFN})",
        "eks-self-managed.yaml",
        "eks",
        _NODEADM,
        options=_ALL,
    ),
    Kind(
        "gpu-operator",
        "values of the chart gpu-operator",
        "gpu-operator.yaml",
        "eks",
        options=("--owner",),
    ),
    Kind("device-plugin", "values of nvidia-device-plugin", "device-plugin.yaml", "eks"),
    Kind(
        "argo",
        "Argo Workflow over the slices",
        "argo.yaml",
        "eks",
        _NODEADM,
        options=("--jobs", "--walkthrough"),
    ),
    Kind(
        "ecs",
        f"capacity provider and task ({_CFN})",
        "ecs.yaml",
        "ecs",
        options=_ALL,
        layouts=False,
    ),
    Kind(
        "batch",
        f"compute environment and queue ({_CFN})",
        "batch.yaml",
        "ecs",
        _BATCH,
        options=_PLACEMENT,
        layouts=False,
    ),
    Kind(
        "parallelcluster",
        "cluster file",
        "parallelcluster.yaml",
        "parallelcluster",
        _PARALLELCLUSTER,
        needs_id=True,
        several_types=True,
    ),
)
KINDS = {kind.name: kind for kind in _KINDS}


def kind_named(name: str) -> Kind:
    """The kind with a name."""
    if name not in KINDS:
        raise KilnError(f"there is no kind {name!r}", hint=did_you_mean(name, KINDS))
    return KINDS[name]


def pinned(target: Target, wanted: LaunchRequest) -> LaunchRequest:
    """The request with the AMI id that the channel holds in the target's region."""
    held = channels.held(target, wanted.line, wanted.channel)
    if held is None:
        raise operation_failed(
            f"{wanted.channel} of {wanted.line} holds nothing in {target.region}",
            hint="./invoke channels shows what is where",
        )
    return wanted.model_copy(update={"region": target.region, "image_id": held.image_id})
