"""The kinds of documents: what each is for, and which lines it takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from kiln.base import vocabulary
from kiln.base.errors import KilnError, did_you_mean, operation_failed
from kiln.cloud.target import Target
from kiln.consume import argo, containers, ec2, eks, eksctl, hcl_documents, slurm
from kiln.consume.launch_options import LaunchOptions, flags_given
from kiln.consume.launch_request import LaunchRequest
from kiln.publish import channels


@dataclass(frozen=True)
class Kind:
    """A kind of document. `flavors` and `distros` are those it takes; empty: all.

    With `needs_id` the tool resolves no parameter, so the document always holds an AMI's id.
    `options` are the flags of `LaunchOptions` that it takes, `several` whether it can have more
    instance types than one, `no_label` why it cannot have a MIG layout. `note` is for who applies
    it, where the document cannot have comments.
    """

    name: str
    summary: str
    write: Callable[[LaunchRequest], str]
    flavors: tuple[str, ...] = ()
    distros: tuple[str, ...] = ()
    needs_id: bool = False
    options: tuple[str, ...] = ()
    several: bool = False
    no_label: str = ""
    note: str = ""


_PROFILE, _PLACEMENT = "--instance-profile", "--placement-group"
_RESERVED = ("--capacity-reservation", "--capacity-block")
_ALL = (_PROFILE, _PLACEMENT, *_RESERVED)
_EKS, _ECS, _CLUSTER = ("eks",), ("ecs",), ("parallelcluster",)
# Nodes that nodeadm sets up; EKS's other images want another user data.
_NODEADM = ("al2023",)
_CFN = "CloudFormation"
# https://github.com/aws/containers-roadmap/issues/1775
_NO_MIG = "ECS gives out whole GPUs, not slices"
_KINDS = (
    Kind("launch-template", f"EC2 launch template ({_CFN})", ec2.launch_template, options=_ALL),
    Kind(
        "launch-template-json",
        "the same for aws ec2 create-launch-template --cli-input-json",
        ec2.launch_template_json,
        options=_ALL,
        note="change the security group, then: "
        "aws ec2 create-launch-template --cli-input-json file://FILE",
    ),
    Kind("cloudformation", f"Auto Scaling group ({_CFN})", ec2.scaling_group, options=_ALL),
    Kind("cli", "aws ec2 run-instances", ec2.command_line, options=_ALL),
    Kind(
        "terraform",
        "launch template and Auto Scaling group",
        hcl_documents.terraform,
        options=_ALL,
    ),
    Kind("packer", "a template on top of the image", hcl_documents.packer_child),
    Kind("karpenter", "EC2NodeClass and NodePool", eks.karpenter, _EKS, _NODEADM, options=_ALL),
    Kind(
        "eksctl",
        "managed node group of eksctl",
        eksctl.node_group,
        _EKS,
        _NODEADM,
        needs_id=True,
        options=(_PLACEMENT, *_RESERVED),
    ),
    Kind(
        "eks-managed-nodegroup",
        f"EKS node group ({_CFN})",
        eks.managed_node_group,
        _EKS,
        _NODEADM,
        options=(_PLACEMENT, *_RESERVED),
    ),
    Kind(
        "eks-self-managed",
        f"self-managed EKS nodes ({_CFN})",
        eks.self_managed,
        _EKS,
        _NODEADM,
        options=_ALL,
    ),
    Kind("gpu-operator", "values of the chart gpu-operator", eks.gpu_operator, _EKS),
    Kind("device-plugin", "values of nvidia-device-plugin", eks.device_plugin, _EKS),
    Kind("argo", "Argo Workflow over the slices", argo.workflow, _EKS, _NODEADM),
    Kind(
        "ecs",
        f"capacity provider and task ({_CFN})",
        containers.ecs,
        _ECS,
        options=_ALL,
        no_label=_NO_MIG,
    ),
    Kind(
        "batch",
        f"compute environment and queue ({_CFN})",
        containers.batch,
        _ECS,
        ("al2", "al2023"),
        options=(_PLACEMENT,),
        no_label=_NO_MIG,
    ),
    Kind(
        "parallelcluster",
        "cluster file",
        slurm.parallelcluster,
        _CLUSTER,
        tuple(slurm.OS_NAMES),
        needs_id=True,
        several=True,
    ),
)
KINDS = {kind.name: kind for kind in _KINDS}


def kind_of(name: str) -> Kind:
    """A kind by its name. Raises KilnError (exit status 2) for an unknown one."""
    if name not in KINDS:
        shown = vocabulary.shown(name)
        raise KilnError(f"there is no kind {shown}", hint=did_you_mean(name, KINDS))
    return KINDS[name]


def suits(kind: Kind, wanted: LaunchRequest) -> None:
    """Raises KilnError (exit status 2) for a line or a layout that the kind is not for."""
    if wanted.label and kind.no_label:
        raise KilnError(f"{kind.name} takes no MIG layout ({wanted.label}): {kind.no_label}")
    for what, value, supported in (
        ("flavour", wanted.recipe.flavor, kind.flavors),
        ("distribution", wanted.recipe.distro.id, kind.distros),
    ):
        if supported and value not in supported:
            raise KilnError(
                f"{kind.name} takes images of {what} {' or '.join(supported)}; "
                f"{wanted.line} is of {what} {value}",
                hint="./invoke channels names the lines",
            )


def takes(kind: Kind, options: LaunchOptions, types: int) -> None:
    """Raises KilnError (exit status 2) for what the kind's document has no place for."""
    refused = [flag for flag in flags_given(options) if flag not in kind.options]
    if refused:
        takers = [other.name for other in KINDS.values() if refused[0] in other.options]
        raise KilnError(
            f"{kind.name} takes no {refused[0]}", hint=f"those that do: {', '.join(takers)}"
        )
    if types > 1 and not kind.several:
        raise KilnError(
            f"{kind.name} is for one instance type, not {types}",
            hint="run consume for each; --for parallelcluster takes several",
        )


def write_document(kind: Kind, wanted: LaunchRequest) -> str:
    """The document. Raises KilnError (exit status 2) for a line that the kind is not for."""
    suits(kind, wanted)
    return kind.write(wanted)


def pinned(target: Target, wanted: LaunchRequest) -> LaunchRequest:
    """With the AMI id that the channel holds in the target's region.

    Raises KilnError (exit status 1) if it holds nothing there.
    """
    held = channels.held(target, wanted.line, wanted.channel)
    if held is None:
        raise operation_failed(
            f"{wanted.channel} of {wanted.line} holds nothing in {target.region}",
            hint="./invoke channels shows what is where",
        )
    return replace(wanted, region=target.region, image_id=held.image_id)
