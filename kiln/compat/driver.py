"""Rules about the driver: its release, CUDA, the GPUs, MIG."""

from __future__ import annotations

from typing import Any

from kiln import facts
from kiln.base import versions
from kiln.base.errors import nearest
from kiln.base.recipe import Recipe
from kiln.compat import Case, Objection, Objections, rule, rules, type_rule, unknown
from kiln.facts import InstanceType, table
from kiln.mig.check import label_layout, label_problem


@rule("DRV-UNKNOWN")
def unknown_driver(recipe: Recipe, case: Case) -> Objections:
    """A version that NVIDIA never released, such as 510.47.3."""
    releases = [v for each in facts.branches().values() for v in (*each.versions, *each.betas)]
    driver, branch = recipe.driver, case.branch
    if not driver or driver in releases:
        return
    # The same version written differently, a typo, or else the newest release of its branch.
    guess = next((version for version in releases if versions.same(version, driver)), None)
    if branch and branch.versions:
        guess = guess or nearest(driver, branch.versions, likeness=0.85) or branch.newest
    guess = guess or nearest(driver, releases, likeness=0.8)
    yield Objection(
        f"{driver} is not an NVIDIA release" + (f"; did you mean {guess}?" if guess else ""),
        f"if it came out after {table('drivers')['as_of']}, add it to overlay/facts/drivers.yaml "
        "(docs/overlay.md)",
    )


@rule("DRV-EOL")
def ended_branch(recipe: Recipe, case: Case) -> Objections:
    """A branch without further fixes."""
    branch = case.branch
    if branch and branch.ended(case.today):
        supported = ", ".join(
            f"{other.name} ({other.kind}, to {other.end_of_life})"
            for other in facts.supported_branches(case.today)
        )
        yield Objection(
            f"support of driver branch {branch.name} ended on {branch.end_of_life}",
            f"choose a supported branch: {supported}",
            "it gets no security fixes",
            unsure="end_of_life" in branch.unsure,
        )


@rule("DRV-BETA")
def beta_driver(recipe: Recipe, case: Case) -> Objections:
    """A developer beta: not for production, and without fabric manager."""
    if case.branch and recipe.driver in case.branch.betas:
        yield Objection(
            f"{recipe.driver} is a beta and has no fabric manager",
            f"choose {case.branch.newest}, the newest release of its branch",
        )


@rule("DRV-MODULE")
def open_too_early(recipe: Recipe, case: Case) -> Objections:
    """Open kernel modules of a branch that has none."""
    if case.branch and "open" in case.modules and "open" not in case.branch.modules:
        first = next(name for name, each in facts.branches().items() if "open" in each.modules)
        yield Objection(
            f"driver branch {case.branch.name} has no open kernel modules; {first} is the first",
            "set kernel_module: proprietary",
        )


@rule("DRV-CUDA-MAJOR")
def cuda_major(recipe: Recipe, case: Case) -> Objections:
    """A driver below the minimum of the CUDA major: programs built with it do not run."""
    floors: dict[str, str] = table("cuda")["floors"]
    floor = floors.get(case.cuda_major)
    if not recipe.driver or not floor or versions.at_least(recipe.driver, floor):
        return
    own = f" (its own CUDA is {case.branch.native_cuda})" if case.branch else ""
    yield Objection(f"CUDA {recipe.cuda} needs NVIDIA driver >= {floor}, not {recipe.driver}{own}")


@rule("DRV-CUDA-MINOR")
def cuda_minor(recipe: Recipe, case: Case) -> Objections:
    """A toolkit of the driver's CUDA major, but newer than the driver's own CUDA."""
    branch = case.branch
    if not recipe.cuda or not branch or versions.major(branch.native_cuda) != case.cuda_major:
        return
    wanted = versions.series(recipe.cuda)
    if versions.at_least(branch.native_cuda, wanted):
        return
    native = [name for name, each in facts.branches().items() if each.native_cuda == wanted]
    yield Objection(
        f"CUDA {wanted} is newer than driver {recipe.driver}'s own ({branch.native_cuda}): code "
        "built only as PTX fails with CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
        f"branch {native[0]} supports CUDA {wanted} natively" if native else "",
        unsure="native_cuda" in branch.unsure,
    )


@rule("CUDA-UNKNOWN")
def unknown_cuda(recipe: Recipe, case: Case) -> Objections:
    """An unknown toolkit. Outside the range of the known list it may exist, so it only warns."""
    if not recipe.cuda or facts.cuda_release(recipe.cuda):
        return
    known = sorted(table("cuda")["releases"], key=versions.key)
    inside = versions.at_least(recipe.cuda, known[0]) and versions.at_least(known[-1], recipe.cuda)
    yield Objection(
        unknown(recipe.cuda, "CUDA release", known),
        f"if it came out after {table('cuda')['as_of']}, add it to kiln/facts/knowledge/cuda.yaml",
        unsure=not inside,
    )


