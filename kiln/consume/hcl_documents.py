"""Documents in HCL: Terraform and Packer."""

from __future__ import annotations

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from kiln.base.paths import TEMPLATES
from kiln.consume.documents import title
from kiln.consume.machine import instance_tags, network_interfaces
from kiln.consume.wanted import Wanted
from kiln.packer import hcl


def terraform(wanted: Wanted) -> str:
    """A launch template and an Auto Scaling group; the image is looked up in the channel."""
    return _rendered(wanted, "terraform.tf.j2", "Terraform")


def packer_child(wanted: Wanted) -> str:
    """A template whose parent is the channel's image."""
    return _rendered(wanted, "child.pkr.hcl.j2", "Packer")


def _rendered(wanted: Wanted, template: str, what: str) -> str:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES / "consume"),
        undefined=StrictUndefined,
        finalize=hcl.require_safe,
        autoescape=False,  # noqa: S701
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"hcl": hcl.value, "comment": hcl.comment, "raw": hcl.Safe}
    return environment.get_template(template).render(
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
        tags=_aligned(instance_tags(wanted)),
    )


def _aligned(values: dict[str, str]) -> list[hcl.Safe]:
    """Lines of a map, as `terraform fmt` lays them out."""
    quoted = sorted((hcl.string(key), hcl.string(value)) for key, value in values.items())
    width = max(len(key) for key, _ in quoted)
    return [hcl.Safe(f"{key:{width}} = {value}") for key, value in quoted]
