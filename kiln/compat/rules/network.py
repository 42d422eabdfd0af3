"""Rules about EFA and its NCCL plugin."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from kiln import facts
from kiln.base import versions
from kiln.base.errors import nearest
from kiln.compat.rules.combination import Combination
from kiln.compat.rules.registry import Objection, rule
from kiln.facts import table


@rule("EFA-OS")
def accepts_distro(c: Combination) -> Iterator[Objection]:
    """Each distribution is supported by a range of installers."""
    if not c.efa:
        return
    window = table("efa")["os"].get(c.distro)
    if window is None:
        yield Objection(
            f"the EFA installer is not known to accept {c.distro}",
            hint=f"it accepts: {', '.join(table('efa')['os'])}",
            unsure=True,
        )
        return
    unsure = not facts.confirmed(window)
    if "first" in window and versions.below(c.efa, window["first"]):
        yield Objection(
            f"EFA installer {c.efa} does not support {c.about['name']} yet; the first that does is "
            f"{window['first']}",
            unsure=unsure,
        )
    if "last" in window and not versions.at_least(window["last"], c.efa):
        yield Objection(
            f"EFA installer {c.efa} dropped {c.about['name']}; the last for it is {window['last']}",
            unsure=unsure,
        )


def accepted_by_installer(installer: str, window: Mapping[str, str]) -> bool:
    """Is an installer between the first and the last that accept a distribution?"""
    return versions.at_least(installer, window.get("first", "0")) and (
        "last" not in window or versions.at_least(window["last"], installer)
    )


@rule("EFA-LATEST")
def no_version(c: Combination) -> Iterator[Objection]:
    """The newest installer changes without a change of the row, and may refuse the distribution."""
    if "efa" not in c.latest:
        return
    newest = versions.newest(table("efa")["releases"])
    last = table("efa")["os"].get(c.distro, {}).get("last")
    if last:
        yield Objection(
            f"'latest' EFA is {newest} today and refuses {c.about['name']}",
            hint=f"pin {last}, the last for it",
            level="error",
        )
    else:
        yield Objection(f"'latest' EFA is {newest} today", hint=f"pin {newest}")


@rule("EFA-UNKNOWN")
def unknown_efa(c: Combination) -> Iterator[Objection]:
    """Our list has gaps before 1.23, so an unknown installer only warns."""
    releases = table("efa")["releases"]
    if c.efa and c.efa not in releases:
        guess = nearest(c.efa, releases, likeness=0.7)
        yield Objection(
            f"{c.efa} is not a known EFA installer" + (f"; did you mean {guess}?" if guess else ""),
            hint="if AWS released it, add it to kiln/facts/knowledge/efa.yaml",
        )


@rule("EFA-GDR580", by_instance_type=True)
def gpu_direct(c: Combination) -> Iterator[Objection]:
    """EFA's driver must support the NVIDIA driver's peer memory interface."""
    if (
        not c.efa
        or not c.branch_name
        or (c.instance_types and not any(instance_type.efa for instance_type in c.instance_types))
    ):
        return
    entry = versions.last_reached(table("efa")["gdr"], "driver_branch", c.branch_name)
    if entry and versions.below(c.efa, entry["installer"]):
        yield Objection(
            f"GPUDirect RDMA with driver {c.driver} needs EFA installer >= "
            f"{entry['installer']}; {c.efa} is too old",
        )


@rule("EFA-INSTANCE", by_instance_type=True)
def no_efa_there(c: Combination) -> Iterator[Objection]:
    """EFA software on an image whose instance types have no EFA."""
    if (
        not c.efa
        or not c.instance_types
        or any(instance_type.efa for instance_type in c.instance_types)
    ):
        return
    names = ", ".join(instance_type.type for instance_type in c.instance_types)
    yield Objection(
        f"none of {names} has EFA" + _first_with_efa(c),
        hint="leave EFA out with `efa: null`, or name larger instance types",
    )


def _first_with_efa(c: Combination) -> str:
    family = c.instance_types[0].family
    for instance_type in facts.instances().values():
        if instance_type.family == family and instance_type.efa:
            return f"; the first {family} size with EFA is {instance_type.type}"
    return f"; no {family} type has it"


@rule("EFA-OFI-DOUBLE")
def plugin_twice(c: Combination) -> Iterator[Objection]:
    """Two plugins on one image: paths decide which one NCCL loads."""
    first = facts.first_with_plugin(c.arch, c.distro)
    if c.efa and c.ofi_nccl and facts.bundles_plugin(c.efa, c.arch, c.distro):
        yield Objection(
            f"EFA installer {c.efa} bundles aws-ofi-nccl (since {first}); {c.ofi_nccl} from "
            "source is a second one",
            hint="leave ofi_nccl out, or pass --skip-plugin to the installer",
        )


@rule("OFI-NCCL")
def plugin_needs_nccl(c: Combination) -> Iterator[Objection]:
    """A plugin release needs a minimum NCCL, for its plugin interface."""
    if not c.plugin or not c.nccl:
        return
    entry = versions.last_reached(table("nccl")["plugin"], "from", c.plugin)
    if entry and versions.below(c.nccl, entry["nccl"]):
        origin = "" if c.ofi_nccl else f" from EFA installer {c.efa}"
        yield Objection(
            f"aws-ofi-nccl {c.plugin}{origin} needs NCCL >= {entry['nccl']}; NCCL {c.nccl} is older"
        )


def _first_with(plugin: str) -> str:
    """The oldest EFA installer that bundles this aws-ofi-nccl or a newer one."""
    installers: list[str] = [
        installer
        for installer in table("efa")["releases"]
        if versions.at_least(facts.efa_plugin(installer) or "0", plugin)
    ]
    return min(installers, key=versions.key)


@rule("OFI-CUDA13")
def plugin_and_cuda13(c: Combination) -> Iterator[Objection]:
    """Old plugins do not work with CUDA 13."""
    first = table("nccl")["plugin_cuda13"]
    newest_major = versions.newest(table("cuda")["floors"])
    if c.plugin and c.cuda_major == newest_major and versions.below(c.plugin, first):
        yield Objection(
            f"aws-ofi-nccl {c.plugin} is older than {first}, the first that works with CUDA "
            f"{c.cuda_major}",
            hint=f"choose EFA installer {_first_with(first)} or newer",
        )
