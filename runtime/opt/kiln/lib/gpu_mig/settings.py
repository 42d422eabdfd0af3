"""The layout that this machine should have, and /etc/default/gpu-mig as typed values."""

from __future__ import annotations

import re
import shlex
from typing import NamedTuple

from . import imds, paths
from .errors import MigError, did_you_mean

_LINE = re.compile(r"^(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)=(.*)$")
_STOP = (
    "nvsm nvidia-dcgm dcgm dcgm-exporter nvidia-dcgm-exporter nvidia-persistenced "
    "amazon-cloudwatch-agent"
)
# Each with its values, the default first.
_CHOICES = {
    "MIG_IMDS": ("yes", "no"),
    "MIG_OWNER": ("auto", "kiln", "operator"),
    "MIG_BLOCK_JOIN": ("yes", "no"),
    "MIG_REBOOT": ("once", "never"),
    "MIG_CDI_REFRESH": ("yes", "no"),
}


class Settings(NamedTuple):
    """The settings of the administrator. See the comments in /etc/default/gpu-mig."""

    label: str = ""
    imds: bool = True
    owner: str = "auto"
    reboot: str = "once"
    cdi_refresh: bool = True
    block_join: bool = True
    stop_services: tuple[str, ...] = tuple(_STOP.split())


class Selection(NamedTuple):
    """`label`, "" to leave the GPUs alone; `source`: where the selection comes from."""

    label: str
    source: str
    note: str = ""


def load() -> Settings:
    """Settings of this machine. Raises MigError with file:line."""
    values = {key: choices[0] for key, choices in _CHOICES.items()}
    values.update(MIG_CONFIG="", MIG_STOP_SERVICES=_STOP)
    for where, key, value in _assignments():
        if key not in values:
            raise MigError(f"{where}: unknown setting {key}", did_you_mean(key, values))
        if value not in _CHOICES.get(key, (value,)):
            allowed = "allowed: {}".format(", ".join(_CHOICES[key]))
            raise MigError(f"{where}: {key}={value} is not allowed", allowed)
        values[key] = value
    return Settings(
        label=values["MIG_CONFIG"],
        imds=values["MIG_IMDS"] == "yes",
        owner=values["MIG_OWNER"],
        reboot=values["MIG_REBOOT"],
        cdi_refresh=values["MIG_CDI_REFRESH"] == "yes",
        block_join=values["MIG_BLOCK_JOIN"] == "yes",
        stop_services=tuple(values["MIG_STOP_SERVICES"].split()),
    )


def _assignments() -> list[tuple[str, str, str]]:
    """(file:line, key, value) of the KEY=value lines, without comments."""
    found = []
    for number, line in enumerate(paths.read(paths.DEFAULTS).splitlines(), 1):
        text, where = line.strip(), f"{paths.DEFAULTS}:{number}"
        if not text or text.startswith("#"):
            continue
        match = _LINE.match(text)
        try:
            words = shlex.split(match.group(2), comments=True) if match else []
        except ValueError as e:
            raise MigError(f"{where}: {e}") from e
        if not match or len(words) > 1:
            hint = "quote a value that contains spaces"
            raise MigError(f"{where}: expected KEY=value, not {text[:60]!r}", hint)
        found.append((where, match.group(1), words[0] if words else ""))
    return found


def select(settings: Settings, asked: str = "", ask_imds: bool = True) -> Selection:
    """The selection in force: command line, then launch, then the default of the image.

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
    source = f"MIG_CONFIG in {paths.DEFAULTS}" if settings.label else "nothing selected"
    return Selection(label, source, note)
