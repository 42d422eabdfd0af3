"""Injected failures: EC2's errors on demand, for tests and rehearsals."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from kiln.base import yaml_files

_DATA = yaml_files.read_plain(Path(__file__).with_suffix(".yaml"))
# HTTP status and message of EC2's errors, by code.
ERRORS = {code: (entry["status"], entry["message"]) for code, entry in _DATA["errors"].items()}
# Why EC2 terminates an instance after accepting its launch, by code.
LAUNCH: dict[str, str] = _DATA["launch"]
# Calls of EC2 that are remembered; a build makes about a hundred.
_REMEMBERED = 10_000


@dataclass
class Fault:
    """A failure to inject into the next `times` requests of `action`, an API action or `boot`.

    `match` restricts it to requests with these parameters. `code` is an EC2 error code; for `boot`
    it is `never` (the guest has no SSH) or a code of `LAUNCH` (the instance goes from pending to
    terminated).
    """

    action: str
    code: str
    times: int = 1
    match: dict[str, str] = field(default_factory=dict)
    message: str = ""


class Faults:
    """The injected failures that have not happened yet, and the EC2 calls since `clear`."""

    def __init__(self) -> None:
        self._calls: deque[str] = deque(maxlen=_REMEMBERED)
        self._open: list[Fault] = []
        self._lock = threading.Lock()

    def order(self, fault: Fault) -> None:
        """Add a failure. Raises ValueError when its code is unknown."""
        if fault.action == "boot":
            if fault.code not in ("never", *LAUNCH):
                raise ValueError(f"the code of a boot failure must be: never, {', '.join(LAUNCH)}")
        elif fault.code not in ERRORS and not fault.message:
            raise ValueError(f"unknown error code {fault.code}: it needs a message")
        with self._lock:
            self._open.append(fault)

    def clear(self) -> None:
        """Remove all failures, and forget the calls so far."""
        with self._lock:
            self._open.clear()
            self._calls.clear()

    def take(self, action: str, parameters: dict[str, str]) -> Fault | None:
        """The failure for this request, if any; its `times` goes down by one."""
        with self._lock:
            if action != "boot":
                self._calls.append(action)
            for fault in self._open:
                if fault.action != action:
                    continue
                if any(parameters.get(key) != value for key, value in fault.match.items()):
                    continue
                fault.times -= 1
                if fault.times <= 0:
                    self._open.remove(fault)
                return fault
        return None

    def calls(self) -> list[str]:
        """The actions of the EC2 calls since `clear`, in order."""
        with self._lock:
            return list(self._calls)

    def to_dict(self) -> list[dict[str, Any]]:
        """The remaining failures as plain data."""
        with self._lock:
            return [asdict(fault) for fault in self._open]
