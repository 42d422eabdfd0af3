"""The unconfirmed facts that a row rests on: entries of `kiln/facts/knowledge` and hashes of
amis.lock.yaml with `confirmed: false`.

They are facts because of which the row passes. A rule that objects because of an unconfirmed fact
warns by itself. `check` counts them, `check --strict` lists them as errors.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from kiln import components, facts
from kiln.base import overlay, paths, times, versions
from kiln.base.errors import KilnError
from kiln.base.findings import Finding
from kiln.base.recipe import Recipe
from kiln.compat.rules.combination import Combination, recipe_combination
from kiln.compat.rules.libraries import has_need
from kiln.compat.rules.network import accepted_by_installer
from kiln.compat.rules.registry import rules
from kiln.facts import lock_file

RULE = "FACT-UNCONFIRMED"
# A fact that a row uses: the recipe's fields that request it, separated by spaces; the table; the
# keys that lead to it, of which an int is a position in a list.
_Fact = tuple[str, str, tuple[str | int, ...]]


def unconfirmed_facts(c: Combination, recipe: Recipe | None = None) -> list[Finding]:
    """Return an error for each unconfirmed fact that a combination rests on, or the recipe that it
    was made from: then at the value that requests the fact."""
    areas = (_machines, _driver, _cuda, _libraries, _efa, _mig, _distribution)
    found = [entry for area in areas for entry in _unconfirmed(area(c))]
    once: dict[str, Finding] = {}
    for fields, finding in [*found, *(_recipe_entries(recipe) if recipe else ())]:
        place = recipe.row.place_of(*fields.split()) if recipe else None
        once.setdefault(finding.message, finding.at(place) if place else finding)
    return list(once.values())


def unconfirmed_of_row(recipe: Recipe) -> list[Finding]:
    """Return an error for each unconfirmed fact that a recipe rests on."""
    return unconfirmed_facts(recipe_combination(recipe, times.today()), recipe)


def _recipe_entries(recipe: Recipe) -> Iterator[tuple[str, Finding]]:
    yield from _unconfirmed(_services(recipe))
    locked = {entry["url"]: entry for entry in lock_file.read_lock_file()["artifacts"]}
    for name in recipe.components:
        try:
            step = components.get(name).for_recipe(recipe)
        except KilnError:  # the row lacks something that the component needs: a rule reports that
            continue
        fields = components.get(name).request_field or ""
        for row in step.rows:
            if not row.confirmed:
                yield fields, _finding(f"{row.key} in kiln/facts/knowledge/{row.file}", row.source)
        yield from _unconfirmed((fields, "keys", ("keys", key)) for key in _keys(step, recipe))
        for download in step.downloads:
            entry = locked.get(download.url, {})
            if entry.get("sha256") and not facts.confirmed(entry):
                file = overlay.shown_path(paths.lock_file())
                yield fields, _finding(f"the hash of {download.url} in {file}", entry["source"])


def _keys(step: components.Step, recipe: Recipe) -> list[str]:
    """Return the keys that the step uses: none if it downloads no key file, and of NVIDIA's
    repository keys only that of the distribution's package format."""
    if not any(download.env.endswith("_KEY") for download in step.downloads):
        return []
    other = {"al": "nvidia-cuda-deb", "debian": "nvidia-cuda-rpm"}[recipe.distro.family]
    return [name for name in step.keys.values() if name != other]


def _services(recipe: Recipe) -> Iterator[_Fact]:
    if recipe.cloudwatch_agent:
        version = recipe.cloudwatch_agent
        yield "cloudwatch_agent", "services", ("cloudwatch_agent", "builds", version)
        blocks = ["agent", "gpu_metrics", "measurements", "append_dimensions", "logs"]
        blocks += ["efa"] * bool(recipe.efa) + ["dcgm"] * bool(recipe.dcgm_exporter)
        for block in blocks:
            yield "telemetry cloudwatch_agent", "cloudwatch", (block,)
    if recipe.mig_parted:
        yield "mig_parted", "services", ("mig_parted",)
    service = facts.distro(recipe.distro.id).get("package_snapshot")
    if recipe.package_snapshot and service:
        yield "package_snapshot distro", "distros", ("package_snapshots", service)


def _machines(c: Combination) -> Iterator[_Fact]:
    known = facts.instances()
    build = [known[name] for name in c.build_instances if name in known]
    for types, field in ((c.instance_types, "target_instance_types"), (build, "instance_type")):
        for kind in types:
            yield from _listed(field, "instances", "types", type=kind.type)
            yield field, "instances", ("gpus", kind.gpu)
    for kind in _served(c) if c.fabric_manager else ():
        if kind.nvswitch:
            yield "target_instance_types driver", "instances", ("nvswitches", kind.gpu_arch)


def _served(c: Combination) -> list[facts.InstanceType]:
    """Return the combination's instance types; if it names none, all of its processor."""
    every = facts.instances().values()
    return list(c.instance_types) or [kind for kind in every if kind.arch == c.arch]


def _driver(c: Combination) -> Iterator[_Fact]:
    if not c.driver or not c.branch_name:
        return
    yield "driver", "drivers", ("branches", c.branch_name)
    for kind in c.instance_types:
        fields = "driver target_instance_types"
        gpu = facts.table("drivers")["gpus"].get(kind.gpu)
        if gpu and _first_branch_matters(c.branch_name, gpu):
            yield fields, "drivers", ("gpus", kind.gpu)
        yield fields, "drivers", ("architectures", kind.gpu_arch)
    yield from _reached("driver", "drivers", "minimum_kernel", "from_branch", c.branch_name)
    if c.fabric_manager:
        yield "driver", "drivers", ("fabricmanager",)
    for name, _, version in (package.partition("=") for package in c.packages):
        if name == "nvlsm":
            yield "nvlsm driver", "drivers", ("nvlsm", "versions", version)


