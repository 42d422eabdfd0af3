"""Rules about fabric manager, NVLSM and IMEX, on NVSwitch and UltraServer hosts."""

from __future__ import annotations

import re
from collections.abc import Iterator

from kiln import facts
from kiln.base import versions
from kiln.compat.rules.combination import Combination
from kiln.compat.rules.registry import Objection, instance_rule, rule, rules
from kiln.facts import InstanceType, table


@instance_rule("FM-NEEDED")
def fabric_manager_needed(c: Combination, instance_type: InstanceType) -> Iterator[Objection]:
    """CUDA does not start on NVSwitch machines without fabric manager. That a machine has another
    processor than the image is another rule's."""
    if instance_type.nvswitch and instance_type.arch == c.arch and c.fabric_manager is False:
        yield Objection(
            f"{instance_type.type} has NVSwitch: without fabric manager CUDA fails with "
            "'system not yet initialized' (802)",
            hint="remove nvidia-fabricmanager from `without`",
        )


@rule("FM-USELESS", by_instance_type=True)
def useless(c: Combination) -> Iterator[Objection]:
    """Fabric manager has nothing to manage on any of the instance types."""
    if (
        c.fabric_manager
        and c.instance_types
        and not any(instance_type.nvswitch for instance_type in c.instance_types)
    ):
        names = ", ".join(instance_type.type for instance_type in c.instance_types)
        yield Objection(
            f"none of {names} has NVSwitch: fabric manager has nothing to do there "
            "(NV_WARN_NOTHING_TO_DO) and must not be enabled unconditionally",
            hint="leave it out with `without: [nvidia-fabricmanager]`, or start it only where "
            "NVSwitch is found",
        )


@instance_rule("FM-NVLSM")
def nvlsm(c: Combination, instance_type: InstanceType) -> Iterator[Objection]:
    """Fourth-generation NVSwitch needs a subnet manager."""
    if instance_type.nvlsm and c.nvlsm is False:
        limits = rules()["FM-NVLSM"].limits
        yield Objection(
            f"{instance_type.type} has fourth-generation NVSwitch, which needs "
            f"{', '.join(limits['packages'])} and the module {limits['module']} at boot",
            hint=f"set nvlsm: {facts.nvlsm_versions()[-1]} and keep nvidia-fabricmanager, which "
            "installs them",
        )


@rule("FM-NVLSM")
def known_nvlsm(c: Combination) -> Iterator[Objection]:
    """An unknown version of NVLSM."""
    for package in c.packages:
        name, _, version = package.partition("=")
        if name == "nvlsm" and version not in facts.nvlsm_versions():
            yield Objection(
                f"nvlsm {version} is not a known release",
                hint=f"the newest known is {facts.nvlsm_versions()[-1]}; add others to "
                "kiln/facts/knowledge/drivers.yaml",
                advice=True,
            )


@instance_rule("FM-IMEX")
def imex(c: Combination, instance_type: InstanceType) -> Iterator[Objection]:
    """NVLink between hosts needs IMEX."""
    if instance_type.imex and c.imex is False:
        yield Objection(
            f"{instance_type.type} is part of an UltraServer: NVLink across its hosts needs "
            "nvidia-imex at the driver's version",
            hint="set imex: true",
        )


@rule("FM-NAME")
def package_names(c: Combination) -> Iterator[Objection]:
    """The companions' packages were renamed between branches."""
    if c.driver is None:
        return
    kind = "deb" if c.debs else "rpm"
    if kind == "deb" and c.driver_from == "distro":
        kind = "ubuntu"
    for package in c.packages:
        match = re.match(
            r"(nvidia-(?:fabric-?manager|imex)(?:-\d{3}(?![\d.]))?)(?:[-=](\d[\d.]*))?", package
        )
        if not match:
            continue
        version = match[2] if match[2] and "." in match[2] else c.driver
        companion = "nvidia-imex" if "imex" in package else "nvidia-fabricmanager"
        archive = facts.archive_packages(companion, version, archive=kind)
        if archive and match[1] not in archive.names:
            (wanted,) = archive.names
            yield Objection(
                f"{package}: for driver branch {versions.major(version)} on {c.distro} the package "
                f"is called {wanted}",
                hint=f"install {wanted}",
            )


@rule("FM-ARCH")
def never_built(c: Combination) -> Iterator[Objection]:
    """Old fabric managers exist for x86_64 only."""
    first = table("drivers")["fabricmanager"]["first_arm64"]
    if c.arch == "arm64" and c.fabric_manager and c.driver and versions.below(c.driver, first):
        yield Objection(
            f"no arm64 (sbsa) fabric manager archive exists for {c.driver}; {first} is the first",
            hint="arm64 instance types with one GPU do not need it: "
            "`without: [nvidia-fabricmanager]`",
        )


@rule("FM-OLDARCHIVE")
def archive_name(c: Combination) -> Iterator[Objection]:
    """NVIDIA changed the archive's format once."""
    first = table("drivers")["fabricmanager"]["first_tar_xz"]
    for url in c.downloads:
        match = re.search(r"fabricmanager-linux-(\w+?)-(\d+(?:\.\d+)+)-archive\.tar\.xz", url)
        if match and versions.below(match[2], first):
            yield Objection(
                f"{match[2]} is published as fabricmanager-linux-{match[1]}-{match[2]}.tar.gz, "
                "without a checksum in NVIDIA's JSON",
                hint=f"choose driver {first} or newer",
            )
