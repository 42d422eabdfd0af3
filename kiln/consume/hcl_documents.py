"""Documents in HCL: Terraform and Packer."""

from __future__ import annotations

from kiln.base.tags import PARENT_CHANNEL, PARENT_LINE
from kiln.base.templates import render
from kiln.consume.documents import title
from kiln.consume.launch_request import LaunchRequest
from kiln.consume.machine import instance_tags, network_interfaces


def terraform(wanted: LaunchRequest) -> str:
    """A launch template and an Auto Scaling group; the image is looked up in the channel."""
    return _rendered(wanted, "consume/terraform.tf.j2", "Terraform")


def packer_child(wanted: LaunchRequest) -> str:
    """A template whose parent is the channel's image."""
    return _rendered(wanted, "consume/child.pkr.hcl.j2", "Packer")


def _rendered(wanted: LaunchRequest, template: str, what: str) -> str:
    return render(
        template,
        title=title(wanted, what),
        name=wanted.name,
        line=wanted.line,
        channel=wanted.channel,
        region=wanted.region,
        image_id=wanted.image_id,
        parameter=wanted.parameter,
        instance_type=wanted.instance_type.type,
        device=wanted.recipe.distro.root_device,
        size=wanted.recipe.volume.size,
        user=wanted.recipe.distro.ssh_user,
        cards=network_interfaces(wanted),
        options=wanted.options,
        parent_line=PARENT_LINE,
        parent_channel=PARENT_CHANNEL,
        tags=dict(sorted(instance_tags(wanted).items())),
    )