def _first_branch_matters(branch: str, gpu: Mapping[str, str]) -> bool:
    """Return True if only the GPU's first branch says that this branch has it: below that branch a
    rule objects, and from `known_from` on the branch itself lists the GPU."""
    surely = gpu.get("known_from")
    return versions.at_least(branch, gpu["first_branch"]) and not (
        surely and versions.at_least(branch, surely)
    )


def _cuda(c: Combination) -> Iterator[_Fact]:
    if "repo" in {c.driver_from if c.driver else "", c.cuda_source if c.cuda else ""}:
        yield "distro", "cuda", ("repos", c.repository)
    if c.cuda:
        yield "cuda", "cuda", ("floors", c.cuda_major or "")
        yield "cuda", "cuda", ("releases", facts.cuda_release(c.cuda) or "")
    if c.cudnn:
        yield from _reached("cudnn", "cuda", "cudnn", "from", c.cudnn)


def _libraries(c: Combination) -> Iterator[_Fact]:
    if c.nccl:
        yield "nccl", "nccl", ("versions", c.nccl)
    if c.nccl and c.plugin:
        yield from _reached("ofi_nccl efa", "nccl", "plugin", "from", c.plugin)
        if c.cuda_major == versions.newest(facts.table("cuda")["floors"]):
            yield "ofi_nccl efa", "nccl", ("plugin_cuda13",)
    for name in ("container_toolkit", "dcgm", "dcgm_exporter", "gdrcopy"):
        if getattr(c, name):
            yield name, "services", (name,)
    if c.gdrcopy:
        for place, need in enumerate(facts.table("services")["gdrcopy"]["needs"]):
            if has_need(c, need):
                yield "gdrcopy", "services", ("gdrcopy", "needs", place)


def _efa(c: Combination) -> Iterator[_Fact]:
    if not c.efa:
        return
    window = facts.table("efa")["os"].get(c.distro)
    if window and accepted_by_installer(c.efa, window):
        yield "efa", "efa", ("os", c.distro)
    plugin = [("bundles_plugin_from", c.arch), ("bundles_plugin_on", c.arch)]
    for keys in [("releases", c.efa), *plugin]:
        yield "efa", "efa", keys
    if c.branch_name:
        yield from _reached("efa", "efa", "gdr", "driver_branch", c.branch_name)
    yield from _reached("efa", "efa", "minimum_kernel", "installer", c.efa)


def _mig(c: Combination) -> Iterator[_Fact]:
    off = ["", None, *rules()["MIG-EFA"].limits["labels_without"]]
    if not c.mig and c.mig_label in off:
        return
    fields = "mig_config target_instance_types"
    yield fields, "mig", ("compute_instance_sizes",)
    yield fields, "mig", ("compute_instance_profiles",)
    for kind in (kind for kind in _served(c) if kind.mig):
        yield from _listed(fields, "mig", "gpus", gpu=kind.gpu)
        for place, entry in enumerate(facts.table("mig")["driver_minimums"]):
            if kind.gpu in entry["gpus"]:
                yield f"driver {fields}", "mig", ("driver_minimums", place)
                break
        yield fields, "mig", ("mode_change", kind.gpu_arch)


def _distribution(c: Combination) -> Iterator[_Fact]:
    yield "distro", "distros", ("distros", c.distro)
    if c.flavor != "base":
        yield "flavors distro", "distros", ("flavors", c.flavor)
    kernel = c.boot_kernel
    if kernel:
        yield "kernel distro", "distros", ("distros", c.distro, "kernels", "entries", kernel.name)
        build = {"kernel": kernel.measured or kernel.proxy, "driver": c.driver}
        yield from _listed("driver kernel", "kernel_builds", "measured", **build)


def _listed(fields: str, file: str, block: str, **wanted: str | None) -> Iterator[_Fact]:
    """Yield the entries of a list that have these values."""
    for place, entry in enumerate(facts.table(file)[block]):
        if all(entry.get(key) == value for key, value in wanted.items()):
            yield fields, file, (block, place)


def _reached(fields: str, file: str, block: str, since: str, version: str) -> Iterator[_Fact]:
    """Yield the entry of a list that holds for a version, by the entry's key `since`."""
    entries: list[dict[str, Any]] = facts.table(file)[block]
    entry = versions.last_reached(entries, since, version)
    if entry:
        yield fields, file, (block, entries.index(entry))


def _unconfirmed(used: Iterable[_Fact]) -> Iterator[tuple[str, Finding]]:
    """Yield the facts that are marked `confirmed: false`, themselves or by a block around them. An
    entry that the table lacks is left to its rule."""
    for fields, file, keys in used:
        here: Any = facts.table(file)
        names = here.get("sources", {})
        marked, source, path = not facts.confirmed(here), here.get("source", ""), ""
        for key in keys:
            if isinstance(here, dict):
                if key not in here:
                    marked = False
                    break
                marked |= here.get(f"{key}_confirmed") is False
                source = here.get(f"{key}_source", source)
            here = here[key]
            # The first value names the entry of a list: types[p2.xlarge].
            path += f"[{next(iter(here.values()))}]" if isinstance(key, int) else f".{key}"
            if isinstance(here, dict):
                marked |= not facts.confirmed(here)
                source = here.get("source", source)
        if marked:
            where = f"{path.removeprefix('.')} in kiln/facts/knowledge/{file}.yaml"
            yield fields, _finding(where, facts.full_source(str(source), names))


def _finding(entry: str, source: str) -> Finding:
    return Finding(
        "error",
        RULE,
        f"{entry} is not confirmed",
        hint="compare the entry with the vendor's own statement and give it a source",
        source="" if source == "none" else source,
    )
