"""Rules about the kernel: does the driver compile on the kernel that will boot?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kiln.base import versions
from kiln.compat.rules.combination import Combination, Kernel
from kiln.compat.rules.registry import Objection, rule
from kiln.facts import table


@rule("KERN-BUILD")
def compiles(c: Combination) -> Iterator[Objection]:
    """Does the driver compile on the kernel that boots, or on the nearest measured kernel?"""
    kernel = c.boot_kernel
    if not c.driver or kernel is None:
        return
    if c.driver_from == "distro":
        # The distribution patches the sources, so only a measurement of the patched ones counts.
        result = _measured(c.driver, kernel.measured or "", patched=True)
        if result and not result["builds"]:
            yield Objection(f"driver {c.driver} does not compile on {kernel}: {result['error']}")
        return
    measured_kernel = kernel.measured or kernel.proxy
    reason = _failure(c.driver, measured_kernel) if measured_kernel else None
    hint = _alternative(c.driver, measured_kernel) if measured_kernel else ""
    if reason and kernel.measured:
        message = f"driver {c.driver} does not compile on {kernel} ({c.distro}): {reason}"
        yield Objection(message, hint)
    elif reason:
        yield Objection(
            f"driver {c.driver} does not compile on {measured_kernel}: {reason}. "
            f"{c.about['name']}'s own kernel {kernel} was not measured and may have the same "
            "change",
            hint,
            advice=True,
        )
    elif kernel.measured and (doubt := _newer_than_failure(c.driver, kernel.measured)):
        yield Objection(
            f"driver {c.driver} was not measured on {kernel} ({c.distro}): {doubt}",
            hint,
            unsure=True,
        )
    elif measured_kernel is None or not _measured(c.driver, measured_kernel):
        yield from _older_failure(c, kernel)


def _older_failure(c: Combination, kernel: Kernel) -> Iterator[Objection]:
    """The driver was not measured here but fails on an older kernel, and kernels keep changes."""
    measured = {result["kernel"] for result in table("kernel_builds")["measured"]}
    for older in sorted(measured, key=versions.key, reverse=True):
        if versions.key(older)[:2] < versions.key(kernel.series)[:2] and c.driver:
            reason = _failure(c.driver, older)
            if reason:
                yield Objection(
                    f"driver {c.driver} does not compile on the older kernel {older}: {reason}. "
                    f"It was not measured on {kernel} ({c.distro})",
                    unsure=True,
                )
                return


def _newer_than_failure(driver: str, kernel: str) -> str | None:
    """The failure of an older release of the branch that this one may still have.

    None if a release up to this one was measured to build there, or contains the fix.
    """
    branch = versions.major(driver)
    if any(versions.at_least(driver, good) for good in _builds(kernel, branch)):
        return None
    for cause in table("kernel_builds")["causes"]:
        last, fix = cause["drivers"].get(branch), cause.get("fixed_in")
        fixed = fix and versions.major(fix) == branch and versions.at_least(driver, fix)
        if last and kernel in cause["kernels"] and not fixed:
            return f"{last} of the same branch does not compile there ({cause['what']})"
    return None


def _alternative(driver: str, kernel: str) -> str:
    good = _first_that_builds(driver, kernel)
    return f"the next newer driver that was measured to build there is {good}" if good else ""


def _failure(driver: str, kernel: str) -> str | None:
    """Why stock sources fail on a measured kernel; None if they build or were not measured."""
    exact = _measured(driver, kernel)
    if exact:
        return None if exact["builds"] else str(exact["error"])
    for cause in table("kernel_builds")["causes"]:
        last = cause["drivers"].get(versions.major(driver))
        if kernel in cause["kernels"] and last and versions.at_least(last, driver):
            return f"{cause['what']}; {last} of the same branch and all older releases fail"
    return None


def _measured(driver: str, kernel: str, *, patched: bool = False) -> dict[str, Any] | None:
    for result in table("kernel_builds")["measured"]:
        same_source = result.get("patched", False) == patched
        if (result["driver"], result["kernel"]) == (driver, kernel) and same_source:
            measurement: dict[str, Any] = result
            return measurement
    return None


def _first_that_builds(driver: str, kernel: str) -> str | None:
    """The next newer driver that was measured to build on the kernel, or None."""
    newer = [version for version in _builds(kernel) if versions.at_least(version, driver)]
    return min(newer, key=versions.key, default=None)


def _builds(kernel: str, branch: str | None = None) -> list[str]:
    """The drivers (of a branch) whose stock sources were measured to build on the kernel."""
    return [
        result["driver"]
        for result in table("kernel_builds")["measured"]
        if result["kernel"] == kernel and result["builds"] and not result.get("patched")
        if branch in (None, versions.major(result["driver"]))
    ]


@rule("KERN-MIN")
def too_old(c: Combination) -> Iterator[Objection]:
    """Drivers stop supporting old kernels."""
    kernel = c.boot_kernel
    if kernel is None:
        return
    wanted = [
        (f"driver {c.driver}", "drivers", "from_branch", c.branch_name),
        (f"the driver of EFA installer {c.efa}", "efa", "installer", c.efa),
    ]
    for subject, file, since, version in wanted:
        entries = table(file)["minimum_kernel"]
        entry = versions.last_reached(entries, since, version) if version else None
        if entry and versions.below(kernel.series, entry["kernel"]):
            yield Objection(
                f"{subject} needs kernel >= {entry['kernel']}; {c.distro} would boot {kernel}",
            )


@rule("KERN-HEADERS")
def built_for_the_running_kernel(c: Combination) -> Iterator[Objection]:
    """DKMS must build for the kernel that boots."""
    if c.reboots_into_kernel is False:
        yield Objection(
            "the kernel is updated without a reboot before the driver is built: its headers do "
            "not match the running kernel",
            hint="bake `kernel` before `nvidia-driver` (kiln/components/__init__.py), with "
            "`reboots=True` in kiln/components/kernel.py, or pin the kernel",
        )
