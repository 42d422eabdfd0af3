"""The facts that a combination rests on, and a warning for each that is not confirmed.

A rule that objects because of an unconfirmed fact warns by itself. This is about its silence: the
combination passes because of a fact, and no source shows that fact. Each function names the entries
of one area. What only forbids, such as a repository without a library, is left to its rule. Names
of packages, URLs, keys and the kernel are in `trust`; whether a package exists at its version (such
as NCCL for a CUDA) is in `evidence`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kiln import facts
from kiln.base import versions
from kiln.base.findings import Finding
from kiln.base.recipe import Recipe
from kiln.compat.rules.combination import Combination
from kiln.compat.rules.libraries import has_need
from kiln.compat.rules.network import accepted_by_installer
from kiln.compat.rules.registry import rules
from kiln.facts import InstanceType

RULE = "FACT-UNCONFIRMED"
# The keys by which a person finds an entry of a list.
_NAMED_BY = ("type", "gpu", "from", "from_branch", "driver_branch", "installer", "gdrcopy")


@dataclass(frozen=True)
class UsedFact:
    """An entry of a table of facts: `keys` lead to it, and a number is the place in a list. `what`
    says what it tells, `fields` name what requests it in a recipe."""

    file: str
    keys: tuple[str | int, ...]
    what: str
    fields: tuple[str, ...]


def used_by_combination(c: Combination) -> Iterator[UsedFact]:
    """The facts that a combination rests on, area by area; one may come twice."""
    yield from _machines(c)
    yield from _driver(c)
    yield from _cuda(c)
    yield from _libraries(c)
    yield from _efa(c)
    yield from _mig(c)
    yield from _distribution(c)


def used_by_recipe(recipe: Recipe) -> Iterator[UsedFact]:
    """The facts that a recipe rests on through what a combination does not have."""
    if recipe.cloudwatch_agent:
        agent = recipe.cloudwatch_agent
        builds = ("cloudwatch_agent", "builds", agent)
        what = f"the build of CloudWatch agent {agent}"
        yield UsedFact("services", builds, what, ("cloudwatch_agent",))
        blocks = ["agent", "gpu_metrics", "measurements", "append_dimensions", "logs"]
        blocks += ["efa"] if recipe.efa else []
        blocks += ["dcgm"] if recipe.dcgm_exporter else []
        for block in blocks:
            what = f"what the CloudWatch agent takes ({block})"
            yield UsedFact("cloudwatch", (block,), what, ("telemetry", "cloudwatch_agent"))
    if recipe.mig_parted:
        what = "the C library that mig-parted needs"
        yield UsedFact("services", ("mig_parted",), what, ("mig_parted",))
    service = facts.distro(recipe.distro.id).get("package_snapshot")
    if recipe.package_snapshot and service:
        what = f"who has the archive of {recipe.distro.id} as it was"
        fields = ("package_snapshot", "distro")
        yield UsedFact("distros", ("package_snapshots", service), what, fields)


def _machines(c: Combination) -> Iterator[UsedFact]:
    instance_types = facts.instances()
    build = [instance_types[name] for name in c.build_instances if name in instance_types]
    listed = [entry["type"] for entry in facts.table("instances")["types"]]
    for types, field in ((c.instance_types, "target_instance_types"), (build, "instance_type")):
        for kind in types:
            what = f"the entry of instance type {kind.type}"
            place = listed.index(kind.type)
            yield UsedFact("instances", ("types", place), what, (field,))
            what = f"the entry of GPU {kind.gpu}"
            yield UsedFact("instances", ("gpus", kind.gpu), what, (field,))
    if c.fabric_manager:
        for arch in dict.fromkeys(kind.gpu_arch for kind in _served(c) if kind.nvswitch):
            what = f"the PCI device by which an image knows the NVSwitches of {arch}"
            fields = ("target_instance_types", "driver")
            yield UsedFact("instances", ("nvswitches", arch), what, fields)


def _served(c: Combination) -> Iterable[InstanceType]:
    """The instance types that the combination names; if none, all of its processor."""
    if c.instance_types:
        return c.instance_types
    return [kind for kind in facts.instances().values() if kind.arch == c.arch]


def _driver(c: Combination) -> Iterator[UsedFact]:
    if not c.driver or not c.branch_name:
        return
    drivers = facts.table("drivers")
    what = f"the end, modules and CUDA of driver branch {c.branch_name}"
    yield UsedFact("drivers", ("branches", c.branch_name), what, ("driver",))
    for kind in c.instance_types:
        gpu = drivers["gpus"].get(kind.gpu)
        if gpu and _first_branch_matters(c.branch_name, gpu):
            what = f"the first driver branch for the {kind.gpu}"
            yield UsedFact("drivers", ("gpus", kind.gpu), what, ("driver", "target_instance_types"))
        what = f"the last driver branch and CUDA for {kind.gpu_arch}"
        fields = ("driver", "target_instance_types")
        yield UsedFact("drivers", ("architectures", kind.gpu_arch), what, fields)
    yield from _reached(
        "drivers",
        "minimum_kernel",
        "from_branch",
        c.branch_name,
        "the oldest kernel of driver branch",
    )
    if c.fabric_manager:
        what = "the archives of fabric manager"
        yield UsedFact("drivers", ("fabricmanager",), what, ("driver",))
    for package in c.packages:
        name, _, version = package.partition("=")
        if name == "nvlsm":
            what = f"NVLSM {version}"
            yield UsedFact("drivers", ("nvlsm", "versions", version), what, ("nvlsm", "driver"))


def _first_branch_matters(branch: str, gpu: Mapping[str, str]) -> bool:
    """Does a GPU's first branch decide that this one has it? Not below it, where a rule objects,
    nor where a later branch is known to have the GPU."""
    surely = gpu.get("known_from")
    return versions.at_least(branch, gpu["first_branch"]) and not (
        surely and versions.at_least(branch, surely)
    )


def _cuda(c: Combination) -> Iterator[UsedFact]:
    if "repo" in {c.driver_from if c.driver else "", c.cuda_source if c.cuda else ""}:
        what = f"what NVIDIA's repository {c.repository} has"
        yield UsedFact("cuda", ("repos", c.repository), what, ("distro",))
    if c.cuda:
        floors = ("floors", c.cuda_major or "")
        yield UsedFact("cuda", floors, f"the lowest driver for CUDA {c.cuda_major}", ("cuda",))
        release = facts.cuda_release(c.cuda) or ""
        yield UsedFact("cuda", ("releases", release), f"the driver of CUDA {release}", ("cuda",))
    if c.cudnn:
        what = "the CUDA of cuDNN since"
        yield from _reached("cuda", "cudnn", "from", c.cudnn, what, "cudnn")


def _libraries(c: Combination) -> Iterator[UsedFact]:
    if c.nccl:
        yield UsedFact("nccl", ("versions", c.nccl), f"NCCL {c.nccl}", ("nccl",))
    if c.nccl and c.plugin:
        fields = ("ofi_nccl", "efa")
        what = "the NCCL for aws-ofi-nccl since"
        yield from _reached("nccl", "plugin", "from", c.plugin, what, *fields)
        what = "the aws-ofi-nccl that works with CUDA 13"
        if c.cuda_major == versions.newest(facts.table("cuda")["floors"]):
            yield UsedFact("nccl", ("plugin_cuda13",), what, fields)
    services = facts.table("services")
    for name in ("container_toolkit", "dcgm", "dcgm_exporter", "gdrcopy"):
        if getattr(c, name):
            yield UsedFact("services", (name,), f"the releases of {name}", (name,))
    if c.dcgm and versions.major(c.dcgm) == "3":
        what = "what DCGM 3 knows"
        yield UsedFact("services", ("dcgm", "last_of_3"), what, ("dcgm",))
    if c.gdrcopy:
        for place, need in enumerate(services["gdrcopy"]["needs"]):
            if has_need(c, need):
                what = f"why GDRCopy must be {need['gdrcopy']} or newer"
                yield UsedFact("services", ("gdrcopy", "needs", place), what, ("gdrcopy",))


def _efa(c: Combination) -> Iterator[UsedFact]:
    if not c.efa:
        return
    fields = ("efa",)
    window = facts.table("efa")["os"].get(c.distro)
    if window and accepted_by_installer(c.efa, window):
        what = f"the EFA installers that accept {c.distro}"
        yield UsedFact("efa", ("os", c.distro), what, fields)
    yield UsedFact("efa", ("releases", c.efa), f"what EFA installer {c.efa} brings", fields)
    what = "the first EFA installer with aws-ofi-nccl"
    yield UsedFact("efa", ("bundles_plugin_from", c.arch), what, fields)
    yield UsedFact("efa", ("bundles_plugin_on", c.arch), what, fields)
    if c.branch_name:
        what = "the EFA installer for GPUDirect with driver branch"
        yield from _reached("efa", "gdr", "driver_branch", c.branch_name, what, *fields)
    what = "the oldest kernel of EFA installer"
    yield from _reached("efa", "minimum_kernel", "installer", c.efa, what, *fields)


def _mig(c: Combination) -> Iterator[UsedFact]:
    off = rules()["MIG-EFA"].limits["labels_without"]
    if not c.mig and (not c.mig_label or c.mig_label in off):
        return
    table = facts.table("mig")
    fields = ("mig_config", "target_instance_types")
    what = "the compute instances of a GPU instance"
    yield UsedFact("mig", ("compute_instance_sizes",), what, fields)
    yield UsedFact("mig", ("compute_instance_profiles",), what, fields)
    for kind in (kind for kind in _served(c) if kind.mig):
        for place, entry in enumerate(table["gpus"]):
            if entry["gpu"] == kind.gpu:
                what = f"the MIG profiles of the {kind.gpu}"
                yield UsedFact("mig", ("gpus", place), what, fields)
        for place, entry in enumerate(table["driver_minimums"]):
            if kind.gpu in entry["gpus"]:
                what = f"the lowest driver for MIG on the {kind.gpu}"
                yield UsedFact("mig", ("driver_minimums", place), what, ("driver", *fields))
                break
        what = f"how the MIG mode of {kind.gpu_arch} changes"
        yield UsedFact("mig", ("mode_change", kind.gpu_arch), what, fields)


def _distribution(c: Combination) -> Iterator[UsedFact]:
    what = f"the entry of {c.distro}"
    yield UsedFact("distros", ("distros", c.distro), what, ("distro",))
    if c.flavor != "base":
        what = f"the parents of flavour {c.flavor}"
        yield UsedFact("distros", ("flavors", c.flavor), what, ("flavors", "distro"))
    kernel = c.boot_kernel
    if kernel and (kernel.measured or kernel.proxy):
        built_on = kernel.measured or kernel.proxy
        for place, result in enumerate(facts.table("kernel_builds")["measured"]):
            if (result["kernel"], result["driver"]) == (built_on, c.driver):
                what = f"whether driver {c.driver} compiles on kernel {built_on}"
                yield UsedFact("kernel_builds", ("measured", place), what, ("driver", "kernel"))


def _reached(
    file: str, block: str, since: str, version: str, what: str, *fields: str
) -> Iterator[UsedFact]:
    """The entry of a list that holds for a version, by the entry's key `since`."""
    entries: list[dict[str, Any]] = facts.table(file)[block]
    entry = versions.last_reached(entries, since, version)
    if entry:
        says = f"{what} {entry[since]}"
        yield UsedFact(file, (block, entries.index(entry)), says, fields or ("driver",))


