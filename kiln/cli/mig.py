"""Tasks about MIG layouts: mig.profiles, mig.check, mig.plan, mig.makespan, mig.k8s."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from invoke import Context

from kiln.base.errors import KilnError, named_by
from kiln.cli.flags import JSON, positive_number
from kiln.cli.front import show, task

_INSTANCE_TYPE = {"instance-type": "EC2 GPU instance type: --instance-type p4d.24xlarge"}
_GPU = {**_INSTANCE_TYPE, "gpu": "a GPU instead of an instance type: --gpu H100-80GB"}


@task(help={**_INSTANCE_TYPE, **JSON})
def profiles(c: Context, instance_type: str, json: bool = False) -> None:
    """The MIG profiles of an instance type's GPUs: slices per GPU and instance, memory, SMs."""
    from kiln.mig.profiles import profiles_for, profiles_text

    show(profiles_for(instance_type), as_json=json, text=profiles_text)


@task(help={**_GPU, "devices": "profiles and counts: --devices 2g.20gb=2,4g.40gb=1", **JSON})
def check(
    c: Context,
    devices: str,
    gpu: str | None = None,
    instance_type: str | None = None,
    json: bool = False,
) -> int:
    """Does this mix of profiles fit on one GPU? If not: why, and the nearest mix that does."""
    from kiln.mig.check import check_mig_config

    answer = check_mig_config(gpu, instance_type, devices=devices)
    show(answer, as_json=json, text=_verdict)
    return 0 if answer["valid"] else 1


@task(
    help={
        **_INSTANCE_TYPE,
        "want": 'profiles and counts over all GPUs: --want "1g.5gb=40,3g.20gb=4"',
        "svg": "also write the drawing to a file: --svg plan.svg",
        **JSON,
    }
)
def plan(
    c: Context, instance_type: str, want: str, svg: str | None = None, json: bool = False
) -> int:
    """Place profiles on the GPUs on the fewest GPUs, and draw the result."""
    from kiln.mig.plan import draw_svg, draw_text, plan_layout

    answer = plan_layout(instance_type, want)
    if svg:
        _write_drawing(svg, draw_svg(answer))
    show(answer, as_json=json, text=draw_text)
    return 0 if answer["fits"] else 1


def _write_drawing(svg: str, drawing: str) -> None:
    with named_by("--svg"):
        Path(svg).parent.mkdir(parents=True, exist_ok=True)
        Path(svg).write_text(drawing, encoding="utf-8")


@task(
    iterable=["slowdown"],
    help={
        **_INSTANCE_TYPE,
        "jobs": "number of equal jobs: --jobs 56",
        "seconds": "duration of one job alone on a whole GPU: --seconds 34.3",
        "slowdown": "measured: seconds on a slice / on a whole GPU, can be repeated: "
        "--slowdown 1g.5gb=2.54",
        **JSON,
    },
)
def makespan(
    c: Context,
    instance_type: str,
    jobs: str,
    seconds: str,
    slowdown: list[str],
    json: bool = False,
) -> None:
    """Compare when many equal jobs end: on whole GPUs and on the slices of each label."""
    from kiln.mig import makespan as spans

    pairs = [word.strip().partition("=") for text in slowdown for word in text.split(",")]
    measured = {name: positive_number(ratio or "none", "--slowdown") for name, _, ratio in pairs}
    ways = spans.compare_ways(
        instance_type, spans.whole_jobs(jobs), positive_number(seconds, "--seconds"), measured
    )
    rows = [("way", "at once", "seconds"), *(tuple(map(str, way.values())) for way in ways)]
    width = max(len(way) for way, _, _ in rows)
    lines = [f"{way:{width}}  {at_once:>7}  {end:>9}" for way, at_once, end in rows]
    show(ways, as_json=json, text=lambda _: "\n".join(lines))


@task(
    help={
        **_GPU,
        "label": "a label of mig-config.yaml: --label all-balanced",
        "want": 'a layout that mig.plan makes, instead of a label: --want "1g.5gb=40,3g.20gb=4"',
        "config": "your own labels, a file or folder: --config /etc/kiln/mig-config.d",
        "strategy": "single or mixed: --strategy mixed",
        "owner": "who configures MIG: ami (gpu-mig at boot) or operator (mig-manager): --owner ami",
        **JSON,
    }
)
def k8s(
    c: Context,
    label: str = "",
    want: str = "",
    config: str | None = None,
    strategy: str = "mixed",
    gpu: str | None = None,
    instance_type: str | None = None,
    owner: str = "ami",
    json: bool = False,
) -> None:
    """Helm values, node labels and resource names for a MIG layout in Kubernetes."""
    from kiln.mig.check import labels_with
    from kiln.mig.k8s import PLANNED, k8s_configuration, k8s_text, planned_labels

    if bool(label) == bool(want):
        raise KilnError("give either a label or a plan", hint='--label all-balanced, or --want "…"')
    if want and (config or gpu or not instance_type):
        raise KilnError(
            "--want is a plan for an instance type",
            hint='--instance-type p4d.24xlarge --want "1g.5gb=40,3g.20gb=4", without other flags',
        )
    labels = labels_with(config) if config else None
    if want:
        label, labels = PLANNED, planned_labels(str(instance_type), want)
    answer = k8s_configuration(label, strategy, gpu, instance_type, owner=owner, labels=labels)
    show(answer, as_json=json, text=k8s_text)


def _verdict(answer: dict[str, Any]) -> str:
    """`mig.check` for a person."""
    if answer["valid"]:
        return "fits"
    nearest = f"\n  nearest: {answer['nearest']}" if answer.get("nearest") else ""
    return f"does not fit: {answer['reason']}{nearest}"
