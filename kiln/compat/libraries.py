"""Rules about libraries and services: NCCL, cuDNN, GDRCopy, DCGM."""

from __future__ import annotations

from kiln import facts
from kiln.base import versions
from kiln.base.recipe import Recipe
from kiln.compat import Case, Objection, Objections, rule, unknown
from kiln.facts import table


@rule("LIB-CUDA")
def library_without_cuda(recipe: Recipe, case: Case) -> Objections:
    """NCCL and cuDNN are built for a CUDA version, so without CUDA no package can be chosen."""
    for name, version in (("NCCL", recipe.nccl), ("cuDNN", recipe.cudnn)):
        if case.complete and version and not recipe.cuda:
            yield Objection(f"{name} {version} on an image without CUDA", "set cuda")


@rule("LIB-UNKNOWN")
def unknown_library(recipe: Recipe, case: Case) -> Objections:
    """Our lists have gaps and do not go back to the first release: an unknown one only warns."""
    for name in ("gdrcopy", "dcgm", "container_toolkit", "efa"):
        version = getattr(recipe, name)
        known = table("efa")["releases"] if name == "efa" else table("services")[name]["versions"]
        if version and version not in known:
            file = "efa" if name == "efa" else "services"
            message = unknown(version, f"{name} release", known)
            yield Objection(message, f"add a newer one to kiln/facts/knowledge/{file}.yaml")


@rule("NCCL-CUDA")
def nccl_packaged(recipe: Recipe, case: Case) -> Objections:
    """A package of NCCL is built for one CUDA, which its version names, and serves the whole CUDA
    major. A row that installs it needs the package of exactly its CUDA."""
    if not recipe.nccl:
        return
    known = table("nccl")["versions"]
    entry = known.get(recipe.nccl)
    if entry is None:
        message = unknown(recipe.nccl, "NCCL release", known)
        yield Objection(message, f"the newest is {versions.newest(known)}")
        return
    if not entry["cuda"] or not recipe.cuda:
        return
    cuda = versions.series(recipe.cuda)
    message = f"NCCL {recipe.nccl} was packaged for CUDA {', '.join(entry['cuda'])}, not for {cuda}"
    installs = "nccl" in recipe.components
    if not any(_serves(built, cuda, exactly=installs) for built in entry["cuda"]):
        # Only a list with a source of its own was read in a repository's index.
        unsure = "source" not in entry or "cuda" in entry.get("unsure", ())
        yield Objection(message, _nccl_for(cuda, exactly=installs), unsure=unsure)
    elif not any(_serves(built, cuda, exactly=True) for built in entry["cuda"]):
        hint = f"{_nccl_for(cuda, exactly=True)}; a row that installs the packages is refused"
        if not case.complete:
            yield Objection(message, hint, advice=True)


def _serves(built: str, cuda: str, *, exactly: bool) -> bool:
    """Return True if a package built for a CUDA serves another one."""
    if exactly and not built.endswith(".x"):
        return cuda == built
    return versions.major(cuda) == versions.major(built)


def _nccl_for(cuda: str, *, exactly: bool) -> str:
    fitting = [
        version
        for version, entry in table("nccl")["versions"].items()
        if any(_serves(built, cuda, exactly=exactly) for built in entry["cuda"] or ())
    ]
    return f"for CUDA {cuda} choose NCCL {' or '.join(fitting[-3:])}" if fitting else ""


@rule("CUDNN-CUDA")
def cudnn_built_for(recipe: Recipe, case: Case) -> Objections:
    """cuDNN is built per CUDA major, and not for every distribution."""
    if not recipe.cudnn:
        return
    distro = recipe.distro
    for entry in table("cuda")["cudnn_missing"]:
        if entry["repo"] == distro.cuda_repo and versions.at_least(recipe.cudnn, entry["from"]):
            yield Objection(
                f"NVIDIA's {entry['repo']} repository has no cuDNN >= {entry['from']}",
                f"choose a cuDNN older than {entry['from']}",
                unsure=not facts.confirmed(entry),
            )
    builds = table("cuda")["cudnn"]
    oldest = min(builds, key=lambda entry: versions.key(entry["from"]))
    built = versions.last_reached(builds, "from", recipe.cudnn) or oldest
    major, built_for = case.cuda_major, " and ".join(built["majors"])
    others = [entry["from"] for entry in builds if major in entry["majors"]]
    if major and major not in built["majors"]:
        yield Objection(
            f"cuDNN {recipe.cudnn} has builds for CUDA {built_for}, none for {major}",
            f"cuDNN {', '.join(others)} have builds for CUDA {major}" if others else "",
            unsure=not facts.confirmed(built),
        )


