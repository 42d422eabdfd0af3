"""From the flags of `consume` to a launch request that the kind of document can carry."""

from __future__ import annotations

from dataclasses import replace

from kiln.base.errors import KilnError, did_you_mean
from kiln.consume.kinds import Kind, suits, takes
from kiln.consume.launch_options import LaunchOptions
from kiln.consume.launch_request import LaunchRequest, launch_request
from kiln.mig.k8s import OWNERS
from kiln.mig.makespan import whole_jobs


def only_for(kind: Kind, *, owner: str, jobs: str | None, walkthrough: bool) -> None:
    """Raises KilnError (exit status 2) for a flag of another kind of document."""
    if owner not in OWNERS:
        raise KilnError(f"unknown owner {owner!r}", hint=did_you_mean(owner, OWNERS))
    flags = {"--owner": owner != "ami", "--jobs": jobs is not None, "--walkthrough": walkthrough}
    for flag, used in flags.items():
        belongs = "gpu-operator" if flag == "--owner" else "argo"
        if used and kind.name != belongs:
            raise KilnError(f"{flag} is for --for {belongs}, not for {kind.name}")


def _types(text: str) -> list[str | None]:
    """Names with commas between. Raises KilnError (exit status 2) for an empty or repeated one."""
    names: list[str | None] = [*text.split(",")]
    if "" in names:
        raise KilnError(
            f"--instance-type {text!r}: the name of an instance type is missing",
            hint="--instance-type p5.48xlarge, or leave the flag out",
        )
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice:
        raise KilnError(f"--instance-type names {twice} twice", hint="a queue is called like it")
    return names


def checked_request(
    kind: Kind,
    line: str,
    channel: str,
    region: str,
    *,
    instance_types: str | None,
    label: str | None,
    strategy: str,
    owner: str,
    jobs: str | None,
    options: LaunchOptions,
) -> LaunchRequest:
    """The request; `instance_types` are names with commas between, None for the type that the row
    is verified on. Raises KilnError (exit status 2) for what `launch_request` refuses, and for
    options, types or a layout that this kind of document cannot carry."""
    types = _types(instance_types) if instance_types is not None else [None]
    takes(kind, options, len(types))
    request, *more = (
        launch_request(line, channel, region, instance_type=each, label=label, strategy=strategy)
        for each in types
    )
    suits(kind, request)
    return replace(
        request,
        owner=owner,
        jobs=whole_jobs(jobs) if jobs is not None else 0,
        options=options,
        others=tuple(other.instance_type for other in more),
    )
