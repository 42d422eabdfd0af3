"""Injected failures: EC2's errors on demand, for tests and rehearsals."""

from __future__ import annotations

import json
import threading
from collections import deque
from dataclasses import asdict, dataclass, field, fields
from typing import Any

# HTTP status and message of EC2's errors, from its API reference:
# https://docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html
ERRORS = {
    "InsufficientInstanceCapacity": (
        500,
        "We currently do not have sufficient {InstanceType} capacity in the Availability Zone you "
        "requested. Our system will be working on provisioning additional capacity.",
    ),
    "RequestLimitExceeded": (503, "Request limit exceeded."),
    "UnauthorizedOperation": (403, "You are not authorized to perform this operation."),
    # As of a CreateFleet: https://github.com/runs-on/runs-on/issues/485
    "TagPolicyViolation": (
        400,
        "The tag policy does not allow the specified value for the following tag key: 'Project'.",
    ),
    "ExpiredToken": (
        400,
        "The security token included in the request is expired",
    ),
    "InternalError": (500, "An internal error has occurred"),
    "VcpuLimitExceeded": (
        400,
        "You have requested more vCPU capacity than your current vCPU limit allows.",
    ),
}
# Reasons why EC2 terminates an instance after accepting its launch (StateReason):
# https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_StateReason.html
LAUNCH = {
    "Client.InternalError": "Client error on launch",
    "Client.VolumeLimitExceeded": "Volume limit exceeded",
    "Server.InternalError": "Internal error on launch",
    "Server.InsufficientInstanceCapacity": "Insufficient capacity to satisfy instance request",
}

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


def parse(body: Any) -> Fault:
    """The failure that a request describes. Raises ValueError with what is wrong in it."""
    if not isinstance(body, dict):
        raise ValueError("a failure is a JSON object with `action` and `code`")
    unknown = sorted(set(body) - {item.name for item in fields(Fault)})
    if unknown:
        raise ValueError(f"unknown fields: {', '.join(map(str, unknown))}")
    for name in ("action", "code"):
        if not isinstance(body.get(name), str) or not body[name]:
            raise ValueError(f"`{name}` is missing, or is not a text: RunInstances, for example")
    times = body.get("times", 1)
    if not isinstance(times, int) or isinstance(times, bool) or times < 1:
        raise ValueError(f"`times` must be a whole number from 1, not {json.dumps(times)}")
    match = body.get("match", {})
    if not isinstance(match, dict) or not all(isinstance(value, str) for value in match.values()):
        raise ValueError('`match` must be an object of texts: {"InstanceType": "p5.48xlarge"}')
    if not isinstance(body.get("message", ""), str):
        raise ValueError("`message` must be a text")
    return Fault(**body)


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

    def as_json(self) -> list[dict[str, Any]]:
        """The remaining failures as plain data."""
        with self._lock:
            return [asdict(fault) for fault in self._open]
