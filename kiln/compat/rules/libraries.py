"""Rules about libraries and services: NCCL, cuDNN, GDRCopy, DCGM, container toolkit."""

from __future__ import annotations

import re
from collections.abc import Iterator

from kiln import facts
from kiln.base import versions
from kiln.base.errors import nearest
from kiln.compat.rules.combination import Combination
from kiln.compat.rules.registry import Objection, rule
from kiln.facts import table


@rule("LIB-CUDA")
def libraries_without_cuda(c: Combination) -> Iterator[Objection]:
    """NCCL and cuDNN are built for a CUDA version, so without CUDA no package can be chosen."""
    for name, version in (("NCCL", c.nccl), ("cuDNN", c.cudnn)):
        if c.complete and version and not c.cuda:
            yield Objection(f"{name} {version} on an image without CUDA", hint="set cuda")


@rule("LIB-UNKNOWN")
def unknown_library(c: Combination) -> Iterator[Objection]:
    """Our lists do not go back to the first release, so an unknown one only warns."""
    for name, version in (
        ("gdrcopy", c.gdrcopy),
        ("dcgm", c.dcgm),
        ("container_toolkit", c.container_toolkit),
    ):
        known_versions = table("services")[name]["versions"]
        if version and version not in known_versions:
            guess = nearest(version, known_versions, likeness=0.7)
            yield Objection(
                f"{name} {version} is not a known release"
                + (f"; did you mean {guess}?" if guess else ""),
                hint=f"the newest known is {versions.newest(known_versions)}; add others to "
                "kiln/facts/knowledge/services.yaml",
            )


@rule("NCCL-CUDA")
def nccl_packaged(c: Combination) -> Iterator[Objection]:
    """The version of NCCL's packages names the CUDA they were built for."""
    wanted: list[tuple[str, str | None, bool]] = []
    if c.nccl:
        wanted.append((c.nccl, versions.series(c.cuda) if c.cuda else None, False))
    for package in c.packages:
        match = re.match(r"libnccl\S*?[-=](\d+\.\d+\.\d+)(?:-\d+\+|@)cuda(\d+\.\d+)$", package)
        if match:
            wanted.append((match[1], match[2], True))
    for nccl, cuda, exact in wanted:
        entry = table("nccl")["versions"].get(nccl)
        if entry is None:
            newest = versions.newest(table("nccl")["versions"])
            yield Objection(f"{nccl} is not a known NCCL release", hint=f"the newest is {newest}")
            continue
        if entry["cuda"] is None or cuda is None:
            continue
        built = entry["cuda"]
        fits = any(_fits(cuda, packaged_for, exact) for packaged_for in built)
        if not fits:
            yield Objection(
                f"NCCL {nccl} was packaged for CUDA {', '.join(built)}, not for {cuda}",
                hint=_nccl_for(cuda, exact),
                # Only a list with a source of its own was read in a repository's index.
                unsure="source" not in entry or "cuda" in entry.get("unsure", ()),
            )
        elif not (c.complete or any(_fits(cuda, packaged_for, True) for packaged_for in built)):
            yield Objection(
                f"NCCL {nccl} was packaged for CUDA {', '.join(built)}, not for {cuda}",
                hint=f"{_nccl_for(cuda, exact=True)}; a row that installs the packages is refused",
                advice=True,
            )


def _fits(cuda: str, built: str, exact: bool) -> bool:
    """Does a package built for `built` serve `cuda`? A package serves its whole CUDA major;
    `exact` is for package names, which must match literally."""
    if exact and not built.endswith(".x"):
        return cuda == built
    return versions.major(cuda) == versions.major(built)


def _nccl_for(cuda: str, exact: bool) -> str:
    fitting = [
        version
        for version, entry in table("nccl")["versions"].items()
        if entry["cuda"] and any(_fits(cuda, built, exact) for built in entry["cuda"])
    ]
    return f"for CUDA {cuda} choose NCCL {' or '.join(fitting[-3:])}" if fitting else ""


@rule("CUDNN-CUDA")
def cudnn_built_for(c: Combination) -> Iterator[Objection]:
    """cuDNN is built per CUDA major, and not for every distribution."""
    version = c.cudnn
    for package in c.packages:
        match = re.match(r"libcudnn(\d+)", package)
        if match:
            version = version or match[1]
    if not version:
        return
    for entry in table("cuda")["cudnn_missing"]:
        if entry["repo"] == c.repository and versions.at_least(version, entry["from"]):
            yield Objection(
                f"NVIDIA's {entry['repo']} repository ({c.distro}) has no cuDNN >= "
                f"{entry['from']}; {version} is missing",
                unsure=not facts.confirmed(entry),
            )
    builds = table("cuda")["cudnn"]
    # A bare major (libcudnn8) means its newest release.
    newest = version if "." in version else f"{version}.999"
    oldest = min(builds, key=lambda entry: versions.key(entry["from"]))
    built = versions.last_reached(builds, "from", newest) or oldest
    if c.cuda_major and c.cuda_major not in built["majors"]:
        yield Objection(
            f"cuDNN {version} has builds for CUDA {' and '.join(built['majors'])}, none for "
            f"{c.cuda_major}",
            hint=_cudnn_for(c.cuda_major),
            unsure=not facts.confirmed(built),
        )


def _cudnn_for(major: str) -> str:
    builds = sorted(table("cuda")["cudnn"], key=lambda entry: versions.key(entry["from"]))
    has = [major in entry["majors"] for entry in builds]
    if True not in has:
        return ""
    first = has.index(True)
    hint = f"for CUDA {major} choose cuDNN {builds[first]['from']} or newer"
    if False in has[first:]:
        hint += f", older than {builds[has.index(False, first)]['from']}"
    return hint


