"""What stands between a parsed EC2 call and moto's answer to it, for every call of EC2.

Ids are checked, filters and pages evaluated, and the lab's own handlers called where there are any.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from moto.core.responses import ActionResult, EmptyResult
from moto.core.utils import camelcase_to_underscores
from moto.ec2.exceptions import DryRunClientError
from moto.ec2.responses import EC2Response

from lab.ec2 import (
    account,
    calls,
    consistency,
    consoles,
    filters,
    ids,
    image_reports,
    images,
    instances,
    launch,
    launch_templates,
    pages,
    snapshots,
    tokens,
    volumes,
)

# Their handlers are registered when they are imported.
HANDLERS = (
    account,
    consoles,
    image_reports,
    images,
    instances,
    launch,
    launch_templates,
    snapshots,
    volumes,
)

Method = Callable[[Any], Any]
# moto's makes an AMI of nothing.
_REFUSED = ("RegisterImage",)


def method_name(call: str) -> str:
    """The name of moto's method for a call."""
    return str(camelcase_to_underscores(call))


def over(call: str, moto: Method | None) -> Method:
    """The method that answers a call, from moto's own (None where it has none)."""
    own = calls.OWN.get(call)

    @functools.wraps(moto or _of_nobody)
    def answer(response: Any) -> Any:
        parameters = dict(response.params or {})
        ids.check(call, parameters)
        consistency.require_known(parameters)
        chosen = parameters.get("Filters") or parameters.get("Filter") or []
        if chosen:
            filters.check(call, chosen)
        pages.check(call, parameters)
        return tokens.once(
            call, parameters, response.ec2_backend, lambda: worked_out(response, parameters, chosen)
        )

    def worked_out(response: Any, parameters: dict[str, Any], chosen: list[dict[str, Any]]) -> Any:
        if own:
            if parameters.get("DryRun") and not own.tries:
                raise DryRunClientError
            request = calls.Request(call, parameters, response.ec2_backend, response, moto)
            result = own.handler(request)
            answer = EmptyResult() if result is None else ActionResult(result)
        elif moto:
            answer = _of_moto(call, moto, response, parameters)
        else:
            raise NotImplementedError(call)
        if isinstance(answer, ActionResult):
            consistency.note(call, answer.result)
        if isinstance(answer, ActionResult) and isinstance(answer.result, dict):
            consistency.hide(call, answer.result)
            if chosen and call in filters.LISTS and call != "DescribeImages":
                _filter(call, answer.result, chosen)
            return ActionResult(pages.cut(call, answer.result, parameters))
        return answer

    return answer


def _of_nobody(response: Any) -> Any:
    raise NotImplementedError


def _of_moto(call: str, moto: Method, response: Any, parameters: dict[str, Any]) -> Any:
    """moto's answer, whole: without the page, and the filters that the lab evaluates."""
    hidden = {"MaxResults", "NextToken"} if pages.result_key(call) else set()
    if call in filters.LISTS:
        hidden |= {"Filters"}
    whole = response.params
    response.params = {name: parameters[name] for name in parameters if name not in hidden}
    if call == "DescribeInstances":
        # moto's own limit is 100.
        response.params["MaxResults"] = 1 << 30
    try:
        return moto(response)
    finally:
        response.params = whole


def _filter(call: str, result: dict[str, Any], chosen: list[dict[str, Any]]) -> None:
    key = filters.LISTS[call].partition(".")[0]
    if call == "DescribeInstances":
        result[key] = filters.keep_instances(result[key], chosen)
    else:
        result[key] = filters.keep(call, result[key], chosen)


def install() -> None:
    """Put the layer over moto's class of EC2 responses, for every call that EC2 has."""
    for call in filters.model().operation_names:
        name = method_name(call)
        moto = None if call in _REFUSED else getattr(EC2Response, name, None)
        if moto or call in _REFUSED or call in calls.OWN:
            setattr(EC2Response, name, over(call, moto))
