"""Locks of processes: a line is locked while its channels move, and the night while it lasts. The
file amis.lock.yaml is another thing.

A lock is a parameter of SSM. SSM can create one only if there is none, but it cannot replace or
delete one only if that is still what was read: of two processes that find a dead holder, the second
would delete what the first has just made, and both would go on. So nobody deletes a lock that may
be somebody else's, and what counts is not simply the newest version of the parameter:

- A process that takes a lock over writes a new version. In its value stand the number and the token
  of the version that it read last.
- A version counts only if the one before it has that number and that token, or if it is the first.
  SSM numbers versions one after the other, so of several that read the same only one counts: the
  one that was written first. Whoever reads afterwards, from whatever machine, comes to the same
  answer, also if the process that was too late is killed before it could see that.
- The token tells a version from one of the same number, after the parameter was deleted and made
  anew.
- A holder deletes its parameter when it is done, as long as its lock does not end soon: nobody else
  may take it then. Later it writes a version that says that the lock is free, by the same rule.

A read that lags behind makes a process lose, never win: its version names one that is not the one
before it. Clocks of several machines may differ by a minute.
https://docs.aws.amazon.com/systems-manager/latest/APIReference/API_PutParameter.html
https://docs.aws.amazon.com/systems-manager/latest/userguide/sysman-paramstore-versions.html
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import time
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from kiln.base.errors import KilnError, operation_failed
from kiln.cloud import aws
from kiln.cloud.target import Target
from kiln.publish import channels, parameters

# A move takes seconds; a process that was killed in one blocks others no longer than this.
SECONDS = 300
# Seconds by which the clocks of two machines may differ.
_SKEW = 60
# Seconds since 1970 and process numbers above those of any valid lock.
_LAST_SECOND, _LAST_PROCESS = 1 << 33, 1 << 31
# Reads of a new version until SSM shows it.
_READS = 3


@dataclass(frozen=True)
class Holder:
    """Who holds a lock: machine and process; it counts `until` then, in seconds since 1970. A lock
    that ended in 1970 is free.

    `space` tells where the process's number means something: the boot and the PID namespace.
    `token` is of this version alone; `after` and `after_token` name the one that it follows, 0 and
    "" for the first.
    """

    host: str
    process: int
    until: float
    space: str = ""
    token: str = field(default_factory=lambda: uuid.uuid4().hex)
    after: int = 0
    after_token: str = ""

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

    @property
    def ends_soon(self) -> bool:
        """Whether another machine may find the lock expired."""
        return self.until < time.time() + _SKEW

    def following(self, versions: dict[int, Holder | None]) -> Holder:
        """The same, as the version that follows these."""
        last = max(versions, default=0)
        before = versions.get(last)
        token = before.token if before else ""
        return replace(self, token=uuid.uuid4().hex, after=last, after_token=token)


def _space() -> str:
    """This boot of this machine, and this PID namespace: two containers may share a host's name."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {os.readlink('/proc/self/ns/pid')}"  # noqa: PTH115 - not a path


def lock_parameter(name: str) -> str:
    """The parameter of a lock."""
    return f"{channels.ROOT}/locks/{name}"


@contextlib.contextmanager
def exclusively(
    target: Target, name: str, seconds: float = SECONDS, doing: str = ""
) -> Iterator[None]:
    """Hold the lock `name` in the target's region while inside; `doing` says what its holder does,
    in messages.

    Raises KilnError (exit status 1) if somebody holds it; a dead holder's lock is taken.
    """
    mine = Holder(platform.node(), os.getpid(), time.time() + seconds, _space())
    with aws.explained(f"the lock of {name} could not be taken"):
        if not _written(target, name, mine, anew=True):
            mine = _taken(target, name, mine, doing or f"{name} is being moved")
    try:
        yield
    except BaseException:
        # Report the error that ended the work, even if releasing the lock failed too.
        with contextlib.suppress(KilnError):
            _release_lock(target, name, mine)
        raise
    _release_lock(target, name, mine)


