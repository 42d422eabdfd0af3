"""Rules about the distribution: its end of life and its package repositories."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kiln import facts
from kiln.base import versions
from kiln.compat.rules.combination import Combination
from kiln.compat.rules.registry import Objection, rule
from kiln.facts import table


@rule("OS-EOL")
def distro_ended(c: Combination) -> Iterator[Objection]:
    """Past the end of life: an error, unless extended support applies or the facts say warning."""
    about = c.about
    end = facts.last_day(about["end_of_life"])
    if end is None or c.today <= end:
        return
    extended: dict[str, Any] = about.get("extended", {})
    until = facts.last_day(extended.get("until"))
    covered = until is not None and c.today <= until
    declared = covered and (extended["automatic"] or c.extended_support)
    hint = "choose a supported distribution"
    if covered and not declared:
        hint += f", or declare {extended['name']} (to {extended['until']}): extended_support: true"
    elif covered:
        hint = f"{extended['name']} lasts until {extended['until']}"
    allowed = declared or about.get("past_end_of_life") == "warning"
    yield Objection(
        f"{about['name']} reached its end of life on {end}",
        hint=hint,
        why=_end_means(c),
        advice=bool(allowed),
        source=facts.full_source(about.get("source", ""), table("distros")["sources"]),
    )


def _end_means(c: Combination) -> str:
    """What the end of the distribution's life brings, with the last versions that it gets."""
    last = c.repo.get("drivers", {}).get("last")
    last_versions = {
        "cuda_repo": c.repository,
        "last_cuda": c.repo.get("last"),
        "last_driver": facts.branches()[last].newest if last else None,
        "last_efa": table("efa")["os"].get(c.distro, {}).get("last"),
    }
    text: str = c.about.get("end_means", "")
    for name, version in last_versions.items():
        text = text.replace(f"{{{name}}}", version or "an unknown version")
    return text


@rule("UNTRIED")
def never_baked(c: Combination) -> Iterator[Objection]:
    """A combination that no row bakes is judged by facts alone: nobody saw it work."""
    tried: dict[str, list[str]] = c.about.get("tried", {})
    if c.arch in tried.get(c.flavor, ()):
        return
    name = c.about["name"]
    if not c.about.get("parents"):
        message = f"nothing was ever baked on {name}: AMI Kiln has no parent AMI for it"
    elif c.flavor not in tried:
        message = f"flavour {c.flavor} was never baked on {name}"
    else:
        message = f"{name} was never baked with flavour {c.flavor} for {c.arch}"
    combinations = [f"{flavor} ({', '.join(arches)})" for flavor, arches in tried.items()]
    yield Objection(
        message,
        hint=f"tried on {name}: {', '.join(combinations)}"
        if combinations
        else "docs/add-a-distribution.md says how to add one",
        why="only facts were compared: no provisioner, parent AMI or check was tried with it",
        advice=True,
    )


@rule("OS-CUDA-REPO")
def cuda_in_repo(c: Combination) -> Iterator[Objection]:
    """The toolkit must be in the distribution's repository, unless a runfile installs it."""
    release = facts.cuda_release(c.cuda) if c.cuda else None
    if release is None or c.cuda_source != "repo" or c.arch not in c.repo["arches"]:
        return
    name = c.repository
    unsure = c.repo.get("unsure", [])
    first = c.repo.get("first", {}).get(c.arch)
    last = c.repo.get("last")
    series = versions.series(release)
    package = f"cuda-toolkit-{series.replace('.', '-')}"
    where = f"NVIDIA's {name} repository ({c.distro}, {c.arch})"
    if first and versions.below(series, versions.series(first)):
        yield Objection(
            f"{package} is not in {where}: the first there is {first}",
            hint=_runfile(c),
            unsure=f"first.{c.arch}" in unsure,
        )
    if last and versions.below(versions.series(last), series):
        yield Objection(
            f"{package} is not in {where}: the last there is {last}",
            hint=_runfile(c),
            unsure="last" in unsure,
        )


def _runfile(c: Combination) -> str:
    return f"choose an available CUDA, another distribution than {c.distro}, or CUDA's runfile"


@rule("OS-DRV-REPO")
def driver_in_repo(c: Combination) -> Iterator[Objection]:
    """The repository that the row installs from must have packages of the driver's branch."""
    if not c.driver:
        return
    name = c.repository
    held = c.repo.get("drivers", {})
    unsure = any(mark.startswith("drivers") for mark in c.repo.get("unsure", []))
    if c.driver_source in {None, "repo"} and not c.repo_has_driver:
        packaged = f", {c.about['name']} itself packages it" if c.distro_has_driver else ""
        yield Objection(
            f"driver branch {c.branch_name} is not in NVIDIA's {name} repository ({_range(held)})"
            f"{packaged}",
            hint=f"set driver_source: {'distro' if packaged else 'runfile'}, or choose an "
            "available branch",
            unsure=unsure,
            advice=c.driver_source is None,
        )
    if c.driver_source == "distro" and not c.distro_has_driver:
        drivers: dict[str, str] = c.about.get("packaged_drivers", {})
        packaged_now = drivers.get(c.branch_name or "")
        yield Objection(
            f"{c.about['name']} packages no driver {c.driver}"
            + (f"; its branch {c.branch_name} is at {packaged_now}" if packaged_now else ""),
            hint=f"it packages: {', '.join(drivers.values()) or 'none'} (as of "
            f"{table('distros')['as_of']}; archives move)",
            # Archives move on within a branch, so only a branch that is absent is an error.
            advice=packaged_now is not None,
        )


def _range(held: dict[str, Any]) -> str:
    parts = [
        f"{word} {held[key]}" for key, word in (("first", "from"), ("last", "up to")) if key in held
    ]
    return " ".join(parts)


@rule("OS-ARCH-REPO")
def arch_in_repo(c: Combination) -> Iterator[Objection]:
    """The repository must have packages for the processor; some lack arm64."""
    if c.arch in c.repo["arches"]:
        return
    from_repo = [
        part
        for part, used in (
            ("the driver", c.driver_source == "repo"),
            ("CUDA", c.cuda is not None and c.cuda_source == "repo"),
        )
        if used
    ]
    if from_repo:
        yield Objection(
            f"NVIDIA's {c.repository} repository has no {c.arch} tree: {c.distro} "
            f"{c.arch} cannot get {' and '.join(from_repo)} from it",
            hint="use runfiles, or another distribution",
            unsure="arches" in c.repo.get("unsure", []),
        )


@rule("OS-SSM-KERNEL")
def other_kernel(c: Combination) -> Iterator[Objection]:
    """The parent AMI boots another kernel than the distribution's default."""
    kernels = c.about.get("kernels")
    kernel = c.boot_kernel
    if kernels is None:
        return
    if c.kernel and (kernel is None or kernel.name not in kernels["entries"]):
        yield Objection(
            f"kernel {c.kernel} is not a known kernel of {c.distro}: the driver may not compile "
            "on it",
            hint=f"known: {', '.join(kernels['entries'])}",
        )
    if kernel is None:
        return
    default = kernels["entries"][kernels["default"]]
    if c.ssm_parameter and not c.kernel and versions.below(kernel.series, default["series"]):
        yield Objection(
            f"{c.ssm_parameter} resolves to kernel {kernel}; the default of {c.distro} is "
            f"{default['series']}",
            hint=f"use the {default.get('parameter', kernels['default'])} parameter",
        )
