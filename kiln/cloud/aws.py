"""botocore's clients and waiters, and AWS's errors as KilnError."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Protocol

from kiln.base.errors import KilnError, did_you_mean, operation_failed
from kiln.facts import tables

if TYPE_CHECKING:
    from botocore.exceptions import ClientError
    from mypy_boto3_ec2 import EC2Client
    from mypy_boto3_ssm import SSMClient


class Endpoint(Protocol):
    """A region, and the arguments of `create_client` besides it: what a `Target` has."""

    @property
    def region(self) -> str: ...

    def client_settings(self) -> Mapping[str, str]: ...

    def __hash__(self) -> int: ...


_ENCODED = re.compile(r"\s*Encoded authorization failure message: ([\w-]+)\.?")


def is_permanent(error: ClientError) -> bool:
    """Return True if asking again changes nothing as long as a person does nothing."""
    code = error.response["Error"].get("Code", "")
    return bool(tables.read_messages()["aws"].get(code, {}).get("permanent"))


def hint_in(text: str) -> str:
    """Return the hint for the AWS error code in a text, such as Packer's output; "" without one."""
    hints = (
        str(row["hint"])
        for code, row in tables.read_messages()["aws"].items()
        if "hint" in row and re.search(row.get("pattern", rf"\b{code}\b"), text)
    )
    hint = next(hints, "")
    encoded = _ENCODED.search(text)
    if encoded:
        hint += "\n  what was denied, and by which statement: aws sts decode-authorization-message"
        hint += f" --encoded-message {encoded[1]}"
    return hint


def without_encoded(text: str) -> str:
    """An error of AWS without the part that only AWS can read; `hint_in` has it."""
    return _ENCODED.sub("", text)


@cache
def client(service: str, target: Endpoint, attempts: int = 6) -> Any:
    """A client for the target's region, one of each: creating it costs more than most calls.

    `attempts`: how often it asks where AWS throttles or fails.
    """
    from botocore.config import Config

    config = Config(retries={"mode": "standard", "max_attempts": attempts}, connect_timeout=10)
    return new_client(service, target.region, target.client_settings(), config=config)


def new_client(service: str, region: str, settings: Mapping[str, str], **more: Any) -> Any:
    """A client with these settings of a target, and more of `create_client` over them.

    With keys of the target's own, as the lab has, nothing of the user's AWS configuration counts:
    the profile may not exist, and FIPS endpoints exclude an endpoint_url.
    """
    # Side by side each of them would read what one reads for all: EC2's description is 3 MB.
    with _CREATING:
        session = _session(configured="aws_access_key_id" not in settings)
        return session.create_client(service, region_name=region, **{**settings, **more})


_CREATING = Lock()


@cache
def _session(*, configured: bool) -> Any:
    """A botocore session; unless `configured`, it reads neither AWS_ variables nor files."""
    from botocore.session import Session

    if configured:
        return Session()
    defaults = {
        name: (None, None, *rest) for name, (_, _, *rest) in Session.SESSION_VARIABLES.items()
    }
    no_file = (None, None, os.devnull, None)
    return Session({**defaults, "config_file": no_file, "credentials_file": no_file})


def ec2(target: Endpoint, *, attempts: int = 6) -> EC2Client:
    """An EC2 client for the target's region."""
    made: EC2Client = client("ec2", target, attempts)
    return made


def ssm(target: Endpoint) -> SSMClient:
    """An SSM client for the target's region."""
    made: SSMClient = client("ssm", target)
    return made


@cache
def s3(target: Endpoint) -> Any:
    """An S3 client for the target's region; S3 itself sends it on to the bucket's.

    S3 refuses its calls to a bucket of another account, which may have taken the name.
    """
    made = client("s3", target)
    owner = account(target)

    def name_owner(params: dict[str, Any], model: Any, **more: Any) -> None:
        if "ExpectedBucketOwner" in model.input_shape.members:
            params.setdefault("ExpectedBucketOwner", owner)

    made.meta.events.register("provide-client-params.s3", name_owner)
    return made


def account(target: Endpoint) -> str:
    """The account id that the credentials belong to."""
    return str(_caller(target)["Account"])


def identity(target: Endpoint) -> str:
    """The ARN that the credentials belong to."""
    return str(_caller(target)["Arn"])


def _caller(target: Endpoint) -> Any:
    from botocore.exceptions import EndpointConnectionError

    with explained("the credentials could not be checked"):
        try:
            return client("sts", target).get_caller_identity()
        except EndpointConnectionError as error:
            # A region that does not exist answers nothing: its host's name is unknown.
            if target.region in regions():
                raise
            raise KilnError(
                f"{target.region}: AWS has no region of that name, as far as boto3 here knows, and "
                f"{error}",
                hint=did_you_mean(target.region, regions()),
            ) from None


@cache
def regions() -> frozenset[str]:
    """The regions in boto3's own data, of all partitions: AWS may have newer ones."""
    session = _session(configured=False)
    return frozenset(
        name
        for partition in session.get_available_partitions()
        for name in session.get_available_regions("ec2", partition)
    )


@cache
def instance_types() -> frozenset[str]:
    """The instance types in boto3's own data: EC2 may have newer ones."""
    ec2_model = _session(configured=False).get_service_model("ec2")
    return frozenset(ec2_model.shape_for("InstanceType").enum)