def _gpu(kind: InstanceType) -> str:
    return f"{kind.type} has {kind.ec2_name} ({kind.gpu_arch})"


@type_rule("GPU-KEPLER")
def kepler(recipe: Recipe, case: Case, kind: InstanceType) -> Objections:
    """Kepler: the last driver branch and CUDA."""
    if kind.gpu_arch == "kepler":
        yield from _past_last(recipe, case, kind)


@type_rule("GPU-VOLTA")
def volta(recipe: Recipe, case: Case, kind: InstanceType) -> Objections:
    """Maxwell, Pascal and Volta: support ended with a long-term branch and CUDA 12."""
    if kind.gpu_arch in {"maxwell", "pascal", "volta"}:
        yield from _past_last(recipe, case, kind)


def _past_last(recipe: Recipe, case: Case, kind: InstanceType) -> Objections:
    last = table("drivers")["architectures"][kind.gpu_arch]
    branch, major = last["last_branch"], last["last_cuda_major"]
    too_new = []
    if not versions.at_least(branch, case.branch_name):
        too_new.append(f"driver {recipe.driver}")
    if not versions.at_least(major, case.cuda_major):
        too_new.append(f"CUDA {recipe.cuda}")
    if too_new:
        yield Objection(
            f"{_gpu(kind)}, whose last driver branch is {branch} and last CUDA {major}.x: "
            f"{' and '.join(too_new)} is too new",
        )


@type_rule("GPU-OPEN-OLD")
def open_on_old(recipe: Recipe, case: Case, kind: InstanceType) -> Objections:
    """Open kernel modules support Turing and newer."""
    if case.modules == {"open"} and kind.open_modules == "unsupported":
        yield Objection(
            f"open kernel modules support Turing and newer; {_gpu(kind)}",
            "set kernel_module: both, or proprietary",
        )


@type_rule("GPU-BLACKWELL-OPEN")
def blackwell(recipe: Recipe, case: Case, kind: InstanceType) -> Objections:
    """Blackwell needs open kernel modules, of a branch that supports the GPU."""
    if kind.gpu_arch == "blackwell":
        if case.modules == {"proprietary"}:
            yield Objection(
                f"{_gpu(kind)}: only open kernel modules drive it", "set kernel_module: open"
            )
        yield from _too_new(recipe, case, kind)


@type_rule("GPU-HOPPER")
def hopper(recipe: Recipe, case: Case, kind: InstanceType) -> Objections:
    """Hopper: the first branch that supports it, and the first that AWS uses."""
    if kind.gpu_arch != "hopper" or not recipe.driver:
        return
    too_new = list(_too_new(recipe, case, kind))
    yield from too_new
    usual = table("drivers")["gpus"][kind.gpu].get("used_by_aws_from")
    if not too_new and usual and versions.below(case.branch_name, usual):
        yield Objection(
            f"AWS images use driver branch {usual} or newer for {kind.ec2_name} ({kind.type})",
            f"choose a driver of branch {usual} or newer",
            advice=True,
        )


@type_rule("GPU-MIN")
def too_new_for_driver(recipe: Recipe, case: Case, kind: InstanceType) -> Objections:
    """Any other GPU that is too new for the driver."""
    if kind.gpu_arch not in {"blackwell", "hopper"}:
        yield from _too_new(recipe, case, kind)


def _too_new(recipe: Recipe, case: Case, kind: InstanceType) -> Objections:
    gpu = table("drivers")["gpus"].get(kind.gpu)
    if not gpu or not recipe.driver or versions.at_least(case.branch_name, gpu["first_branch"]):
        return
    # Below this driver no GPU of the architecture is supported.
    older = versions.below(recipe.driver, gpu.get("unknown_before", "0"))
    yield Objection(
        f"{kind.type} has {kind.ec2_name}, first supported by driver branch {gpu['first_branch']}; "
        f"{recipe.driver} does not know it",
        unsure=not facts.confirmed(gpu) and not older,
    )


@type_rule("GPU-OPEN-G")
def open_on_g(recipe: Recipe, case: Case, kind: InstanceType) -> Objections:
    """AWS does not use open kernel modules there: they cannot turn GSP firmware off."""
    families = rules()["GPU-OPEN-G"].limits["families"]
    if case.modules != {"open"} or kind.family not in families:
        return
    hint = "set kernel_module: both, which loads the proprietary module there"
    if case.branch and "proprietary" not in case.branch.modules:
        hint = "choose an older branch, which has the proprietary module"
    yield Objection(
        f"AWS turns GSP off on {', '.join(families)}, which open modules cannot ({kind.type})", hint
    )


