"""The unconfirmed facts that a row rests on: entries of `kiln/facts/knowledge` and hashes of
amis.lock.yaml with `confirmed: false`.

They are facts because of which the row passes. A rule that objects because of an unconfirmed fact
warns by itself. `check` counts them, `check --strict` lists them as errors.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from kiln import components, facts
from kiln.base import overlay, paths, versions, vocabulary
from kiln.base.errors import Finding, KilnError
from kiln.base.recipe import Recipe
from kiln.compat import Case, row_case, rules
from kiln.compat.libraries import subject_of_need
from kiln.compat.network import accepted_by_installer
from kiln.facts import InstanceType, packages, table

RULE = "FACT-UNCONFIRMED"
# A fact: the recipe's fields that request it, separated by spaces; the table; the keys that lead to
# it, of which an int is a position in a list. Keys that the table lacks are left to the rules.
_Fact = tuple[str, str, tuple[str | int | None, ...]]


def unconfirmed_of_row(recipe: Recipe) -> list[Finding]:
    """Return an error for each unconfirmed fact that a row rests on."""
    return unconfirmed_facts(row_case(recipe, vocabulary.today()))


def unconfirmed_facts(case: Case) -> list[Finding]:
    """Return an error for each unconfirmed fact that a case rests on; of a row at the value that
    requests the fact."""
    recipe = case.recipe
    used = [*_stack(recipe, case), *_libraries(recipe, case), *_types(recipe, case)]
    found = list(_unconfirmed([*used, *(_agents(recipe) if case.complete else ())]))
    found += _of_components(recipe) if case.complete else ()
    once: dict[str, Finding] = {}
    for fields, finding in found:
        place = recipe.row.place_of(*fields.split()) if case.complete else None
        once.setdefault(finding.message, finding.at(place) if place else finding)
    return list(once.values())


def _stack(recipe: Recipe, case: Case) -> Iterator[_Fact]:
    """Yield the facts about driver, CUDA, distribution and kernel."""
    branch, distro, kernel = case.branch_name, recipe.distro.id, case.kernel
    release = facts.cuda_release(recipe.cuda) if recipe.cuda else None
    yield "driver", "drivers", ("branches", branch)
    yield "driver", "drivers", _reached("drivers", "minimum_kernel", "from_branch", branch)
    if case.fabric_manager:
        yield "driver", "drivers", ("fabricmanager",)
        yield "nvlsm driver", "drivers", ("nvlsm", "versions", recipe.nvlsm)
    if recipe.cuda or (recipe.driver and case.driver_source == "repo"):
        yield "distro", "cuda", ("repos", recipe.distro.cuda_repo)
    yield "cuda", "cuda", ("floors", case.cuda_major)
    yield "cuda", "cuda", ("releases", release)
    yield "distro", "distros", ("distros", distro)
    yield "flavors distro", "distros", ("flavors", recipe.flavor)
    if kernel:
        yield "kernel distro", "distros", ("distros", distro, "kernels", "entries", kernel.name)
        measured = {"kernel": kernel.measured or kernel.proxy, "driver": recipe.driver}
        for keys in _listed("kernel_builds", "measured", measured):
            yield "driver kernel", "kernel_builds", keys


def _libraries(recipe: Recipe, case: Case) -> Iterator[_Fact]:
    """Yield the facts about cuDNN, NCCL, EFA and the services."""
    newest = versions.newest(table("cuda")["floors"])
    yield "cudnn", "cuda", _reached("cuda", "cudnn", "from", recipe.cudnn)
    yield "nccl", "nccl", ("versions", recipe.nccl)
    if recipe.nccl and case.plugin:
        yield "ofi_nccl efa", "nccl", _reached("nccl", "plugin", "from", case.plugin)
        yield "ofi_nccl efa", "nccl", ("plugin_cuda13" if case.cuda_major == newest else None,)
    for name in ("container_toolkit", "dcgm", "dcgm_exporter", "gdrcopy"):
        yield name, "services", (name if getattr(recipe, name) else None,)
    for place, need in enumerate(table("services")["gdrcopy"]["needs"] if recipe.gdrcopy else ()):
        if subject_of_need(recipe, case, need):
            yield "gdrcopy", "services", ("gdrcopy", "needs", place)
    if recipe.efa:
        window = table("efa")["os"].get(recipe.distro.id)
        if window and accepted_by_installer(recipe.efa, window):
            yield "efa", "efa", ("os", recipe.distro.id)
        yield "efa", "efa", ("releases", recipe.efa)
        for block in ("bundles_plugin_from", "bundles_plugin_on"):
            yield "efa", "efa", (block, recipe.arch)
        yield "efa", "efa", _reached("efa", "gdr", "driver_branch", case.branch_name)
        yield "efa", "efa", _reached("efa", "minimum_kernel", "installer", recipe.efa)


def _types(recipe: Recipe, case: Case) -> Iterator[_Fact]:
    """Yield the facts about the instance types, their GPUs and MIG."""
    known, field = facts.instances(), "target_instance_types"
    build = [known[name] for name in case.build_types if name in known]
    for kind in (*case.types, *build):
        at = field if kind in case.types else "instance_type"
        for keys in _listed("instances", "types", {"type": kind.type}):
            yield at, "instances", keys
        yield at, "instances", ("gpus", kind.gpu)
    for kind in case.types if recipe.driver else ():
        gpu = kind.gpu if _only_first_branch_lists(kind, case.branch_name) else None
        yield f"driver {field}", "drivers", ("gpus", gpu)
        yield f"driver {field}", "drivers", ("architectures", kind.gpu_arch)
    whole = [None, "none", *rules()["MIG-EFA"].limits["labels_without"]]
    # A row that names no instance type serves all of its processor.
    for kind in case.types or tuple(each for each in known.values() if each.arch == recipe.arch):
        if case.fabric_manager and kind.nvswitch:
            yield f"{field} driver", "instances", ("nvswitches", kind.gpu_arch)
        for keys in _mig(kind) if kind.mig and recipe.mig_config not in whole else ():
            yield f"mig_config {field}", "mig", keys


def _only_first_branch_lists(kind: InstanceType, branch: str) -> bool:
    """Return True if only the GPU's first branch says that this branch has it: below that branch a
    rule objects, and from `known_from` on the branch itself lists the GPU."""
    gpu = table("drivers")["gpus"].get(kind.gpu, {"first_branch": "9999"})
    known = "known_from" in gpu and versions.at_least(branch, gpu["known_from"])
    return versions.at_least(branch, gpu["first_branch"]) and not known


def _mig(kind: InstanceType) -> Iterator[tuple[str | int, ...]]:
    yield from (("compute_instance_sizes",), ("compute_instance_profiles",))
    yield from _listed("mig", "gpus", {"gpu": kind.gpu})
    minimums = enumerate(table("mig")["driver_minimums"])
    yield from (("driver_minimums", n) for n, entry in minimums if kind.gpu in entry["gpus"])
    yield ("mode_change", kind.gpu_arch)


def _agents(recipe: Recipe) -> Iterator[_Fact]:
    version, service = recipe.cloudwatch_agent, recipe.package_snapshot
    if version:
        yield "cloudwatch_agent", "services", ("cloudwatch_agent", "builds", version)
        blocks = ["agent", "gpu_metrics", "measurements", "append_dimensions", "logs"]
        blocks += ["efa"] * bool(recipe.efa) + ["dcgm"] * bool(recipe.dcgm_exporter)
        for block in blocks:
            yield "telemetry cloudwatch_agent", "cloudwatch", (block,)
    if service:
        service = facts.distro(recipe.distro.id).get("package_snapshot")
        yield "package_snapshot distro", "distros", ("package_snapshots", service)


def _of_components(recipe: Recipe) -> Iterator[tuple[str, Finding]]:
    """Yield the unconfirmed rows of facts, keys and hashes that the components use."""
    locked = {entry["url"]: entry for entry in packages.read_lock_file()["artifacts"]}
    # Of NVIDIA's repository keys a script uses only that of the distribution's package format.
    other_key = {"al": "nvidia-cuda-deb", "debian": "nvidia-cuda-rpm"}[recipe.distro.family]
    for name in recipe.components:
        try:
            step = components.get(name).for_recipe(recipe)
        except KilnError:  # the row lacks something that the component needs: a rule reports that
            continue
        fields = components.get(name).request_field or ""
        for row in step.rows:
            if not row.confirmed:
                yield fields, _finding(f"{row.key} in kiln/facts/knowledge/{row.file}", row.source)
        if any(download.env.endswith("_KEY") for download in step.downloads):
            keys = [key for key in step.keys.values() if key != other_key]
            yield from _unconfirmed((fields, "keys", ("keys", key)) for key in keys)
        for download in step.downloads:
            entry = locked.get(download.url, {})
            if entry.get("sha256") and not facts.confirmed(entry):
                file = overlay.shown_path(paths.lock_file())
                yield fields, _finding(f"the hash of {download.url} in {file}", entry["source"])


def _listed(
    file: str, block: str, wanted: dict[str, str | None]
) -> Iterator[tuple[str | int, ...]]:
    """Yield the keys of a list's entries that have these values."""
    for place, entry in enumerate(table(file)[block]):
        if all(entry.get(key) == value for key, value in wanted.items()):
            yield block, place


def _reached(
    file: str, block: str, since: str, version: str | None
) -> tuple[str | int | None, ...]:
    """Return the keys of the entry that holds for a version, by the entry's key `since`."""
    entries: list[dict[str, Any]] = table(file)[block]
    entry = versions.last_reached(entries, since, version or "")
    return (block, entries.index(entry)) if entry else (None,)


def _unconfirmed(used: Iterable[_Fact]) -> Iterator[tuple[str, Finding]]:
    """Yield the facts that are marked `confirmed: false`, themselves or by a block around them."""
    for fields, file, keys in used:
        here: Any = table(file)
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
