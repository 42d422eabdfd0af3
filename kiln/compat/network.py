"""Rules about networks: EFA and its NCCL plugin; fabric manager, NVLSM and IMEX for NVLink."""

from __future__ import annotations

from collections.abc import Mapping

from kiln import facts
from kiln.base import versions
from kiln.base.recipe import Recipe
from kiln.compat import Case, Objection, Objections, rule, type_rule
from kiln.facts import InstanceType, table


@rule("EFA-OS")
def efa_accepts_distro(recipe: Recipe, case: Case) -> Objections:
    """Each distribution is supported by a range of installers."""
    if not recipe.efa:
        return
    window = table("efa")["os"].get(recipe.distro.id)
    if window is None:
        yield Objection(
            f"the EFA installer is not known to accept {recipe.distro.id}",
            f"it accepts: {', '.join(table('efa')['os'])}",
            unsure=True,
        )
        return
    name, unsure = case.distro["name"], not facts.confirmed(window)
    if versions.below(recipe.efa, window.get("first", "0")):
        message = f"EFA installer {recipe.efa} does not support {name} yet"
        yield Objection(message, f"set efa: {window['first']} or newer", unsure=unsure)
    elif not accepted_by_installer(recipe.efa, window):
        message = f"EFA installer {recipe.efa} dropped {name}"
        yield Objection(message, f"set efa: {window['last']}, the last for it", unsure=unsure)


def accepted_by_installer(installer: str, window: Mapping[str, str]) -> bool:
    """Return True if an installer is between the first and the last that accept a distribution."""
    return versions.at_least(installer, window.get("first", "0")) and (
        "last" not in window or versions.at_least(window["last"], installer)
    )


@rule("EFA-GDR580", reads_types=True)
def gpu_direct(recipe: Recipe, case: Case) -> Objections:
    """EFA's driver must support the NVIDIA driver's peer memory interface."""
    if not recipe.efa or (case.types and not any(kind.efa for kind in case.types)):
        return
    entry = versions.last_reached(table("efa")["gdr"], "driver_branch", case.branch_name)
    if entry and versions.below(recipe.efa, entry["installer"]):
        yield Objection(
            f"GPUDirect RDMA with {recipe.driver} needs EFA installer >= {entry['installer']}",
            f"set efa: {entry['installer']} or newer",
        )


@rule("EFA-INSTANCE", reads_types=True)
def efa_without_support(recipe: Recipe, case: Case) -> Objections:
    """EFA software on an image whose instance types have no EFA."""
    if not recipe.efa or not case.types or any(kind.efa for kind in case.types):
        return
    names = ", ".join(kind.type for kind in case.types)
    family = case.types[0].family
    sizes = [each.type for each in facts.instances().values() if each.family == family and each.efa]
    yield Objection(
        f"none of {names} has EFA",
        f"leave EFA out with `efa: null`, or name {sizes[0] if sizes else 'another family'}",
    )


@rule("EFA-OFI-DOUBLE")
def plugin_twice(recipe: Recipe, case: Case) -> Objections:
    """Two plugins on one image: paths decide which one NCCL loads."""
    arch, distro = recipe.arch, recipe.distro.id
    if recipe.efa and recipe.ofi_nccl and facts.bundles_plugin(recipe.efa, arch, distro):
        yield Objection(
            f"EFA installer {recipe.efa} bundles aws-ofi-nccl; that from source is a second one",
            "leave ofi_nccl out",
        )


@rule("OFI-NCCL")
def plugin_needs_nccl(recipe: Recipe, case: Case) -> Objections:
    """A plugin release needs a minimum NCCL, for its plugin interface."""
    if not case.plugin or not recipe.nccl:
        return
    entry = versions.last_reached(table("nccl")["plugin"], "from", case.plugin)
    if entry and versions.below(recipe.nccl, entry["nccl"]):
        origin = "" if recipe.ofi_nccl else f" from EFA installer {recipe.efa}"
        yield Objection(
            f"aws-ofi-nccl {case.plugin}{origin} needs NCCL >= {entry['nccl']}",
            f"choose NCCL {entry['nccl']} or newer, or an older plugin",
        )