@type_rule("GPU-GRID")
def fractional(recipe: Recipe, case: Case, kind: InstanceType) -> Objections:
    """A fractional GPU is a vGPU, which NVIDIA's data-center driver does not support."""
    if kind.grid_driver:
        yield Objection(
            f"{kind.type} has a fraction of one {kind.ec2_name} and needs the GRID driver, which "
            "AMI Kiln does not bake",
            "choose a type with whole GPUs",
        )


@rule("GPU-620")
def open_only(recipe: Recipe, case: Case) -> Objections:
    """Branches that ship open kernel modules only, from NVIDIA or from the distribution."""
    if "proprietary" not in case.modules or not recipe.driver:
        return
    hint = "set kernel_module: open"
    if case.branch and "proprietary" not in case.branch.modules:
        yield Objection(
            f"driver branch {case.branch_name} ships no proprietary kernel modules", hint
        )
        return
    first = case.distro.get("open_only_from")
    if first and versions.at_least(case.branch_name, first):
        name, unsure = case.distro["name"], case.driver_source != "distro"
        message = f"{name} packages branch {case.branch_name} with open modules only"
        yield Objection(message, hint, unsure=unsure)


@type_rule("MIG-GPU")
def profiles_exist(recipe: Recipe, case: Case, kind: InstanceType) -> Objections:
    """Each GPU model and memory size has profiles of its own. On a machine without MIG the unit
    does nothing: MIG-LABEL is about that."""
    if _label(recipe) and kind.mig and (problem := label_problem(_label(recipe), kind)):
        yield Objection(problem, "the labels are in runtime/etc/kiln/mig-config.json")


def _label(recipe: Recipe) -> str:
    """The row's MIG label; empty if there is none."""
    return "" if recipe.mig_config in (None, "none") else recipe.mig_config


@rule("MIG-LABEL", reads_types=True)
def label_exists(recipe: Recipe, case: Case) -> Objections:
    """If no instance type with MIG is given, a label must fit at least one type that exists. On
    machines without MIG it has no effect, which only warns."""
    label = _label(recipe)
    if not label or any(kind.mig for kind in case.types):
        return
    capable = [kind for kind in facts.instances().values() if kind.mig and kind.arch == recipe.arch]
    problems = [label_problem(label, kind) for kind in capable]
    if problems and all(problems):
        yield Objection(
            problems[0],
            "the labels are in runtime/etc/kiln/mig-config.json; all-disabled leaves MIG off",
        )
    elif case.types and label not in rules()["MIG-EFA"].limits["labels_without"]:
        names = ", ".join(kind.type for kind in case.types)
        yield Objection(
            f"MIG label {label} has no effect on {names}: none has a GPU with MIG",
            "remove mig_config, or name instance types with MIG",
            advice=True,
        )


@type_rule("MIG-DRV")
def driver_has_mig(recipe: Recipe, case: Case, kind: InstanceType) -> Objections:
    """MIG on a GPU, and some of its profiles, need a minimum driver."""
    on, profiles = label_layout(_label(recipe), kind) if _label(recipe) else (False, [])
    gpus: list[dict[str, Any]] = table("mig")["gpus"]
    gpu = next((entry for entry in gpus if entry["gpu"] == kind.gpu), None)
    if not on or gpu is None or not recipe.driver:
        return
    minimums = table("mig")["driver_minimums"]
    minimum = next((entry["driver"] for entry in minimums if kind.gpu in entry["gpus"]), None)
    needs = {"MIG": minimum} if minimum else {}
    since: dict[str, str] = gpu.get("since_driver", {})
    needs |= {f"MIG profile {name}": since[name] for name in profiles if name in since}
    for what, driver in needs.items():
        if versions.below(recipe.driver, driver):
            yield Objection(
                f"{what} on {kind.ec2_name} ({kind.type}) needs driver >= {driver}; "
                f"{recipe.driver} is older",
            )


@type_rule("MIG-CDMM")
def memory_of_the_driver(recipe: Recipe, case: Case, kind: InstanceType) -> Objections:
    """On EKS the driver manages the memory of GB200 and GB300 (CDMM), which excludes MIG."""
    label = _label(recipe)
    if recipe.flavor == "eks" and kind.imex and label and label_layout(label, kind)[0]:
        yield Objection(
            f"eks images let the driver manage the memory of {kind.ec2_name}: no MIG there",
            "leave out the MIG layout, or use the flavor base",
        )


@rule("MIG-EFA")
def mig_and_efa(recipe: Recipe, case: Case) -> Objections:
    """MIG disables peer-to-peer access between GPUs, so NCCL gains nothing from EFA."""
    without = rules()["MIG-EFA"].limits["labels_without"]
    if _label(recipe) not in ("", *without) and recipe.efa:
        yield Objection("NCCL over EFA gains nothing between MIG instances", "leave out MIG or EFA")
