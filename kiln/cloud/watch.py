"""Watches, beside a run, whether EC2 can still answer it: a run that cannot succeed ends at once.

Packer 1.6.6 asks EC2 again after every error while it waits for an instance or an AMI, 240 times at
15 s: with expired credentials that is an hour. (aws-sdk-go's waiters end only at answers that they
list: https://github.com/aws/aws-sdk-go/blob/v1.55.6/aws/request/waiter.go)
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

from kiln.base.errors import KilnError, operation_failed
from kiln.base.stopping import Stop
from kiln.base.tags import RUN_ID
from kiln.cloud import aws
from kiln.cloud.target import Target

if TYPE_CHECKING:
    from mypy_boto3_ec2.type_defs import FilterTypeDef

# Seconds between two questions, at least.
_EVERY = 3.0
# Permissions take effect in EC2 after a moment: only this many refusals in a row count.
_REFUSALS = 2
# Seconds for Packer to terminate its instance before it is killed: it would wait for an answer that
# does not come.
_GRACE = 10.0


@contextlib.contextmanager
def watching(
    run_id: str, target: Target, stop: Stop, *, every: float | None = None
) -> Iterator[None]:
    """While inside, give `stop` up as soon as EC2 cannot answer the run's questions any more.

    That is when the target is gone, or when EC2 refuses twice in a row with an error that asking
    again does not change (`aws.PERMANENT`).
    """

    seconds = every or max(target.wait_seconds, _EVERY)

    def watch() -> None:
        refusals = 0
        while not over.wait(seconds) and not stop.is_given_up:
            if gone := target.gone():
                stop.give_up(operation_failed(gone), grace=0)
                return
            refused = refusal(run_id, target)
            refusals = refusals + 1 if refused else 0
            if refused and refusals >= _REFUSALS:
                stop.give_up(refused, grace=_GRACE)

    over = threading.Event()
    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        # Not joined: a question without an answer may last a minute.
        over.set()


def refusal(run_id: str, target: Target) -> KilnError | None:
    """The error, if EC2 refuses for good what Packer asks while it waits; None otherwise."""
    from botocore.exceptions import BotoCoreError, ClientError
    from botocore.parsers import ResponseParserError

    mine: list[FilterTypeDef] = [{"Name": f"tag:{RUN_ID}", "Values": [run_id]}]
    try:
        aws.ec2(target).describe_instances(Filters=mine)
        aws.ec2(target).describe_images(Owners=["self"], Filters=mine)
    except ClientError as error:
        if error.response["Error"].get("Code") in aws.PERMANENT:
            return aws.as_error("EC2 refuses to answer this run", error)
    except (BotoCoreError, ResponseParserError):
        pass  # no connection, which may come back
    return None
