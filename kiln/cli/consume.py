"""The task that writes what teams paste or apply to launch a channel's image: consume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from invoke import Context

from kiln.base.errors import KilnError, named_by
from kiln.cli.flags import JSON, PLACE
from kiln.cli.front import note, show, task, tell


@task(
    help={
        "line": "what consumers follow: --line al2023/lts/eks/x86_64 (./invoke channels)",
        "for": "the kind of document: --for karpenter (--list names them)",
        "channel": "a channel of the line's `publish`: --channel stable",
        "instance-type": "instead of the one that verifies the row: --instance-type p5.48xlarge; "
        "with --for parallelcluster several, a queue each: --instance-type p5.48xlarge,g5.xlarge",
        "label": "a MIG layout of mig-config.yaml: --label all-1g.5gb",
        "owner": "with --for gpu-operator, who makes slices: ami or operator: --owner operator",
        "jobs": "with --for argo: --jobs 56 (default: one for each slice of a node)",
        "walkthrough": "with --for argo: a script from no cluster to the last job, and back",
        "strategy": "how Kubernetes shows slices, single or mixed: --strategy mixed",
        "pin": "write the AMI id that the channel holds now, instead of following the channel",
        "instance-profile": "what instances have: --instance-profile gpu-telemetry",
        "placement-group": "where they start: --placement-group training",
        "capacity-reservation": "--capacity-reservation cr-0123456789abcdef0",
        "capacity-block": "a reservation that is a block: --capacity-block cr-0123456789abcdef0",
        "out": "a file instead of standard output: --out nodes.yaml",
        "list": "name the kinds and write nothing",
        **PLACE,
        **JSON,
    }
)
def consume(
    c: Context,
    line: str = "",
    for_: str = "",
    channel: str = "stable",
    instance_type: str | None = None,
    label: str | None = None,
    strategy: str = "mixed",
    owner: str = "ami",
    jobs: str | None = None,
    walkthrough: bool = False,
    pin: bool = False,
    instance_profile: str | None = None,
    placement_group: str | None = None,
    capacity_reservation: str | None = None,
    capacity_block: str | None = None,
    out: str | None = None,
    list_: bool = False,
    target: str = "auto",
    region: str | None = None,
    json: bool = False,
) -> int:
    """Write what launches a channel's image: for EKS, ECS, Batch, ParallelCluster, Terraform …"""
    from kiln.cli import targets
    from kiln.consume.kinds import KINDS, kind_named, pinned
    from kiln.consume.request import launch_request
    from kiln.matrix import load
    from kiln.publish import line_flags

    if list_:
        names = {kind.name: kind.summary for kind in KINDS.values()}
        show(names, as_json=json, text=_listed)
        return 0
    for flag, value in (("line", line), ("for", for_)):
        if not value:
            raise KilnError(
                f"--{flag} is missing", hint="./invoke consume --line L --for KIND; see --list"
            )
    kind = kind_named(for_)
    settings: dict[str, Any] = {
        "instance_profile": instance_profile,
        "placement_group": placement_group,
        "capacity_reservation": capacity_reservation,
        "capacity_block": capacity_block,
        "jobs": jobs,
    }
    flags = {f"--{name.replace('_', '-')}": value for name, value in settings.items()}
    kind.require_flags({**flags, "--owner": owner != "ami", "--walkthrough": walkthrough})
    request = launch_request(
        line,
        channel,
        region or load.default_region() or "us-east-1",
        instance_types=instance_type,
        label=label,
        strategy=strategy,
        owner=owner,
        **settings,
    )
    kind.require_request(request)
    if pin or kind.needs_id:
        request = pinned(line_flags.answering(targets.choose(target, region)), request)
    text = kind.document(request, template="argo-walkthrough.sh" if walkthrough else "")
    answer = {"line": line, "channel": channel, "kind": kind.name, "file": out, "document": text}
    if out is None:
        show(answer, as_json=json, text=lambda _: text.removesuffix("\n"))
    else:
        with named_by("--out"):
            Path(out).write_text(text, encoding="utf-8")
        tell(answer, as_json=json, text=f"wrote {out}")
    if kind.note:
        note(kind.note.replace("FILE", out or "FILE"))
    return 0


def _listed(names: dict[str, str]) -> str:
    width = max(map(len, names))
    return "\n".join(f"{name:{width}}  {summary}" for name, summary in names.items())
