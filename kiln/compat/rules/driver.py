"""Rules about the driver, and about driver and CUDA."""

from __future__ import annotations

from collections.abc import Iterator

from kiln import facts
from kiln.base import versions
from kiln.base.errors import nearest
from kiln.compat.rules.combination import Combination
from kiln.compat.rules.registry import Objection, rule
from kiln.facts import table


@rule("DRV-UNKNOWN")
def unknown_driver(c: Combination) -> Iterator[Objection]:
    """A version that NVIDIA never released, such as 510.47.3."""
    if c.driver is None:
        return
    if c.driver in _releases():
        return
    guess = nearest_driver(c.driver)
    add = (
        "if NVIDIA did release it, add it under its branch in overlay/facts/drivers.yaml "
        "(docs/overlay.md), or in kiln/facts/knowledge/drivers.yaml"
    )
    yield Objection(
        f"{c.driver} is not an NVIDIA release" + (f"; did you mean {guess}?" if guess else ""),
        hint=f"{add} (as of {table('drivers')['as_of']})"
        + ("" if c.branch else f"; the branches: {', '.join(facts.branches())}"),
    )


def _releases() -> list[str]:
    return [v for branch in facts.branches().values() for v in (*branch.versions, *branch.betas)]


def nearest_driver(driver: str) -> str | None:
    """The release that a person most likely means, or None.

    The same version written differently; otherwise the nearest in its branch; otherwise in any.
    """
    releases = _releases()
    for version in releases:
        if versions.same(version, driver):
            return version
    branch = facts.branch(driver)
    if branch and branch.versions:
        # Two different digits are not a typo: the newest release is the better guess.
        return nearest(driver, branch.versions, likeness=0.85) or branch.newest
    # In an unknown branch only a typo is worth a guess.
    return nearest(driver, releases, likeness=0.8)


@rule("DRV-EOL")
def branch_ended(c: Combination) -> Iterator[Objection]:
    """A branch without further fixes."""
    branch = c.branch
    if branch is None or not branch.ended(c.today):
        return
    supported = ", ".join(
        f"{other.name} ({other.kind}, to {other.end_of_life})"
        for other in facts.supported_branches(c.today)
    )
    yield Objection(
        f"support of driver branch {branch.name} ended on {branch.end_of_life}",
        hint=f"choose a supported branch: {supported}",
        why="it gets no security fixes",
        unsure="end_of_life" in branch.unsure,
    )


@rule("DRV-BETA")
def beta(c: Combination) -> Iterator[Objection]:
    """A developer beta: not for production, and without fabric manager."""
    if c.branch and c.driver in c.branch.betas:
        yield Objection(
            f"{c.driver} is a beta; no data-centre redist (fabric manager) exists for it",
            hint=f"choose {c.branch.newest}, the newest release of branch {c.branch.name}",
        )


@rule("DRV-MODULE")
def open_too_early(c: Combination) -> Iterator[Objection]:
    """Open kernel modules of a branch that has none."""
    if c.branch and "open" in c.modules and "open" not in c.branch.modules:
        first = next(
            branch.name for branch in facts.branches().values() if "open" in branch.modules
        )
        yield Objection(
            f"driver branch {c.branch.name} has no open kernel modules; {first} is the first",
        )


@rule("DRV-CUDA-MAJOR")
def cuda_major(c: Combination) -> Iterator[Objection]:
    """A driver below the minimum of the CUDA major: programs built with it do not run."""
    floor = table("cuda")["floors"].get(c.cuda_major)
    if not c.driver or not floor or versions.at_least(c.driver, floor):
        return
    native = f" (native {c.branch.native_cuda})" if c.branch else ""
    yield Objection(
        f"CUDA {c.cuda} needs NVIDIA driver >= {floor}; {c.driver} only runs CUDA "
        f"{_highest_major(c.driver)}.x and older{native}",
    )


def _highest_major(driver: str) -> str:
    floors: dict[str, str] = table("cuda")["floors"]
    reached = [major for major, floor in floors.items() if versions.at_least(driver, floor)]
    return versions.newest(reached) or str(int(min(floors, key=versions.key)) - 1)


@rule("DRV-CUDA-MINOR")
def cuda_minor(c: Combination) -> Iterator[Objection]:
    """A toolkit of the driver's CUDA major, but newer than the driver's own CUDA."""
    if not c.cuda or not c.branch or versions.major(c.branch.native_cuda) != c.cuda_major:
        return
    wanted = versions.series(c.cuda)
    if versions.at_least(c.branch.native_cuda, wanted):
        return
    native = [branch.name for branch in facts.branches().values() if branch.native_cuda == wanted]
    yield Objection(
        f"CUDA {wanted} on driver {c.driver} (own CUDA {c.branch.native_cuda}) runs in minor "
        "version compatibility: no new driver features, and code built only as PTX fails with "
        "CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
        hint=f"branch {native[0]} supports CUDA {wanted} natively" if native else "",
        unsure="native_cuda" in c.branch.unsure,
    )


@rule("CUDA-UNKNOWN")
def unknown_cuda(c: Combination) -> Iterator[Objection]:
    """An unknown toolkit. Outside the range of the known list it may exist, so it only warns."""
    if c.cuda is None or facts.cuda_release(c.cuda):
        return
    releases = sorted(table("cuda")["releases"], key=versions.key)
    inside = versions.at_least(c.cuda, releases[0]) and versions.at_least(releases[-1], c.cuda)
    guess = nearest(c.cuda, releases)
    yield Objection(
        f"{c.cuda} is not a known CUDA release" + (f"; did you mean {guess}?" if guess else ""),
        hint=f"if NVIDIA released it after {table('cuda')['as_of']}, add it to "
        "kiln/facts/knowledge/cuda.yaml",
        unsure=not inside,
    )