@cache
def partition(region: str) -> str:
    """The partition of a region, by boto3's own data: aws, aws-cn, aws-us-gov."""
    return str(_session(configured=False).get_partition_for_region(region))


@cache
def dns_suffix(partition: str) -> str:
    """Return how the names of AWS's hosts end in a partition, by boto3's own data: amazonaws.com,
    in China (aws-cn) amazonaws.com.cn."""
    from botocore.regions import EndpointResolver

    resolver = EndpointResolver(_session(configured=False).get_data("endpoints"))
    return str(resolver.get_partition_dns_suffix(partition))


@contextmanager
def explained(what: str) -> Iterator[None]:
    """Turn an AWS error inside into a KilnError (exit status 1); its message begins with `what`."""
    from botocore.exceptions import BotoCoreError, ClientError
    from botocore.parsers import ResponseParserError

    try:
        yield
    except ClientError as error:
        raise as_error(what, error) from None
    except (BotoCoreError, ResponseParserError) as error:
        raise operation_failed(f"{what}: {error}", hint=hint_in(str(error))) from None


@contextmanager
def tolerated(accepted: Callable[[ClientError], bool]) -> Iterator[None]:
    """End the block without an error where AWS answers with one that is accepted."""
    from botocore.exceptions import ClientError

    try:
        yield
    except ClientError as error:
        if not accepted(error):
            raise


# botocore's words for a state that is not the one waited for, and for one that it calls a failure.
_PENDING = ("Max attempts exceeded", "terminal failure state")


def wait(
    client: Any,
    waiter: str,
    *,
    limit: float,
    every: float,
    sleep: Callable[[float], None] = time.sleep,
    terminal: bool = True,
    **request: Any,
) -> None:
    """Wait with one of botocore's waiters; each question is its own, so that `sleep` can end it.

    `every` and `limit` are seconds. `sleep` raises what ends the wait early. Unless `terminal`, a
    state that the waiter calls a failure may still change. Raises botocore's WaiterError.
    """
    from botocore.exceptions import WaiterError

    deadline = time.monotonic() + limit
    once = {"Delay": 0, "MaxAttempts": 1}
    while True:
        try:
            client.get_waiter(waiter).wait(**request, WaiterConfig=once)
            return
        except WaiterError as error:
            pending = _PENDING[:1] if terminal else _PENDING
            if not any(words in str(error) for words in pending) or time.monotonic() > deadline:
                raise
        sleep(every)


def is_gone(error: ClientError) -> bool:
    """Return True if EC2 answered that there is no AMI of that id: there never was (`.NotFound`,
    and `.Malformed` for an id that EC2 does not issue), or it was deregistered (`.Unavailable`).

    https://docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html
    """
    return error.response["Error"].get("Code", "").startswith("InvalidAMIID.")


def as_error(what: str, error: ClientError) -> KilnError:
    """AWS's answer as a KilnError (exit status 1); its message begins with `what`."""
    code = error.response["Error"].get("Code", "")
    message = error.response["Error"].get("Message", str(error))
    if message.lstrip().startswith("<"):  # a proxy's page, or a server that failed
        message = "the answer is a web page, not one of AWS"
    return operation_failed(
        f"{what}: {error.operation_name} answered {code}: {without_encoded(message)}",
        hint=hint_in(f"{code}: {message}"),
    )


def find_credentials() -> str | None:
    """Return the source of boto3's credentials (env, shared-credentials-file, sso, iam-role, …)."""
    import boto3
    from botocore.exceptions import BotoCoreError

    if not _on_ec2():
        # Elsewhere nothing answers at 169.254.169.254, and boto3 waits seconds for the timeout.
        os.environ.setdefault("AWS_EC2_METADATA_DISABLED", "true")
    try:
        credentials = boto3.Session().get_credentials()
    except BotoCoreError as error:
        raise _bad_configuration(error) from None
    return credentials.method if credentials else None


def profile_region() -> str | None:
    """The region in the user's profile, or None."""
    import botocore.session
    from botocore.exceptions import BotoCoreError

    try:
        region = botocore.session.Session().get_config_variable("region")
    except BotoCoreError as error:
        raise _bad_configuration(error) from None
    return str(region) if region else None


def _bad_configuration(error: Exception) -> KilnError:
    """The error for a configuration file or profile that botocore does not accept."""
    return KilnError(
        f"the AWS configuration cannot be used: {error}",
        hint="correct it, or build in the lab with --target lab",
    )


def _on_ec2() -> bool:
    """Source: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/identify_ec2_instances.html"""
    marks = [Path("/sys/hypervisor/uuid"), Path("/sys/class/dmi/id/sys_vendor")]
    return any(
        mark.exists() and mark.read_text().lower().startswith(("ec2", "amazon ec2"))
        for mark in marks
    )


def paginated(client: Any, operation: str, key: str, **query: Any) -> Iterator[Any]:
    """Yield what all pages of an operation's answer have under a key, or at a path such as
    `Reservations[].Instances`."""
    yield from client.get_paginator(operation).paginate(**query).search(f"{key}[] || `[]`")
