"""The layout that this machine should have: command line, then launch, then /etc/default."""

from __future__ import annotations

from typing import NamedTuple

from . import imds
from .errors import MigError
from .settings import Settings


class Selection(NamedTuple):
    """`label` or the legacy `partition`; if both are empty, the GPUs are left alone.

    `source`: where the selection comes from.
    """

    label: str
    partition: str
    source: str
    note: str = ""

    @property
    def none(self) -> bool:
        return not self.label and not self.partition


def select(settings: Settings, asked: str = "", ask_imds: bool = True) -> Selection:
    """The selection in force. A selection at launch overrides the default of the image.

    The label `none` means "leave the GPUs alone", so that a launch can override a default.
    """
    if asked:
        return Selection(asked, "", "command line")
    note = ""
    if settings.imds and ask_imds:
        label, note = imds.launch_label()
        if label:
            return Selection("" if label == "none" else label, "", note)
    if settings.label:
        label = "" if settings.label == "none" else settings.label
        return Selection(label, "", "MIG_CONFIG in /etc/default/gpu-mig", note)
    if settings.partition:
        if settings.partition.strip().lower() in ("none", "0"):
            return Selection("", "", "MIG_PARTITION", note)
        return Selection("", settings.partition, "MIG_PARTITION", note)
    return Selection("", "", "nothing selected", note)


def require(selection: Selection) -> Selection:
    """The selection. Raises MigError when nothing is selected."""
    if selection.none:
        raise MigError(
            "no MIG layout is selected",
            "name a label, or set MIG_CONFIG=<label> in /etc/default/gpu-mig "
            "(gpu-mig list-profiles --labels shows them)",
        )
    return selection
