"""Eventual consistency: not every call knows a new resource at once, as in EC2.

About half of new instances and security groups, and one AMI in ten, stay unknown for up to two
seconds: calls that name one are answered NotFound, and lists lack it. Which ones is drawn from a
seed: the lab's log has it, and `KILN_LAB_SEED` repeats it; `KILN_LAB_SEED=none` shows everything at
once.

https://docs.aws.amazon.com/ec2/latest/devguide/eventual-consistency.html; of AMIs:
https://github.com/ansible/ansible/pull/4368, https://github.com/hashicorp/packer/issues/3377
"""

from __future__ import annotations

import itertools
import logging
import os
import random
import secrets
import time
from typing import Any

from lab.moto.ec2 import ids
from lab.moto.ec2.calls import error

log = logging.getLogger("lab.consistency")

VARIABLE = "KILN_LAB_SEED"
NONE = "none"
_LONGEST = 2.0  # seconds
_NOT_FOUND = {
    "ImageId": ("InvalidAMIID.NotFound", "The image id '[{}]' does not exist"),
    "InstanceId": ("InvalidInstanceID.NotFound", "The instance ID '{}' does not exist"),
    "GroupId": ("InvalidGroup.NotFound", "The security group '{}' does not exist"),
}
_MAKING = {"CreateImage": "ImageId", "CopyImage": "ImageId", "CreateSecurityGroup": "GroupId"}

_seed = os.environ.get(VARIABLE) or secrets.token_hex(4)
_numbers = itertools.count(1)
_seen_from: dict[str, float] = {}  # id → when every call knows it


def log_seed() -> None:
    """Write the seed to the log."""
    log.info("what is new is known after a moment: %s=%s", VARIABLE, _seed)


def note(call: str, result: Any) -> None:
    """Draw when the resources that a call has made are known."""
    if _seed == NONE:
        return
    if call == "RunInstances":
        made = [instance.id for instance in result.instances]
    elif call in _MAKING:
        made = [result[_MAKING[call]] if isinstance(result, dict) else result.id]
    else:
        return
    for made_id in made:
        drawn = random.Random(f"{_seed} {next(_numbers)}")
        if drawn.random() < (0.1 if made_id.startswith("ami-") else 0.5):
            _seen_from[made_id] = time.monotonic() + drawn.uniform(0.2, _LONGEST)


def is_known(resource_id: str) -> bool:
    """Return True if every call knows a resource; it is not asked whether there is one."""
    if time.monotonic() < _seen_from.get(resource_id, 0.0):
        return False
    _seen_from.pop(resource_id, None)
    return True


def require_known(parameters: dict[str, Any]) -> None:
    """Raise EC2's error for the first resource among a call's parameters that is too new."""
    for name, value in ids.named(parameters) if _seen_from else ():
        if name in _NOT_FOUND and not is_known(value):
            code, text = _NOT_FOUND[name]
            raise error(code, text.format(value))


def hide(call: str, result: dict[str, Any]) -> None:
    """Leave what is too new out of a list of instances or AMIs."""
    if call == "DescribeImages" and _seen_from:
        result["Images"] = [ami for ami in result["Images"] if is_known(ami.id)]
    elif call == "DescribeInstances" and _seen_from:
        for reservation in result["Reservations"]:
            reservation.instances = [i for i in reservation.instances if is_known(i.id)]
        result["Reservations"] = [r for r in result["Reservations"] if r.instances]
