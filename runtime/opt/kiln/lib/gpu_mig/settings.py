"""/etc/default/gpu-mig as typed values."""

from __future__ import annotations

import re
import shlex
from typing import NamedTuple

from . import paths
from .errors import MigError, did_you_mean

_LINE = re.compile(r"^(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)=(.*)$")
_CHOICES = {
    "MIG_IMDS": ("yes", "no"),
    "MIG_OWNER": ("auto", "kiln", "operator"),
    "MIG_BLOCK_JOIN": ("yes", "no"),
    "MIG_REBOOT": ("once", "never"),
    "MIG_CDI_REFRESH": ("yes", "no"),
}
_STOP = (
    "nvsm nvidia-dcgm dcgm dcgm-exporter nvidia-dcgm-exporter nvidia-persistenced "
    "amazon-cloudwatch-agent"
)


class Settings(NamedTuple):
    """The settings of the administrator. See the comments in /etc/default/gpu-mig."""

    label: str = ""
    imds: bool = True
    owner: str = "auto"
    reboot: str = "once"
    cdi_refresh: bool = True
    block_join: bool = True
    stop_services: tuple[str, ...] = tuple(_STOP.split())


def load() -> Settings:
    """Settings of this machine. Raises MigError with file:line."""
    values = _read(paths.DEFAULTS)
    known = {"MIG_CONFIG", "MIG_STOP_SERVICES"} | set(_CHOICES)
    for key, (line, value) in values.items():
        where = f"{paths.DEFAULTS}:{line}"
        if key not in known:
            raise MigError(f"{where}: unknown setting {key}", did_you_mean(key, known))
        if key in _CHOICES and value not in _CHOICES[key]:
            raise MigError(
                f"{where}: {key}={value} is not allowed",
                "allowed: {}".format(", ".join(_CHOICES[key])),
            )

    def get(key: str, default: str = "") -> str:
        return values.get(key, (0, default))[1]

    return Settings(
        label=get("MIG_CONFIG"),
        imds=get("MIG_IMDS", "yes") == "yes",
        owner=get("MIG_OWNER", "auto"),
        reboot=get("MIG_REBOOT", "once"),
        cdi_refresh=get("MIG_CDI_REFRESH", "yes") == "yes",
        block_join=get("MIG_BLOCK_JOIN", "yes") == "yes",
        stop_services=tuple(get("MIG_STOP_SERVICES", _STOP).split()),
    )


def _read(path: str) -> dict[str, tuple[int, str]]:
    """KEY=value lines as {key: (line, value)}, without comments."""
    values: dict[str, tuple[int, str]] = {}
    for number, line in enumerate(paths.read(path).splitlines(), 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        match = _LINE.match(text)
        try:
            words = shlex.split(match.group(2), comments=True) if match else []
        except ValueError as e:
            raise MigError(f"{path}:{number}: {e}") from e
        if not match or len(words) > 1:
            hint = "quote a value that contains spaces"
            raise MigError(f"{path}:{number}: expected KEY=value, not {text[:60]!r}", hint)
        values[match.group(1)] = (number, words[0] if words else "")
    return values
