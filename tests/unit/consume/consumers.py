"""The documents of `consume` for every line of the matrix, for the tests that judge them.

`python -m tests.unit.consume.consumers` writes the examples that `test_consume.py` compares.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from kiln.base.errors import KilnError
from kiln.consume import KINDS, LaunchRequest, launch_request
from kiln.matrix.load import load_recipes
from kiln.publish.lines import Line, load_lines

EKS = "al2023/lts/eks/x86_64"
ECS = "al2023/lts/ecs/x86_64"
BASE = "al2023/lts/base/x86_64"
CLUSTER = "al2023/production/parallelcluster/x86_64"
AMI = "ami-0123456789abcdef0"
RESERVATION = "cr-0123456789abcdef0"
WALK = "argo-walkthrough.sh"
EXAMPLES = Path(__file__).parents[2] / "data/consumers/documents"


@cache
def _rows() -> dict[str, Line]:
    return load_lines()


def asked(line: str = EKS, types: str | None = "p4d.24xlarge", **more: Any) -> LaunchRequest:
    """A request for the stable channel of a line."""
    return launch_request(
        line, "stable", "us-east-1", instance_types=types, row=_rows().get(line), **more
    )


def made(kind: str, wanted: LaunchRequest, template: str = "") -> str:
    return KINDS[kind].document(wanted, template=template)


def examples() -> Iterator[tuple[str, str]]:
    """A file name and document of each kind, and of further ones that differ."""
    of_account = {
        "--instance-profile": {"instance_profile": "gpu-telemetry"},
        "--placement-group": {"placement_group": "near by"},
        "--capacity-block": {"capacity_block": RESERVATION},
    }
    for kind in KINDS.values():
        more: dict[str, Any] = {"image_id": AMI} if kind.needs_id else {}
        for flag in of_account.keys() & set(kind.options):
            more |= of_account[flag]
        wanted = asked(label="all-1g.5gb", **more) if kind.flavor != "ecs" else asked(ECS, **more)
        if kind.several_types:
            wanted = asked(CLUSTER, "p4d.24xlarge,p5.48xlarge", label="all-balanced", **more)
        yield kind.template, made(kind.name, wanted)
    jobs = asked(label="all-1g.5gb", jobs=200)
    yield "argo-jobs.yaml", made("argo", jobs)
    yield WALK, made("argo", jobs, WALK)
    operated = asked(label="all-1g.5gb", owner="operator")
    yield "gpu-operator-owner.yaml", made("gpu-operator", operated)
    plain = asked(BASE, "g4dn.xlarge", image_id=AMI)
    yield "terraform-pinned.tf", made("terraform", plain)
    yield "cloudformation-pinned.yaml", made("cloudformation", plain)
    yield "device-plugin-whole.yaml", made("device-plugin", asked())


@cache
def of_every_line() -> dict[str, str]:
    """A document of each kind for each line that the kind takes, by a name for a file."""
    found = {}
    for line in (recipe.channel_line for recipe in load_recipes()):
        follows = asked(line, None)
        pinned = follows.model_copy(update={"image_id": AMI})
        for kind in KINDS.values():
            for how, wanted in (("follows", follows), ("pinned", pinned)):
                if kind.needs_id and wanted.image_id is None:
                    continue
                try:
                    text = kind.document(wanted)
                except KilnError:
                    continue
                found[f"{kind.name} {line.replace('/', '-')} {how}"] = text
    return found


def of_kinds(*kinds: str) -> dict[str, str]:
    return {name: text for name, text in of_every_line().items() if name.split(" ")[0] in kinds}


if __name__ == "__main__":
    for file, document in examples():
        (EXAMPLES / file).write_text(document, encoding="utf-8")
