"""Tasks of GPU tools: mig.* for MIG layouts, xid.* for Xid and SXid events."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path
from typing import Any

from kiln.base import vocabulary
from kiln.base.errors import KilnError, named_by
from kiln.cli.options import positive_number
from kiln.cli.output import FORMAT, log, output, table
from kiln.cli.task import task


@task("GPU tools", "mig.profiles")
def profiles(instance_type: str) -> None:
    """Show the MIG profiles of an instance type's GPUs."""
    from kiln.mig.profiles import profiles_for, profiles_rows

    answer = profiles_for(instance_type)
    headings, *rows = profiles_rows(answer)
    unsure = any(profile["unsure"] for profile in answer["profiles"])
    output(
        answer,
        f"{answer['instance_type']}: {answer['gpus']} × {answer['product']}",
        table(headings, rows),
        *["* partly unconfirmed: see `unsure` in kiln/facts/knowledge/mig.yaml"] * unsure,
    )


@task("GPU tools", "mig.check")
def check(devices: str, gpu: str | None = None, instance_type: str | None = None) -> int:
    """Check that a mix of MIG profiles fits on one GPU.

    ./invoke mig.check 2g.20gb=2,4g.40gb=1 --gpu H100-80GB

    devices: profiles and counts: --devices 2g.20gb=2,4g.40gb=1
    gpu: a GPU instead of an instance type: --gpu H100-80GB
    """
    from kiln.mig.check import check_mig_config

    answer = check_mig_config(gpu, instance_type, devices=devices)
    text = ["fits"] if answer["valid"] else [f"does not fit: {answer['reason']}"]
    if answer.get("nearest") and not answer["valid"]:
        text.append(f"  nearest: {answer['nearest']}")
    output(answer, *text)
    return 0 if answer["valid"] else 1


@task("GPU tools", "mig.plan")
def plan(instance_type: str, want: str) -> int:
    """Place MIG profiles on the fewest GPUs and draw them.

    ./invoke mig.plan p4d.24xlarge 1g.5gb=40,3g.20gb=4

    want: profiles and counts over all GPUs: --want "1g.5gb=40,3g.20gb=4"
    """
    from kiln.mig.plan import draw_text, plan_layout

    answer = plan_layout(instance_type, want)
    output(answer, draw_text(answer))
    return 0 if answer["fits"] else 1


@task("GPU tools", "mig.makespan")
def makespan(instance_type: str, jobs: str, seconds: str, slowdown: list[str]) -> None:
    """Compare when jobs end on whole GPUs and on slices.

    ./invoke mig.makespan p4d.24xlarge 56 34.3 --slowdown 1g.5gb=2.54

    jobs: number of equal jobs: --jobs 56
    seconds: duration of one job alone on a whole GPU: --seconds 34.3
    slowdown: measured: seconds on a slice / on a whole GPU, can be repeated: --slowdown 1g.5gb=2.54
    """
    from kiln.mig import plan as spans

    pairs = [word.strip().partition("=") for text in slowdown for word in text.split(",")]
    measured = {name: positive_number(ratio or "none", "--slowdown") for name, _, ratio in pairs}
    duration = positive_number(seconds, "--seconds")
    if not re.fullmatch("[1-9][0-9]{0,6}", jobs):
        raise KilnError(f"--jobs {vocabulary.shown(jobs)} is not a whole number of jobs above 0")
    count = int(jobs)
    ways = spans.compare_ways(instance_type, count, duration, measured)
    rows = [tuple(map(str, way.values())) for way in ways]
    output(ways, table(("way", "at once", "seconds"), rows))
    if not measured:
        log("no --slowdown given: slices are not compared (docs/mig.md)")


