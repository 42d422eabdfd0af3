"""Client tokens: a call that is asked for again with its token is done once.

https://docs.aws.amazon.com/ec2/latest/devguide/ec2-api-idempotency.html
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from lab.moto.ec2.calls import error


@dataclass
class Answered:
    """A token's call: its parameters as text once it succeeded, and its answer."""

    parameters: str | None = None
    answer: Any = None
    # A client that was not answered asks again while the first request is still at work.
    lock: threading.Lock = field(default_factory=threading.Lock)


def once(call: str, parameters: dict[str, Any], backend: Any, do: Callable[[], Any]) -> Any:
    """The answer of `do`; with a token that the account's region knows, the answer that it gave.

    Only a call that succeeded is remembered. Raises IdempotentParameterMismatch for a known token
    with other parameters.
    """
    token = parameters.get("ClientToken")
    if not token:
        return do()
    same = json.dumps({**parameters, "DryRun": None}, sort_keys=True, default=str)
    tokens: dict[Any, Answered] = backend.__dict__.setdefault("kiln_tokens", {})
    before = tokens.setdefault((call, token), Answered())
    with before.lock:
        if before.parameters is None:
            before.answer = do()
            before.parameters = same
        elif before.parameters != same:
            raise error(
                "IdempotentParameterMismatch",
                "Arguments on this idempotent request are inconsistent with arguments used in "
                "previous request(s).",
            )
        return before.answer
