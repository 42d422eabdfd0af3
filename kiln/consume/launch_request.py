"""What a document is made for: a line, a channel, an instance type, a MIG layout."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kiln import facts
from kiln.base.errors import KilnError
from kiln.base.recipe import Recipe
from kiln.compat.which import rows_for
from kiln.consume.launch_options import NO_OPTIONS, LaunchOptions
from kiln.facts import InstanceType
from kiln.mig.k8s import k8s_configuration
from kiln.publish import channels, lines

# What `mig_config` of a row says where the GPUs stay whole.
_WHOLE = (None, "none", "all-disabled")


@dataclass(frozen=True)
class LaunchRequest:
    """`image_id` is the AMI to write down, None where the document follows the channel by itself.

    `label` is the MIG layout that the machines make at boot, None for whole GPUs, and `strategy`
    how Kubernetes shows its slices; `owner` makes them: the AMI's gpu-mig, or the GPU operator.
    `jobs` are those of a workload, 0 for one on each slice of a node. `others` are further instance
    types, where a document can have several.
    """

    line: str
    channel: str
    recipe: Recipe
    region: str
    instance_type: InstanceType
    label: str | None = None
    strategy: str = "mixed"
    image_id: str | None = None
    owner: str = "ami"
    jobs: int = 0
    options: LaunchOptions = NO_OPTIONS
    others: tuple[InstanceType, ...] = ()

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
        """A name for what the document makes: al2023/lts/eks/x86_64 → gpu-al2023-lts-eks.

        Its own for each line and channel, of what stacks and Kubernetes take.
        """
        distro, stack, flavor, arch = self.line.split("/")
        parts = ["gpu", distro, stack, flavor]
        parts += ["arm64"] if arch == "arm64" else []
        parts += [self.channel] if self.channel != "stable" else []
        return "-".join(parts).replace("_", "-")


def launch_request(
    line: str,
    channel: str,
    region: str,
    *,
    instance_type: str | None = None,
    label: str | None = None,
    strategy: str = "mixed",
    row: lines.Line | None = None,
) -> LaunchRequest:
    """What the flags ask for. Without an instance type it is the one that the row is verified on,
    without a label the layout that the image makes by itself (`mig_config` of the row).

    `row` is the line's, if it is known already.
    Raises KilnError (exit status 2) for an unknown line, channel, instance type or label, a type
    whose processor or GPU the image is not for, and a layout that its GPUs cannot hold or that the
    image's driver cannot make.
    """
    row = row or lines.load_line(line)
    lines.require_channel(channel, row.settings)
    recipe = row.recipe
    kind = facts.instance(instance_type or recipe.verify_instance_type)
    if kind.arch != recipe.arch:
        raise KilnError(
            f"{kind.type} has a processor of {kind.arch}, {line} is for {recipe.arch}",
            hint=f"./invoke which --instance-type {kind.type} names the rows that serve it",
        )
    if label is None and kind.mig and recipe.mig_config not in _WHOLE:
        label = recipe.mig_config
    started_so = recipe
    if label is not None:
        k8s_configuration(label, strategy, instance_type=kind.type)
        started_so = replace(recipe, mig_config=label)
    answer = rows_for(kind.type, [started_so])
    if answer["does_not"]:
        raise KilnError(
            f"{line} does not serve {kind.type}: {'; '.join(answer['does_not'][0]['reasons'])}",
            hint=f"./invoke which --instance-type {kind.type} names the rows that do",
        )
    return LaunchRequest(line, channel, recipe, region, kind, label, strategy)