def unconfirmed_facts(used: Iterable[UsedFact]) -> list[tuple[UsedFact, Finding]]:
    """A warning for each fact that is marked `confirmed: false`; each fact once."""
    once: dict[tuple[str, tuple[str | int, ...]], tuple[UsedFact, Finding]] = {}
    for fact in used:
        unconfirmed, source = _mark(fact)
        if unconfirmed:
            once.setdefault((fact.file, fact.keys), (fact, _finding(fact, source)))
    return list(once.values())


def _mark(fact: UsedFact) -> tuple[bool, str]:
    """Is the entry, or a block around it, marked as unconfirmed? And the nearest source.

    An entry that the table lacks is not unconfirmed: a rule says that it is unknown.
    """
    here: Any = facts.table(fact.file)
    unconfirmed, source = not facts.confirmed(here), str(here.get("source", ""))
    for key in fact.keys:
        if isinstance(here, dict):
            if key not in here:
                return False, ""
            unconfirmed |= here.get(f"{key}_confirmed") is False
            source = here.get(f"{key}_source", source)
        here = here[key]
        if isinstance(here, dict):
            unconfirmed |= not facts.confirmed(here)
            source = here.get("source", source)
    return unconfirmed, source


def _finding(fact: UsedFact, source: str) -> Finding:
    names = facts.table(fact.file).get("sources", {})
    where = f"{_path(fact)} in kiln/facts/knowledge/{fact.file}.yaml"
    return Finding(
        "warning",
        RULE,
        f"{fact.what} is not confirmed: {where}",
        why="no source shows it, and no rule objects because of it",
        hint="compare the entry with the vendor's own statement and give it a source, or accept "
        "the warning",
        source=shown_source(facts.full_source(source, names), f"{fact.file}.yaml"),
    )


def _path(fact: UsedFact) -> str:
    """The way to the entry as a person finds it, such as types[p2.xlarge]."""
    here: Any = facts.table(fact.file)
    path = ""
    for key in fact.keys:
        here = here[key]
        if isinstance(key, int):
            path += f"[{next((here[name] for name in _NAMED_BY if name in here), key)}]"
        else:
            path += f".{key}"
    return path.removeprefix(".")


def shown_source(source: str, file: str) -> str:
    """The source that a finding shows: the unconfirmed entry itself if it names none."""
    if source in {"", "none"}:
        return f"this repository: kiln/facts/knowledge/{file} (confirmed: false, no source)"
    return source
