"""Rules about the distribution, its repositories and kernel, and the instance types."""

from __future__ import annotations

from typing import Any

from kiln import facts
from kiln.base import versions
from kiln.base.recipe import Recipe
from kiln.compat import TYPE_CHECKS, Case, Kernel, Objection, Objections, rule, rules, type_rule
from kiln.facts import InstanceType, table


@rule("OS-EOL")
def ended_distro(recipe: Recipe, case: Case) -> Objections:
    """Past the end of life: an error, unless extended support applies or the facts say warning."""
    about = case.distro
    end = facts.last_day(about["end_of_life"])
    if end is None or case.today <= end:
        return
    extended: dict[str, Any] = about.get("extended", {})
    until = facts.last_day(extended.get("until"))
    covered = until is not None and case.today <= until
    declared = covered and (extended["automatic"] or recipe.extended_support)
    hint = "choose a supported distribution"
    if declared:
        hint = f"{extended['name']} lasts until {extended['until']}"
    elif covered:
        hint += f", or declare {extended['name']} (to {extended['until']}): extended_support: true"
    yield Objection(
        f"{about['name']} reached its end of life on {end}",
        hint,
        _end_means(recipe, case),
        advice=declared or about.get("past_end_of_life") == "warning",
        source=facts.full_source(about.get("source", ""), table("distros")["sources"]),
    )


def _end_means(recipe: Recipe, case: Case) -> str:
    """Describe the effects of the distribution's end of life, with the last versions that it
    gets."""
    last = case.cuda_repo.get("drivers", {}).get("last")
    last_versions = {
        "cuda_repo": recipe.distro.cuda_repo,
        "last_cuda": case.cuda_repo.get("last"),
        "last_driver": facts.branches()[last].newest if last else None,
        "last_efa": table("efa")["os"].get(recipe.distro.id, {}).get("last"),
    }
    known = {name: version or "an unknown version" for name, version in last_versions.items()}
    return str(case.distro.get("end_means", "")).format(**known)


@rule("UNTRIED")
def never_baked(recipe: Recipe, case: Case) -> Objections:
    """A combination that no row bakes is judged by facts alone: nobody saw it work."""
    tried: dict[str, list[str]] = case.distro.get("tried", {})
    if recipe.arch in tried.get(recipe.flavor, ()):
        return
    name = case.distro["name"]
    message = f"{name} was never baked with flavor {recipe.flavor} for {recipe.arch}"
    others = ", ".join(f"{flavor} ({', '.join(arches)})" for flavor, arches in tried.items())
    hint = f"tried on {name}: {others}" if others else "see docs/add-a-distribution.md"
    yield Objection(message, hint, "only facts were compared", advice=True)


@rule("OS-CUDA-REPO")
def cuda_in_repo(recipe: Recipe, case: Case) -> Objections:
    """The toolkit must be in the distribution's repository."""
    release = facts.cuda_release(recipe.cuda) if recipe.cuda else None
    if release is None or recipe.arch not in case.cuda_repo["arches"]:
        return
    series = versions.series(release)
    first = case.cuda_repo.get("first", {}).get(recipe.arch, "0")
    last = case.cuda_repo.get("last", series)
    if versions.below(series, versions.series(first)):
        end, field = f"the first there is {first}", f"first.{recipe.arch}"
    elif versions.below(versions.series(last), series):
        end, field = f"the last there is {last}", "last"
    else:
        return
    repo = f"NVIDIA's {recipe.distro.cuda_repo} repository ({recipe.arch})"
    yield Objection(
        f"CUDA {series} is not in {repo}: {end}",
        "choose an available CUDA, or another distribution",
        unsure=field in case.cuda_repo.get("unsure", []),
    )


