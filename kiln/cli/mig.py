"""Tasks about MIG layouts: mig.profiles, mig.check, mig.plan, mig.k8s."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from invoke import Context

from kiln.cli.flags import JSON
from kiln.cli.front import show, task

_INSTANCE_TYPE = {"instance-type": "EC2 GPU instance type: --instance-type p4d.24xlarge"}
_GPU = {**_INSTANCE_TYPE, "gpu": "a GPU instead of an instance type: --gpu H100-80GB"}


@task(help={**_INSTANCE_TYPE, **JSON})
def profiles(c: Context, instance_type: str, json: bool = False) -> None:
    """The MIG profiles of an instance type's GPUs: slices per GPU and instance, memory, SMs."""
    from kiln import mig
    from kiln.mig.profiles import profiles_text

    show(mig.profiles_for(instance_type), as_json=json, text=profiles_text)


@task(help={**_GPU, "devices": "profiles and counts: --devices 2g.20gb=2,4g.40gb=1", **JSON})
def check(
    c: Context,
    devices: str,
    gpu: str | None = None,
    instance_type: str | None = None,
    json: bool = False,
) -> int:
    """Does this mix of profiles fit on one GPU? If not: why, and the nearest mix that does."""
    from kiln import mig

    answer = mig.check_mig_config(gpu, instance_type, devices=devices)
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
    """Place profiles on the GPUs (fewest GPUs, then fewest profiles), and draw the result."""
    from kiln import mig

    answer = mig.plan_layout(instance_type, want)
    show(answer, as_json=json, text=mig.draw_text)
    if svg:
        Path(svg).parent.mkdir(parents=True, exist_ok=True)
        Path(svg).write_text(mig.draw_svg(answer), encoding="utf-8")
    return 0 if answer["fits"] else 1


@task(
    help={
        **_GPU,
        "label": "a label of mig-config.yaml: --label all-balanced",
        "strategy": "single or mixed: --strategy mixed",
        "owner": "who configures MIG: ami (gpu-mig at boot) or operator (mig-manager): --owner ami",
        **JSON,
    }
)
def k8s(
    c: Context,
    label: str,
    strategy: str = "mixed",
    gpu: str | None = None,
    instance_type: str | None = None,
    owner: str = "ami",
    json: bool = False,
) -> None:
    """Helm values, node labels and resource names for a MIG layout in Kubernetes."""
    from kiln import mig
    from kiln.mig.k8s import k8s_text

    answer = mig.k8s_configuration(label, strategy, gpu, instance_type, owner=owner)
    show(answer, as_json=json, text=k8s_text)


def _verdict(answer: dict[str, Any]) -> str:
    """`mig.check` for a person."""
    if answer["valid"]:
        return "fits"
    nearest = f"\n  nearest: {answer['nearest']}" if answer.get("nearest") else ""
    return f"does not fit: {answer['reason']}{nearest}"
