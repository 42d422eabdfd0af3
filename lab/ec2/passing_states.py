"""States that pass: who asks for instances by their ids is answered when one of them has got on.

Clients that wait for a state ask again after a second or more (Packer waits so for a launch, a stop
and an end), and here each takes less. EC2's own answers take part of a second, too.
"""

from __future__ import annotations

import time
from typing import Any

_PASSING = ("pending", "stopping", "shutting-down")
# Seconds; a guest boots in less on a quiet machine. Whoever interrupts a client waits no longer
# than this for its last call.
_PATIENCE = 1.8


def wait_for_one(parameters: dict[str, Any], backend: Any) -> None:
    """Wait a moment while all of the instances that a DescribeInstances names are on their way."""
    others = [
        backend.get_instance_by_id(instance_id)
        for instance_id in parameters.get("InstanceIds") or []
    ]
    before = [(instance, instance.state) for instance in others if instance is not None]
    deadline = time.monotonic() + _PATIENCE
    while before and all(i.state == was and was in _PASSING for i, was in before):
        if time.monotonic() > deadline:
            return
        time.sleep(0.02)