@rule("OFI-CUDA13")
def plugin_and_cuda13(recipe: Recipe, case: Case) -> Objections:
    """Old plugins do not work with CUDA 13."""
    first = table("nccl")["plugin_cuda13"]
    newest_major = versions.newest(table("cuda")["floors"])
    if case.plugin and case.cuda_major == newest_major and versions.below(case.plugin, first):
        installers = [
            installer
            for installer in table("efa")["releases"]
            if versions.at_least(facts.efa_plugin(installer) or "0", first)
        ]
        yield Objection(
            f"aws-ofi-nccl {case.plugin} is too old for CUDA {case.cuda_major}",
            f"choose EFA installer {min(installers, key=versions.key)} or newer",
        )


@type_rule("FM-NEEDED")
def fabric_manager_needed(recipe: Recipe, case: Case, kind: InstanceType) -> Objections:
    """CUDA does not start on NVSwitch machines without fabric manager. That a machine has another
    processor than the image is another rule's."""
    if kind.nvswitch and kind.arch == recipe.arch and case.fabric_manager is False:
        yield Objection(
            f"{kind.type} has NVSwitch: without fabric manager CUDA does not start (802)",
            "remove nvidia-fabricmanager from `without`",
        )


@rule("FM-USELESS", reads_types=True)
def fabric_manager_useless(recipe: Recipe, case: Case) -> Objections:
    """Fabric manager has nothing to manage on any of the instance types."""
    if case.fabric_manager and case.types and not any(kind.nvswitch for kind in case.types):
        names = ", ".join(kind.type for kind in case.types)
        yield Objection(
            f"none of {names} has NVSwitch: fabric manager has nothing to do there",
            "leave it out with `without: [nvidia-fabricmanager]`",
        )


@type_rule("FM-NVLSM")
def nvlsm_needed(recipe: Recipe, case: Case, kind: InstanceType) -> Objections:
    """Fourth-generation NVSwitch needs a subnet manager."""
    if kind.nvlsm and case.complete and not (recipe.nvlsm and case.fabric_manager):
        yield Objection(
            f"{kind.type} has fourth-generation NVSwitch, which needs NVLSM",
            f"set nvlsm: {facts.nvlsm_versions()[-1]} and keep nvidia-fabricmanager",
        )


@rule("FM-NVLSM")
def known_nvlsm(recipe: Recipe, case: Case) -> Objections:
    """An unknown version of NVLSM."""
    known = facts.nvlsm_versions()
    if recipe.nvlsm and case.fabric_manager and recipe.nvlsm not in known:
        yield Objection(
            f"nvlsm {recipe.nvlsm} is not a known release",
            f"the newest known is {known[-1]}; add others to kiln/facts/knowledge/drivers.yaml",
            advice=True,
        )


@type_rule("FM-IMEX")
def imex_needed(recipe: Recipe, case: Case, kind: InstanceType) -> Objections:
    """NVLink between hosts needs IMEX."""
    if kind.imex and case.complete and not recipe.imex:
        message = f"{kind.type} is part of an UltraServer: NVLink across its hosts needs IMEX"
        yield Objection(message, "set imex: true")


@rule("FM-ARCH")
def fabric_manager_of_arm64(recipe: Recipe, case: Case) -> Objections:
    """Old fabric managers exist for x86_64 only."""
    first = table("drivers")["fabricmanager"]["first_arm64"]
    old = recipe.driver and versions.below(recipe.driver, first)
    if recipe.arch == "arm64" and case.fabric_manager and old:
        yield Objection(
            f"no arm64 fabric manager exists for {recipe.driver}; {first} is the first",
            "leave it out with `without: [nvidia-fabricmanager]`",
        )
