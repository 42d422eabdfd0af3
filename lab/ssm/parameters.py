"""What of Parameter Store moto 5.2.5 does not know: sizes by tier, names of AMIs, and the list of
parameters by data type, without those that AWS publishes, in pages as large as asked for.

https://docs.aws.amazon.com/systems-manager/latest/userguide/parameter-store-advanced-parameters.html
https://docs.aws.amazon.com/systems-manager/latest/userguide/parameter-store-ec2-aliases.html
https://docs.aws.amazon.com/systems-manager/latest/APIReference/API_ParameterStringFilter.html
"""

from __future__ import annotations

import inspect
import re
from typing import Any

from moto.core.responses import ActionResult
from moto.ec2.models import ec2_backends
from moto.ssm.exceptions import (
    InvalidFilterKey,
    InvalidFilterOption,
    InvalidFilterValue,
    ValidationException,
)
from moto.ssm.models import SimpleSystemManagerBackend
from moto.ssm.responses import SimpleSystemManagerResponse

_STANDARD, _ADVANCED = 4096, 8192
_AMI = re.compile("ami-([0-9a-f]{8}|[0-9a-f]{17})")
_DATA_TYPE = "DataType"


def install() -> None:
    """Put the limits before moto's PutParameter, and the data type before its DescribeParameters.
    Call it once per process."""
    SimpleSystemManagerBackend.put_parameter = _limited(SimpleSystemManagerBackend.put_parameter)
    SimpleSystemManagerBackend.describe_parameters = _by_data_type(
        SimpleSystemManagerBackend.describe_parameters
    )
    SimpleSystemManagerResponse.describe_parameters = _in_pages


def _limited(moto: Any) -> Any:
    signature = inspect.signature(moto)

    def put_parameter(*args: Any, **named: Any) -> Any:
        request = signature.bind(*args, **named).arguments
        backend, name, value = request["self"], request["name"], str(request["value"] or "")
        before = (backend._parameters.get(name) or [None])[-1]
        tier = request.get("tier") or (getattr(before, "tier", None) or "Standard")
        if tier == "Standard" and len(value) > _STANDARD:
            raise ValidationException(
                f"Standard tier parameters support a maximum parameter value of {_STANDARD} "
                "characters. To create a larger parameter value, upgrade the parameter to use the "
                "advanced-parameter tier."
            )
        if len(value) > _ADVANCED:
            raise ValidationException(
                f"Advanced tier parameters support a maximum parameter value of {_ADVANCED} "
                "characters."
            )
        if request.get("data_type") != "aws:ec2:image":
            return moto(*args, **named)
        # The error for another format is assumed.
        if not _AMI.fullmatch(value):
            raise ValidationException(f"The parameter value {value} is not the id of an AMI.")
        if value in ec2_backends[backend.account_id][backend.region_name].amis:
            return moto(*args, **named)
        # AWS validates after its answer: the call succeeds, and the parameter stays as it was.
        answer = moto(*args, **named)
        versions = backend._parameters[name]
        versions.pop()
        if not versions:
            backend._parameters.pop(name)
        return answer

    return put_parameter


def _by_data_type(moto: Any) -> Any:
    def describe_parameters(self: Any, filters: Any, parameter_filters: Any) -> Any:
        others = [each for each in parameter_filters or [] if each["Key"] != _DATA_TYPE]
        wanted = [each for each in parameter_filters or [] if each["Key"] == _DATA_TYPE]
        if filters and wanted:
            raise ValidationException(
                "You can use either Filters or ParameterFilters in a single request."
            )
        if len(wanted) > 1:
            raise InvalidFilterKey(
                f"The following filter is duplicated in the request: {_DATA_TYPE}. A request can "
                "contain only one occurrence of a specific filter."
            )
        begins = [_beginnings(each) for each in wanted]
        newest = (versions[-1] for versions in list(self._parameters.values()) if versions)
        return [
            parameter
            # moto also looks up the tags of each: a page costs as much as all parameters.
            for parameter in (moto(self, filters, others) if filters or others else newest)
            # AWS lists its own by GetParametersByPath alone:
            # https://docs.aws.amazon.com/systems-manager/latest/userguide/parameter-store-finding-public-parameters.html
            if not parameter.name.startswith("/aws/")
            and all(_is_of(parameter.data_type or "text", *each) for each in begins)
        ]

    return describe_parameters


def _beginnings(data_type: dict[str, Any]) -> tuple[list[str], bool]:
    """The values of a filter by data type, and whether they are only how a data type begins."""
    option, values = data_type.get("Option", "Equals"), data_type.get("Values") or []
    if option not in ("Equals", "BeginsWith"):
        raise InvalidFilterOption(
            f"The following filter option is not valid: {option}. Valid options include: "
            "[BeginsWith, Equals]."
        )
    if not values:
        raise InvalidFilterValue(
            f"The following filter values are missing : null for filter key {_DATA_TYPE}."
        )
    return values, option == "BeginsWith"


def _is_of(data_type: str, values: list[str], begins: bool) -> bool:
    return data_type in values or (begins and data_type.startswith(tuple(values)))


def _in_pages(self: Any) -> ActionResult:
    """moto: ten parameters, whatever MaxResults says."""
    size, first = int(self._get_param("MaxResults") or 10), int(self._get_param("NextToken") or 0)
    described = self.ssm_backend.describe_parameters(
        self._get_param("Filters"), self._get_param("ParameterFilters")
    )
    page = described[first : first + size]
    answer: dict[str, Any] = {"Parameters": [each.describe_response_object() for each in page]}
    if len(described) > first + size:
        answer["NextToken"] = str(first + size)
    return ActionResult(answer)