@rule("GDR-DRV", reads_types=True)
def gdrcopy_knows(recipe: Recipe, case: Case) -> Objections:
    """GDRCopy's module must support driver, CUDA, GPU and kernel."""
    for need in table("services")["gdrcopy"]["needs"] if recipe.gdrcopy else ():
        subject = subject_of_need(recipe, case, need)
        if subject and versions.below(recipe.gdrcopy or "", need["gdrcopy"]):
            yield Objection(
                f"GDRCopy {recipe.gdrcopy} is too old for {subject}: {need['why']}",
                f"choose GDRCopy {need['gdrcopy']} or newer",
            )


def subject_of_need(recipe: Recipe, case: Case, need: dict[str, str]) -> str | None:
    """The part of an image that has this need of GDRCopy (an entry of services.yaml), or None."""
    if "module" in need and need["module"] not in case.modules:
        return None
    since = {
        "driver_from": ("driver", recipe.driver),
        "cuda_major_from": ("CUDA", recipe.cuda),
        "kernel_from": ("kernel", case.kernel and case.kernel.series),
    }
    for key, (what, version) in since.items():
        if key in need and version and versions.at_least(version, need[key]):
            return f"{what} {case.kernel if what == 'kernel' else version}"
    architectures = {kind.gpu_arch: kind.type for kind in reversed(case.types)}
    return architectures.get(need.get("gpu_arch", ""))


@rule("DCGM-MAJOR", reads_types=True)
def dcgm_3_is_old(recipe: Recipe, case: Case) -> Objections:
    """DCGM 3 lacks new drivers and GPUs."""
    if not recipe.dcgm or versions.major(recipe.dcgm) != "3":
        return
    limit = table("services")["dcgm"]["last_of_3"]
    new = [
        f"the {kind.ec2_name} of {kind.type}"
        for kind in case.types
        if kind.gpu_arch in limit["not_arch"]
    ]
    if recipe.driver and versions.at_least(case.branch_name, limit["below_branch"]):
        new.insert(0, f"driver {recipe.driver}")
    for subject in new:
        unsure = not facts.confirmed(limit)
        yield Objection(f"DCGM 3 does not know {subject}", "choose DCGM 4", unsure=unsure)


@rule("DCGM-EXPORTER")
def exporter_fits(recipe: Recipe, case: Case) -> Objections:
    """An exporter is released for one DCGM; its package accepts any, so only this rule notices."""
    exporter, dcgm = recipe.dcgm_exporter, recipe.dcgm
    if not exporter:
        return
    about = table("services")["dcgm_exporter"]
    tested = about["pairs"].get(exporter, [])
    if not dcgm:
        if case.complete:
            hint = f"add dcgm: {tested[0] if tested else 'and the version it was tested with'}"
            yield Objection(f"dcgm-exporter {exporter} would install an unpinned DCGM", hint)
    elif tested and dcgm not in tested:
        partner = [name for name, with_dcgm in about["pairs"].items() if dcgm in with_dcgm]
        message = f"dcgm-exporter {exporter} was tested with DCGM {' and '.join(tested)}"
        hint = f"for DCGM {dcgm} set dcgm_exporter: {partner[0]}" if partner else ""
        yield Objection(f"{message}, not with {dcgm}", hint, advice=True)
    if versions.at_least(exporter, about["renamed_from"]):
        yield Objection(
            f"dcgm-exporter {exporter} has other field names than dcgm-counters.csv",
            f"check its /metrics, or stay below {about['renamed_from']}",
            advice=True,
        )
