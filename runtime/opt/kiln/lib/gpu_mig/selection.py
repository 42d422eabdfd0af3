"""The layout that this machine should have: command line, then launch, then /etc/default."""

from __future__ import annotations

from typing import NamedTuple

from . import imds
from .settings import Settings


class Selection(NamedTuple):
    """`label`, "" to leave the GPUs alone; `source`: where the selection comes from."""

    label: str
    source: str
    note: str = ""


def select(settings: Settings, asked: str = "", ask_imds: bool = True) -> Selection:
    """The selection in force. A selection at launch overrides the default of the image.

    The label `none` means "leave the GPUs alone", so that a launch can override a default.
    """
    if asked:
        return Selection(asked, "command line")
    note = ""
    if settings.imds and ask_imds:
        label, note = imds.launch_label()
        if label:
            return Selection("" if label == "none" else label, note)
    label = "" if settings.label == "none" else settings.label
    source = "MIG_CONFIG in /etc/default/gpu-mig" if settings.label else "nothing selected"
    return Selection(label, source, note)