def _taken(target: Target, name: str, mine: Holder, doing: str) -> Holder:
    """Take a lock whose parameter is there, if nobody holds it; as which version."""
    versions = _versions(target, name)
    holder = counting_holder(versions)
    if holder is not None and not holder.is_dead:
        left = max(1, round(holder.until - time.time()))
        ends = f"{left} s" if left < 3600 else f"{left / 3600:.1f} h"
        raise operation_failed(
            f"{doing} by process {holder.process} on {holder.host}",
            hint=f"wait for it; if it is dead, its lock ends in {ends}",
        )
    mine = mine.following(versions)
    _written(target, name, mine, anew=False)
    versions = _versions(target, name)
    for _ in range(_READS):
        if mine in versions.values():
            break
        time.sleep(target.poll_seconds)  # what was written may be seen late
        versions = _versions(target, name)
    if counting_holder(versions) != mine:
        raise operation_failed(f"{name}: somebody else took its lock at this moment; try again")
    return mine


def _release_lock(target: Target, name: str, mine: Holder) -> None:
    with aws.explained(f"the lock of {name} could not be released"):
        versions = _versions(target, name)
        # It may have expired meanwhile, and be somebody else's now.
        if counting_holder(versions) != mine:
            return
        if mine.ends_soon:
            _written(target, name, replace(mine, until=0).following(versions), anew=False)
        else:
            _delete(target, name)


def _written(target: Target, name: str, holder: Holder, *, anew: bool) -> bool:
    """Write a version, the first one if `anew`; False if the parameter was there already."""
    from botocore.exceptions import ClientError

    try:
        parameters.put(
            target,
            parameters.tags_of_line(name),
            Name=lock_parameter(name),
            Value=json.dumps(asdict(holder)),
            Type="String",
            Overwrite=not anew,
        )
    except ClientError as error:
        if anew and error.response["Error"].get("Code") == "ParameterAlreadyExists":
            return False
        raise
    return True


def _versions(target: Target, name: str) -> dict[int, Holder | None]:
    """The parameter's versions by number; nothing if it is gone, None for a damaged one."""
    from botocore.exceptions import ClientError

    entries: list[Any] = []
    try:
        pages = aws.ssm(target).get_paginator("get_parameter_history")
        for page in pages.paginate(Name=lock_parameter(name)):
            entries += page["Parameters"]
    except ClientError as error:
        if error.response["Error"].get("Code") != "ParameterNotFound":
            raise
    return {int(entry["Version"]): _read(str(entry["Value"])) for entry in entries}


def counting_holder(versions: dict[int, Holder | None]) -> Holder | None:
    """The newest version that follows the one that it says it follows; None if nobody ever held the
    lock, or what did was deleted."""
    for number in sorted(versions, reverse=True):
        holder = versions[number]
        if holder is None or holder.after != number - 1:
            continue
        before = versions.get(number - 1)
        # Of a parameter with many versions SSM forgets the oldest.
        forgotten = number - 1 not in versions and number > 1
        if forgotten or (before.token if before else "") == holder.after_token:
            return holder
    return None


def _read(value: str) -> Holder | None:
    """What a version says; None for a damaged one, such as a time or a process that there cannot
    be: JSON has numbers of any size, and Python reads Infinity and NaN too."""
    try:
        data = json.loads(value)
        holder = Holder(
            str(data["host"]),
            int(data["process"]),
            float(data["until"]),
            str(data.get("space", "")),
            str(data.get("token", "")),
            int(data.get("after", 0)),
            str(data.get("after_token", "")),
        )
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None
    possible = 0 <= holder.until < _LAST_SECOND and 0 < holder.process < _LAST_PROCESS
    return holder if possible else None


def _delete(target: Target, name: str) -> None:
    from botocore.exceptions import ClientError

    try:
        aws.ssm(target).delete_parameter(Name=lock_parameter(name))
    except ClientError as error:
        if error.response["Error"].get("Code") != "ParameterNotFound":
            raise
