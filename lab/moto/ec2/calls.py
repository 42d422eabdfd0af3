"""The EC2 calls that the lab answers itself.

A handler takes a Request and returns the result, named as in the AWS SDKs' model of EC2, or None.
moto parses the request and writes the answer by that model. `lab.moto.ec2` puts the handlers in
moto's place.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from moto.ec2.exceptions import EC2ClientError


@dataclass(frozen=True)
class Request:
    """A call: its parameters by the model's names, and moto's backend of account and region."""

    call: str
    parameters: dict[str, Any]
    backend: Any
    response: Any
    moto: Callable[[Any], Any] | None

    @property
    def account(self) -> str:
        return str(self.backend.account_id)

    @property
    def region(self) -> str:
        return str(self.backend.region_name)

    def moto_answer(self) -> Any:
        """moto's own answer to the call, with the parameters that `response.params` has now."""
        if self.moto is None:
            raise NotImplementedError(self.call)
        return self.moto(self.response)


Handler = Callable[[Request], dict[str, Any] | None]


@dataclass(frozen=True)
class Call:
    """A call that the lab answers. With `tries` its handler knows what to do of a dry run."""

    name: str
    handler: Handler
    tries: bool


OWN: dict[str, Call] = {}


def call(name: str, *, tries: bool = False) -> Callable[[Handler], Handler]:
    """Register the handler of a call."""

    def register(handler: Handler) -> Handler:
        if name in OWN:
            raise ValueError(f"{name} has two handlers")
        OWN[name] = Call(name, handler, tries)
        return handler

    return register


def error(code: str, message: str) -> EC2ClientError:
    """One of EC2's errors, status 400."""
    return EC2ClientError(code, message)


def missing(name: str) -> EC2ClientError:
    """The error for a required parameter that is not there."""
    return error("MissingParameter", f"The request must contain the parameter {name}")


# Partitions too: AMIs have them, as /dev/sda1.
# https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/device_naming.html
_DEVICE = re.compile(r"(/dev/)?(sd|xvd|hd)[a-z]{1,2}[0-9]{0,2}")


def is_device(name: Any) -> bool:
    """Return True if a text is the name of a device of EC2's, which becomes a file's name in the
    guest."""
    return isinstance(name, str) and _DEVICE.fullmatch(name) is not None