@rule("OS-DRV-REPO")
def driver_in_repo(recipe: Recipe, case: Case) -> Objections:
    """The repository that the row installs from must have packages of the driver's branch."""
    if not recipe.driver:
        return
    name, branch = case.distro["name"], case.branch_name
    if recipe.driver_source in {None, "repo"} and not case.repo_has_driver:
        held = case.cuda_repo.get("drivers", {})
        has = ", ".join(f"{end} {held[end]}" for end in ("first", "last") if end in held)
        source = "distro" if case.distro_has_driver else "runfile"
        yield Objection(
            f"NVIDIA's {recipe.distro.cuda_repo} repository has no driver branch {branch} ({has})",
            f"set driver_source: {source}, or choose an available branch",
            unsure=any(mark.startswith("drivers") for mark in case.cuda_repo.get("unsure", [])),
            advice=recipe.driver_source is None,
        )
    if recipe.driver_source == "distro" and not case.distro_has_driver:
        drivers: dict[str, str] = case.distro.get("packaged_drivers", {})
        yield Objection(
            f"{name} packages no driver {recipe.driver}",
            f"on {table('distros')['as_of']} it had: {', '.join(drivers.values()) or 'none'}",
            # Archives move on within a branch, so only a branch that is absent is an error.
            advice=branch in drivers,
        )


@rule("OS-ARCH-REPO")
def arch_in_repo(recipe: Recipe, case: Case) -> Objections:
    """The repository must have packages for the processor; some lack arm64."""
    wanted = {"the driver": recipe.driver_source == "repo", "CUDA": bool(recipe.cuda)}
    missing = [part for part, is_wanted in wanted.items() if is_wanted]
    if missing and recipe.arch not in case.cuda_repo["arches"]:
        yield Objection(
            f"NVIDIA's {recipe.distro.cuda_repo} repository has no {recipe.arch} tree for "
            f"{' and '.join(missing)}",
            "use runfiles, or another distribution",
            unsure="arches" in case.cuda_repo.get("unsure", []),
        )


@rule("OS-SSM-KERNEL")
def other_kernel(recipe: Recipe, case: Case) -> Objections:
    """The parent AMI boots another kernel than the distribution's default."""
    kernels, kernel = case.distro.get("kernels"), case.kernel
    if kernels is None:
        return
    if recipe.kernel and (kernel is None or kernel.name not in kernels["entries"]):
        yield Objection(
            f"{recipe.kernel} is not a known kernel of {recipe.distro.id}",
            f"known: {', '.join(kernels['entries'])}",
        )
    default = kernels["entries"][kernels["default"]]
    image = recipe.source_ami.ssm_parameter if recipe.source_ami else None
    older = kernel and versions.below(kernel.series, default["series"])
    if older and image and not recipe.kernel:
        yield Objection(
            f"{image} has kernel {kernel}; the default is {default['series']}",
            f"use the {default.get('parameter', kernels['default'])} parameter",
        )


@rule("KERN-BUILD")
def driver_compiles(recipe: Recipe, case: Case) -> Objections:
    """The driver must compile on the kernel that boots, or on the nearest measured kernel."""
    driver, kernel = recipe.driver, case.kernel
    # A distribution patches the sources that it packages.
    if not driver or kernel is None or case.driver_source == "distro":
        return
    measured, here = kernel.measured or kernel.proxy or "", f"{kernel} ({recipe.distro.id})"
    built = _drivers_built_on(measured)
    newer = [version for version in built if versions.at_least(version, driver)]
    hint = "choose a newer driver, or pin another kernel"
    if newer:
        found = min(newer, key=versions.key)
        hint = f"the next newer driver that was measured to build there is {found}"
    reason = None if driver in built else _failure(driver, measured)
    if reason and kernel.measured:
        yield Objection(f"driver {driver} does not compile on {here}: {reason}", hint)
    elif reason:
        message = f"driver {driver} does not compile on {measured}: {reason}"
        yield Objection(f"{message}. {kernel} was not measured and may be alike", hint, advice=True)
    elif doubt := _doubt(driver, kernel, built):
        message = f"driver {driver} was not measured on {here}: {doubt}"
        yield Objection(message, hint, unsure=True)


def _drivers_built_on(kernel: str) -> list[str]:
    """The drivers whose stock sources were measured to build on the kernel."""
    return [
        result["driver"]
        for result in table("kernel_builds")["measured"]
        if result["kernel"] == kernel and result["builds"] and not result.get("patched")
    ]


def _failure(driver: str, kernel: str) -> str | None:
    """Return why stock sources fail on a measured kernel; None if no cause is known."""
    for cause in table("kernel_builds")["causes"]:
        last = cause["drivers"].get(versions.major(driver))
        if kernel in cause["kernels"] and last and versions.at_least(last, driver):
            return f"{cause['what']}; {last} of the same branch and all older releases fail"
    return None


