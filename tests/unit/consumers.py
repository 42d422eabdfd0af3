"""The documents of `consume` for every line of the matrix, for the tests that judge them."""

from __future__ import annotations

from functools import cache
from typing import Any

from kiln.base.errors import KilnError
from kiln.consume.kinds import KINDS, write_document
from kiln.consume.launch_request import LaunchRequest, launch_request
from kiln.matrix.load import load_recipes
from kiln.publish.lines import Line, load_lines

EKS = "al2023/lts/eks/x86_64"
ECS = "al2023/lts/ecs/x86_64"
BASE = "al2023/lts/base/x86_64"
AMI = "ami-0123456789abcdef0"


@cache
def _rows() -> dict[str, Line]:
    """Those of the matrix, which many tests ask for."""
    return load_lines()


def asked(line: str = EKS, instance_type: str = "p4d.24xlarge", **more: Any) -> LaunchRequest:
    row = _rows().get(line)
    return launch_request(line, "stable", "us-east-1", instance_type=instance_type, row=row, **more)


def made(kind: str, for_: LaunchRequest) -> str:
    return write_document(KINDS[kind], for_)


@cache
def of_every_line() -> dict[str, str]:
    """A document of each kind for each line that the kind takes, by a name for a file."""
    found = {}
    for recipe in load_recipes():
        line = recipe.channel_line
        by_channel = launch_request(line, "stable", "us-east-1", row=_rows()[line])
        pinned = LaunchRequest(**{**vars(by_channel), "image_id": AMI})
        for kind in KINDS.values():
            for how, wanted in (("follows", by_channel), ("pinned", pinned)):
                if kind.needs_id and wanted.image_id is None:
                    continue
                try:
                    text = write_document(kind, wanted)
                except KilnError:
                    continue
                found[f"{kind.name} {recipe.channel_line.replace('/', '-')} {how}"] = text
    return found


def of_kinds(*kinds: str) -> dict[str, str]:
    return {name: text for name, text in of_every_line().items() if name.split(" ")[0] in kinds}
