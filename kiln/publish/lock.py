"""Locks: parameters that only one can create. A line is locked while its channels move, and the
night while it lasts."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kiln.base.errors import KilnError, operation_failed
from kiln.cloud import aws
from kiln.cloud.target import Target
from kiln.publish import channels, parameters

# A move takes seconds; whoever was killed in one blocks others no longer than this.
_SECONDS = 300


@dataclass(frozen=True)
class Holder:
    """Who holds a lock: machine and process; it counts `until` then, in seconds since 1970.

    `space` tells where the process's number means something: the boot and the PID namespace.
    """

    host: str
    process: int
    until: float
    space: str = ""

    @property
    def is_dead(self) -> bool:
        """Whether the lock counts no longer: expired, or its process on this machine has ended."""
        if self.until < time.time():
            return True
        if self.space != _space():
            return False
        try:
            os.kill(self.process, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            pass
        return False


def _space() -> str:
    """This boot of this machine, and this PID namespace: two containers may share a host's name."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {os.readlink('/proc/self/ns/pid')}"  # noqa: PTH115 - not a path


def lock_parameter(name: str) -> str:
    """The parameter of a lock."""
    return f"{channels.ROOT}/locks/{name}"


@contextlib.contextmanager
def exclusively(target: Target, name: str, seconds: float = _SECONDS) -> Iterator[None]:
    """Hold the lock `name` in the target's region while inside.

    Raises KilnError (exit status 1) if somebody holds it; a dead holder's lock is taken.
    """
    parameter = lock_parameter(name)
    mine = Holder(platform.node(), os.getpid(), time.time() + seconds, _space())
    with aws.explained(f"the lock of {name} could not be taken"):
        if not _created(target, name, parameter, mine):
            _take_from_the_dead(target, name, parameter, mine)
    try:
        yield
    except BaseException:
        # What ended the work is what a person must read, also if it holds for the lock as well.
        with contextlib.suppress(KilnError):
            _release_lock(target, name, parameter, mine)
        raise
    _release_lock(target, name, parameter, mine)


def _release_lock(target: Target, name: str, parameter: str, mine: Holder) -> None:
    with aws.explained(f"the lock of {name} could not be released"):
        # It may have expired meanwhile, and be somebody else's now.
        if _holder(target, parameter) == mine:
            _delete(target, parameter)


def _created(target: Target, name: str, parameter: str, mine: Holder) -> bool:
    from botocore.exceptions import ClientError

    try:
        parameters.put(
            target,
            parameters.tags_of_line(name),
            Name=parameter,
            Value=json.dumps(asdict(mine)),
            Type="String",
            Overwrite=False,
        )
    except ClientError as error:
        if error.response["Error"].get("Code") == "ParameterAlreadyExists":
            return False
        raise
    return True


def _take_from_the_dead(target: Target, name: str, parameter: str, mine: Holder) -> None:
    holder = _holder(target, parameter)
    if holder is not None:
        if not holder.is_dead:
            left = max(1, round(holder.until - time.time()))
            raise operation_failed(
                f"{name} is being moved by process {holder.process} on {holder.host}",
                hint=f"wait for it; if it is dead, its lock ends in {left} s",
            )
        _delete(target, parameter)
    # Of several who saw the same dead holder, one creates the parameter again.
    if not _created(target, name, parameter, mine):
        raise operation_failed(f"{name}: somebody else took its lock at this moment; try again")


def _holder(target: Target, parameter: str) -> Holder | None:
    """Who holds the lock; None if it was released meanwhile. A damaged value is a dead holder."""
    listed: list[Any] = list(aws.ssm(target).get_parameters(Names=[parameter])["Parameters"])
    if not listed:
        return None
    try:
        value = json.loads(listed[0]["Value"])
        space = str(value.get("space", ""))
        return Holder(str(value["host"]), int(value["process"]), float(value["until"]), space)
    except (ValueError, KeyError, TypeError, AttributeError):
        return Holder("", 0, 0)


def _delete(target: Target, parameter: str) -> None:
    from botocore.exceptions import ClientError

    try:
        aws.ssm(target).delete_parameter(Name=parameter)
    except ClientError as error:
        if error.response["Error"].get("Code") != "ParameterNotFound":
            raise
