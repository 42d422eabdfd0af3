"""A part of a bake: the components from one on, or before one, on what the others left."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Builder = Literal["amazon-ebs", "null"]


@dataclass(frozen=True)
class Part:
    """What Packer bakes in one go.

    `again`: an earlier part has uploaded its files already; they are replaced. The builder `null`
    takes a machine that runs, and makes no AMI.
    """

    components: tuple[str, ...]
    again: bool = False
    builder: Builder = "amazon-ebs"
