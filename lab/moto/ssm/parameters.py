"""Parts of Parameter Store that moto lacks: the parameters that AWS publishes, sizes by tier, names
of AMIs, and the list of parameters by data type, in pages as large as asked for.

https://docs.aws.amazon.com/systems-manager/latest/userguide/parameter-store-advanced-parameters.html
https://docs.aws.amazon.com/systems-manager/latest/userguide/parameter-store-ec2-aliases.html
https://docs.aws.amazon.com/systems-manager/latest/APIReference/API_ParameterStringFilter.html
"""

from __future__ import annotations

import re
from typing import Any

import moto.ssm.urls as moto_urls
from moto.core.responses import ActionResult
from moto.core.utils import utcnow
from moto.ec2.models import ec2_backends
from moto.ssm.exceptions import ValidationException
from moto.ssm.models import Parameter, ParameterDict, SimpleSystemManagerBackend
from moto.ssm.responses import SimpleSystemManagerResponse

from lab.moto.instances import LabInstance

_STANDARD, _ADVANCED = 4096, 8192
_AMI = re.compile("ami-([0-9a-f]{8}|[0-9a-f]{17})")
_DATA_TYPE = "DataType"


class LabParameters(ParameterDict):  # type: ignore[misc]
    """The parameters of a region, with the public ones of the lab's parent images."""

    def __init__(self, account_id: str, region_name: str) -> None:
        super().__init__(account_id, region_name)
        self.latest_amis_loaded = self.latest_ecs_amis_loaded = True
        images = LabInstance.machines.public.values()
        ids = [(name, image.id, "aws:ec2:image") for image in images for name in image.parameters]
        texts = dict.fromkeys((*pair, "text") for image in images for pair in image.texts)
        for name, value, data_type in (*ids, *texts):
            self[name].append(
                Parameter(
                    account_id=account_id,
                    name=name,
                    value=value,
                    parameter_type="String",
                    description=None,
                    allowed_pattern=None,
                    keyid=None,
                    last_modified_date=utcnow(),
                    version=1,
                    data_type=data_type,
                )
            )


class LabSSM(SimpleSystemManagerBackend):  # type: ignore[misc]
    """Parameter Store of an account's region; its other calls are `lab.moto.ssm.front`'s."""

    _url_module = moto_urls

    def __init__(self, region_name: str, account_id: str) -> None:
        super().__init__(region_name, account_id)
        self._parameters = LabParameters(account_id, region_name)

    @property
    def url_paths(self) -> dict[str, Any]:
        """The paths that the lab's class of answers has."""
        return {"/$": LabSSMResponse.dispatch}

    def put_parameter(
        self,
        name: str,
        description: str,
        value: str,
        parameter_type: str,
        allowed_pattern: str,
        keyid: str,
        overwrite: bool,
        tags: list[dict[str, str]],
        data_type: str,
        tier: str | None = None,
        policies: str | None = None,
    ) -> Any:
        """Write a parameter, within the limits of its tier."""
        before = (self._parameters.get(name) or [None])[-1]
        kept_in = tier or (getattr(before, "tier", None) or "Standard")
        if kept_in == "Standard" and len(value or "") > _STANDARD:
            raise ValidationException(
                f"Standard tier parameters support a maximum parameter value of {_STANDARD} "
                "characters. To create a larger parameter value, upgrade the parameter to use the "
                "advanced-parameter tier."
            )
        if len(value or "") > _ADVANCED:
            raise ValidationException(
                f"Advanced tier parameters support a maximum parameter value of {_ADVANCED} "
                "characters."
            )
        is_image = data_type == "aws:ec2:image"
        if is_image and not _AMI.fullmatch(value or ""):
            # The error for another format is assumed.
            raise ValidationException(f"The parameter value {value} is not the id of an AMI.")
        answer = super().put_parameter(
            name,
            description,
            value,
            parameter_type,
            allowed_pattern,
            keyid,
            overwrite,
            tags,
            data_type,
            tier,
            policies,
        )
        if is_image and value not in ec2_backends[self.account_id][self.region_name].amis:
            # AWS validates after its answer: the call succeeds, and the parameter stays as it was.
            versions = self._parameters[name]
            versions.pop()
            if not versions:
                self._parameters.pop(name)
        return answer

    def describe_parameters(self, filters: Any, parameter_filters: Any) -> Any:
        """List parameters, also by their data type."""
        others = [each for each in parameter_filters or [] if each["Key"] != _DATA_TYPE]
        wanted = [each for each in parameter_filters or [] if each["Key"] == _DATA_TYPE]
        for each in wanted:
            if filters or each.get("Option", "Equals") != "Equals":
                raise ValidationException(
                    "AMI Kiln lab: ParameterFilters by DataType are by Equals, without Filters"
                )
        # moto also looks up the tags of each: a page costs as much as all parameters.
        newest = [versions[-1] for versions in list(self._parameters.values()) if versions]
        listed = super().describe_parameters(filters, others) if filters or others else newest
        return [
            parameter
            for parameter in listed
            # AWS lists its own by GetParametersByPath alone:
            # https://docs.aws.amazon.com/systems-manager/latest/userguide/parameter-store-finding-public-parameters.html
            if not parameter.name.startswith("/aws/")
            and all((parameter.data_type or "text") in each["Values"] for each in wanted)
        ]


class LabSSMResponse(SimpleSystemManagerResponse):  # type: ignore[misc]
    """Parameter Store's answers."""

    def describe_parameters(self) -> ActionResult:
        """List a page; moto: ten parameters, whatever MaxResults says."""
        size = int(self._get_param("MaxResults") or 10)
        first = int(self._get_param("NextToken") or 0)
        described = self.ssm_backend.describe_parameters(
            self._get_param("Filters"), self._get_param("ParameterFilters")
        )
        page = described[first : first + size]
        answer: dict[str, Any] = {"Parameters": [each.describe_response_object() for each in page]}
        if len(described) > first + size:
            answer["NextToken"] = str(first + size)
        return ActionResult(answer)
