"""Refuses flags that cannot be an AWS name or id, before any request is made."""

from __future__ import annotations

from pathlib import Path

from kiln import facts
from kiln.base import vocabulary
from kiln.base.errors import KilnError


def instance_type(flag: str, value: str | None) -> None:
    """Raises KilnError (exit status 2) if `value` cannot be an instance type, GPU or not."""
    if value is not None and not vocabulary.INSTANCE_TYPE.fits(value):
        shown = f"--{flag.replace('_', '-')} {value} is not an instance type such as g4dn.xlarge"
        try:
            facts.instance(value)
        except KilnError as error:
            raise KilnError(shown, hint=error.hint) from None


def ami(value: str) -> None:
    """Raises KilnError (exit status 2) if `value` cannot be an AMI's id."""
    vocabulary.AMI_ID.required(value, "--ami")


def region(value: str | None) -> None:
    """Raises KilnError (exit status 2) if `value` cannot be a region."""
    if value is not None:
        vocabulary.REGION.required(value, "--region")


def disk(value: str | None, *, own_kernel: bool) -> Path | None:
    """The file that `--disk` names. Raises KilnError (exit status 2) if it cannot be made."""
    if value is None:
        return None
    path = Path(value).absolute()
    if not own_kernel:
        raise KilnError("--disk keeps the disk that --own-kernel boots", hint="give both")
    if not path.parent.is_dir():
        raise KilnError(f"--disk {value}: there is no folder {path.parent}")
    if path.exists():
        raise KilnError(f"--disk {value} exists already", hint="remove it, or name another file")
    return path


def on_error(value: str) -> bool:
    """Whether --on-error keeps the build instance. Raises KilnError (exit status 2)."""
    if value not in ("keep", "clean-up"):
        raise KilnError(f"--on-error {vocabulary.shown(value)} is neither keep nor clean-up")
    return value == "keep"