@rule("GDR-DRV", by_instance_type=True)
def gdrcopy_knows(c: Combination) -> Iterator[Objection]:
    """GDRCopy's module must support driver, CUDA, GPU and kernel."""
    if not c.gdrcopy:
        return
    for need in table("services")["gdrcopy"]["needs"]:
        if versions.below(c.gdrcopy, need["gdrcopy"]):
            subject = _subject_of(c, need)
            if subject:
                yield Objection(f"GDRCopy {c.gdrcopy} is too old for {subject}: {need['why']}")


def has_need(c: Combination, need: dict[str, str]) -> bool:
    """Does a part of the combination have this need of GDRCopy (an entry of services.yaml)?"""
    return _subject_of(c, need) is not None


def _subject_of(c: Combination, need: dict[str, str]) -> str | None:
    """The part of the combination that has this need, or None."""
    kernel = c.boot_kernel
    if "module" in need and need["module"] not in c.modules:
        return None
    if "driver_from" in need and c.driver and versions.at_least(c.driver, need["driver_from"]):
        return f"driver {c.driver}"
    if "cuda_major_from" in need and c.cuda and versions.at_least(c.cuda, need["cuda_major_from"]):
        return f"CUDA {c.cuda}"
    if "gpu_arch" in need:
        return next(
            (
                instance_type.type
                for instance_type in c.instance_types
                if instance_type.gpu_arch == need["gpu_arch"]
            ),
            None,
        )
    if "kernel_from" in need and kernel and versions.at_least(kernel.series, need["kernel_from"]):
        return f"kernel {kernel}"
    return None


@rule("DCGM-MAJOR", by_instance_type=True)
def dcgm_fits(c: Combination) -> Iterator[Objection]:
    """DCGM 4 has packages per CUDA major of the driver; DCGM 3 lacks new drivers and GPUs."""
    dcgm = table("services")["dcgm"]
    native = facts.driver_cuda(c.driver) if c.driver and c.branch else None
    for package in c.packages:
        match = re.match(r"datacenter-gpu-manager-4-(?:proprietary-)?cuda(\d+)", package)
        if match and native and match[1] != native:
            right = _dcgm_packages("4", native)[-1]
            yield Objection(
                f"{package} is for drivers of CUDA {match[1]}; driver {c.driver} belongs to CUDA "
                f"{native}",
                hint=f"install {right}",
                # Drivers run programs built for an older CUDA, but not for a newer one.
                advice=versions.below(match[1], native),
            )
    old_package = set(_dcgm_packages("3", "")) & set(c.packages)
    if not old_package and not (c.dcgm and versions.major(c.dcgm) == "3"):
        return
    limit = dcgm["last_of_3"]
    unsure = not facts.confirmed(limit)
    if c.branch_name and versions.at_least(c.branch_name, limit["below_branch"]):
        yield Objection(f"DCGM 3 does not know driver {c.driver}", "choose DCGM 4", unsure=unsure)
    for instance_type in c.instance_types:
        if instance_type.gpu_arch in limit["not_arch"]:
            yield Objection(
                f"DCGM 3 does not know the {instance_type.ec2_name} of {instance_type.type}",
                "choose DCGM 4",
                unsure=unsure,
            )


@rule("DCGM-EXPORTER")
def exporter_fits(c: Combination) -> Iterator[Objection]:
    """An exporter is released for one DCGM; its package accepts any, so only this rule notices."""
    if not c.dcgm_exporter:
        return
    exporter_facts = table("services")["dcgm_exporter"]
    pair = exporter_facts["pairs"].get(c.dcgm_exporter, [])
    if not c.dcgm:
        if c.complete:
            yield Objection(
                f"dcgm-exporter {c.dcgm_exporter} without DCGM: its package would install an "
                "unpinned one",
                f"add dcgm: {pair[0]}" if pair else "add dcgm: and the version it was tested with",
            )
    elif pair and c.dcgm not in pair:
        partner = [
            exporter for exporter, tested in exporter_facts["pairs"].items() if c.dcgm in tested
        ]
        yield Objection(
            f"dcgm-exporter {c.dcgm_exporter} was tested with DCGM {' and '.join(pair)}, "
            f"not with {c.dcgm}",
            f"for DCGM {c.dcgm} set dcgm_exporter: {partner[0]}" if partner else "",
            advice=True,
        )
    if versions.at_least(c.dcgm_exporter, exporter_facts["renamed_from"]):
        yield Objection(
            f"dcgm-exporter {c.dcgm_exporter} uses DCGM 4.7's field names and units; "
            "dcgm-counters.csv has the old ones, which is untested",
            f"check its /metrics, or stay below {exporter_facts['renamed_from']}",
            advice=True,
        )


def _dcgm_packages(version: str, driver_cuda: str) -> tuple[str, ...]:
    """The names of DCGM's packages at a version, for drivers of a CUDA major."""
    archive = facts.archive_packages("dcgm", version, driver_cuda=driver_cuda)
    return archive.names if archive else ()


@rule("NCT-REPO")
def retired_toolkit(c: Combination) -> Iterator[Objection]:
    """NVIDIA retired nvidia-docker and its packages."""
    retired = table("services")["container_toolkit"]["retired"]
    for name in (*c.packages, *c.downloads):
        if any(old in name for old in retired):
            places = table("downloads")["repositories"]["CONTAINER_TOOLKIT_REPO_URL"]
            yield Objection(
                f"{name} is a retired name",
                hint="use nvidia-container-toolkit from "
                + " or ".join(place["url"] for place in places),
            )