@task("GPU tools", "mig.k8s")
def k8s(
    label: str = "",
    want: str = "",
    config: str | None = None,
    strategy: str = "mixed",
    gpu: str | None = None,
    instance_type: str | None = None,
    owner: str = "ami",
) -> None:
    """Generate Helm values and labels for a MIG layout.

    ./invoke mig.k8s --label all-balanced --instance-type p4d.24xlarge

    label: a MIG layout: --label all-balanced
    want: a layout that mig.plan makes, instead of a label: --want "1g.5gb=40,3g.20gb=4"
    config: your own labels, a file or folder: --config /etc/kiln/mig-config.d
    strategy: single or mixed: --strategy mixed
    gpu: a GPU instead of an instance type: --gpu H100-80GB
    owner: who configures MIG: ami (gpu-mig at boot) or operator (mig-manager): --owner ami
    """
    from kiln.mig.check import labels_with
    from kiln.mig.k8s import PLANNED, k8s_configuration, k8s_text, planned_labels

    if bool(label) == bool(want):
        raise KilnError("give either a label or a plan", hint='--label all-balanced, or --want "…"')
    if want and (config or gpu or not instance_type):
        raise KilnError("--want takes --instance-type, and neither --config nor --gpu")
    labels = labels_with(config) if config else None
    if want:
        label, labels = PLANNED, planned_labels(str(instance_type), want)
    answer = k8s_configuration(label, strategy, gpu, instance_type, owner=owner, labels=labels)
    output(answer, k8s_text(answer))


_LABELS = {"eks_replaces_node": "EKS replaces node", "nvidia": "NVIDIA's advice"}


@task("GPU tools", "xid.explain")
def explain(code: str, sources: bool = False) -> None:
    """Explain an Xid or SXid and what to do.

    ./invoke xid.explain 79

    code: 79, xid79 or sxid12028
    sources: also print the source of each line
    """
    from kiln.xid import catalog

    entry = catalog.explain_code(code)
    first = ("meaning", "severity", "action")
    hidden = {"kind", "code", "name", *(() if sources else ("since_driver", "source"))}
    rows = [
        (f"  {_LABELS.get(key, key.replace('_', ' '))}", _value(entry[key]))
        for key in dict.fromkeys((*first, *entry))
        if key not in hidden and (entry.get(key) or entry.get(key) is False)
    ]
    output(entry, f"{entry['kind'].upper()} {entry['code']}: {entry['name']}", table((), rows))


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join(f"{key} {item}" for key, item in value.items())
    return "; ".join(map(str, value)) if isinstance(value, list) else str(value)


# How files begin in which no line would be found.
_NOT_TEXT = {b"\x1f\x8b": "compressed", b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}


@task("GPU tools", "xid.parse")
def parse(file: str) -> None:
    """Show the GPU events in a kernel log of any form.

    dmesg | ./invoke xid.parse - --json
    ./invoke xid.parse /var/log/kern.log

    file: a kernel log, or - for standard input
    """
    from kiln.xid import archive

    event, left_out = None, archive.LeftOut()
    with named_by("--file"):
        stream = sys.stdin.fileno() if file == "-" else Path(file)
        opened = io.BufferedReader(io.FileIO(stream))
    with opened:
        start = opened.peek(2)[:2]
        if start in _NOT_TEXT:
            raise KilnError(
                f"{file} is {_NOT_TEXT[start]}, and not a log that can be read as it is",
                hint=f"zcat {file} | ./invoke xid.parse -, or iconv -f utf-16",
            )
        for event in archive.events(opened, left_out):
            output(event, _line(event), indent=None)
    if left_out.count:
        log(
            f"{file}: left out {left_out.count} of the lines with an Xid or SXid, first in line "
            f"{left_out.first}: damaged, or written by another program than the kernel"
        )
    elif event is None and not FORMAT.json:
        log(f"no GPU events found in {'standard input' if file == '-' else file}")


def _line(event: dict[str, Any]) -> str:
    code = next((name for name in ("xid", "sxid") if event[name] is not None), None)
    kind = f"{'SXid' if code == 'sxid' else 'Xid'} {event[code]}" if code else "GPU lost"
    process = f" pid {event['pid']} {event['process'] or ''}" if event["pid"] is not None else ""
    times = f" (x{event['count']})" if event.get("count", 1) > 1 else ""
    return (
        f"{event['severity'] or '-':<8} {kind:<11} {event['pci'] or '-':<14} "
        f"{event['name'] or 'not in the catalog'}{process}{times}: {event['action'] or '-'}"
    )