def _doubt(driver: str, kernel: Kernel, built: list[str]) -> str | None:
    """The failure of an older release of the branch there, or of the driver on an older kernel.

    None if a release up to this one was measured to build, or contains the fix.
    """
    branch = versions.major(driver)
    if any(versions.major(v) == branch and versions.at_least(driver, v) for v in built):
        return None
    for cause in table("kernel_builds")["causes"]:
        last, fix = cause["drivers"].get(branch), cause.get("fixed_in")
        if not last or (fix and versions.major(fix) == branch and versions.at_least(driver, fix)):
            continue
        if kernel.measured in cause["kernels"]:
            return f"{last} of the same branch does not compile there ({cause['what']})"
        number = versions.key(kernel.series)[:2]
        older = [name for name in cause["kernels"] if versions.key(name)[:2] < number]
        if older and versions.at_least(last, driver):
            name = max(older, key=versions.key)
            return f"it does not compile on the older kernel {name} ({cause['what']})"
    return None


@rule("KERN-MIN")
def kernel_too_old(recipe: Recipe, case: Case) -> Objections:
    """Drivers stop supporting old kernels."""
    wanted = [
        (f"driver {recipe.driver}", "drivers", "from_branch", case.branch_name),
        (f"the driver of EFA installer {recipe.efa}", "efa", "installer", recipe.efa or ""),
    ]
    for subject, file, since, version in wanted:
        entry = versions.last_reached(table(file)["minimum_kernel"], since, version)
        if entry and case.kernel and versions.below(case.kernel.series, entry["kernel"]):
            message = f"{subject} needs kernel >= {entry['kernel']}; {case.kernel} would boot"
            yield Objection(message, "pin a newer kernel, or choose an older version")


@type_rule("ARCH-INSTANCE")
def same_arch(recipe: Recipe, case: Case, kind: InstanceType) -> Objections:
    """An AMI boots on one processor architecture."""
    if kind.arch != recipe.arch:
        arm = {other.family for other in facts.instances().values() if other.arch == "arm64"}
        yield Objection(
            f"{kind.type} is {kind.arch}, the image {recipe.arch}",
            f"the arm64 GPU families are: {', '.join(sorted(arm))}",
        )


@rule("ARCH-BUILD")
def bakes_on_same_arch(recipe: Recipe, case: Case) -> Objections:
    """The instances that bake and check the image boot it too."""
    like = "g5g.xlarge" if recipe.arch == "arm64" else "g4dn.xlarge"
    for name in case.build_types:
        kind = facts.instances().get(name)
        if kind and kind.arch != recipe.arch:
            yield Objection(
                f"{name} is {kind.arch}, the image {recipe.arch}",
                f"bake and check it on a type such as {like}",
            )


@rule("BUILD-INSTANCE")
def bakes_and_checks(recipe: Recipe, case: Case) -> Objections:
    """The instances that bake and check should have a GPU that this driver drives."""
    judging = [name for name in TYPE_CHECKS if rules()[name].level == "error"]
    for name in case.build_types:
        kind = facts.instances().get(name)
        if kind is None:
            message = f"{name} has no known NVIDIA GPU: only compilation can be checked on it"
            yield Objection(message, "bake on a type such as g4dn.xlarge or g5g.xlarge")
            continue
        for rule_id in judging:
            for objection in TYPE_CHECKS[rule_id](recipe, case, kind):
                if rule_id != "ARCH-INSTANCE" and not objection.advice:
                    yield Objection(
                        f"{name} bakes or checks this image but cannot run it: {objection.message}",
                        "choose another instance_type or verify_instance_type",
                    )


@rule("INST-GONE", reads_types=True)
def retired_type(recipe: Recipe, case: Case) -> Objections:
    """EC2 retires families."""
    gone = [kind.type for kind in case.types if not kind.offered]
    if gone:
        yield Objection(
            f"EC2 no longer offers {', '.join(gone)} (as of {table('instances')['as_of'][:7]})",
            "remove retired types from target_instance_types, unless your account has them",
        )
