"""`./invoke bench --what lab`: ten guests at once, thirty one after the other, and a killed lab.

In a lab of its own, which is removed afterwards. docs/bench.md explains the figures.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import boto3

from devel.figures import Figure
from devel.remains import on_this_machine
from kiln.base.errors import operation_failed
from lab import control, host, settings
from lab.settings import LABS, Lab

AT_ONCE, CYCLES = 10, 30
_PARENT = "/aws/service/ami-amazon-linux-latest/amzn2-ami-kernel-5.10-hvm-x86_64-gp2"
# Added to the index of the lab in use.
_OTHER_LAB = 20
# Seconds until a guest that does not come counts as lost.
_PATIENCE = 300.0


def figures() -> list[Figure]:
    """Seconds, and how many guests came, went and left nothing.

    Raises KilnError (exit status 1) where the lab cannot run.
    """
    host.can_run()
    lab = settings.current()
    lab = replace(lab, index=(lab.index + _OTHER_LAB) % LABS)
    with settings.chosen(lab):
        control.clean(lab, force=True)
        try:
            return _measured(lab)
        finally:
            control.clean(lab, force=True)


def _measured(lab: Lab) -> list[Figure]:
    control.up(lab)
    ec2, image = _client(lab, "ec2"), _image(lab)
    # The first guest makes the root filesystem, if this machine has none.
    _end(ec2, _launched(ec2, image, 1))
    empty = _count(lab)
    ids, at_once = _timed(lambda: _launched(ec2, image, AT_ONCE))
    _, ended = _timed(lambda: _end(ec2, ids))
    began = time.monotonic()
    done = 0
    for _ in range(CYCLES):
        _end(ec2, _launched(ec2, image, 1))
        done += 1
    cycles = time.monotonic() - began
    added = _count(lab) - empty
    _launched(ec2, image, AT_ONCE)
    os.kill(int(lab.pid_file.read_text()), signal.SIGKILL)
    _, down = _timed(lambda: control.down(lab))
    left = [f"{kind}: {name}" for kind, names in on_this_machine(lab).items() for name in names]
    return [
        Figure(f"{AT_ONCE} guests at once", round(at_once, 1), "s", note="until each has port 22"),
        Figure(f"  their end, {AT_ONCE} at once", round(ended, 1), "s"),
        Figure("launch and end of one guest", round(cycles / CYCLES, 2), "s", note=_of(done)),
        Figure("  left of them while the lab is up", added, "", aim=0),
        Figure(f"lab.down after kill -9 with {AT_ONCE} guests", round(down, 1), "s"),
        Figure("  left after it", len(left), "", aim=0, note=", ".join(left)),
    ]


def _of(done: int) -> str:
    return f"mean of {CYCLES}, one after the other; {done} came and went"


def _count(lab: Lab) -> int:
    return sum(map(len, on_this_machine(lab).values()))


def _client(lab: Lab, service: str) -> Any:
    with_keys = control.environment(lab)
    return boto3.client(
        service,  # type: ignore[call-overload]
        endpoint_url=lab.endpoint,
        region_name="us-east-1",
        aws_access_key_id=with_keys["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=with_keys["AWS_SECRET_ACCESS_KEY"],
    )


def _image(lab: Lab) -> str:
    return str(_client(lab, "ssm").get_parameter(Name=_PARENT)["Parameter"]["Value"])


def _launched(ec2: Any, image: str, count: int) -> list[str]:
    """So many guests that run and answer on port 22."""
    made = ec2.run_instances(
        ImageId=image, MinCount=count, MaxCount=count, InstanceType="t3.micro"
    )["Instances"]
    ids = [instance["InstanceId"] for instance in made]
    for address in _wait(ec2, ids, "running").values():
        _answer(address)
    return ids


def _answer(address: str) -> None:
    """Wait for port 22; on a busy machine a guest runs before it has booted."""
    deadline = time.monotonic() + _PATIENCE
    while not _is_open(address):
        if time.monotonic() > deadline:
            raise operation_failed(f"{address} does not answer on port 22")
        time.sleep(0.2)


def _is_open(address: str) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((address, 22), timeout=5):
        return True
    return False


def _end(ec2: Any, ids: list[str]) -> None:
    ec2.terminate_instances(InstanceIds=ids)
    _wait(ec2, ids, "terminated")


def _wait(ec2: Any, ids: list[str], state: str) -> dict[str, str]:
    """Wait until all are in a state; their addresses."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        pages = ec2.describe_instances(InstanceIds=ids)["Reservations"]
        described = [instance for page in pages for instance in page["Instances"]]
        if all(instance["State"]["Name"] == state for instance in described):
            return {
                instance["InstanceId"]: instance.get("PrivateIpAddress", "")
                for instance in described
            }
        if time.monotonic() > deadline:
            states = {instance["InstanceId"]: instance["State"]["Name"] for instance in described}
            raise operation_failed(f"not {state} after {_PATIENCE:.0f} s: {states}")
        time.sleep(0.1)


def _timed(work: Callable[[], Any]) -> tuple[Any, float]:
    began = time.monotonic()
    result = work()
    return result, time.monotonic() - began
