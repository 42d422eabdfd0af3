"""Parts of Systems Manager that moto lacks: the parameters that AWS publishes, sizes by tier,
names of AMIs, the list of parameters by data type, and agents that run commands.

https://docs.aws.amazon.com/systems-manager/latest/userguide/parameter-store-advanced-parameters.html
https://docs.aws.amazon.com/systems-manager/latest/userguide/parameter-store-ec2-aliases.html
https://docs.aws.amazon.com/systems-manager/latest/APIReference/API_ParameterStringFilter.html
"""

from __future__ import annotations

import re
from typing import Any

import moto.ssm.urls as moto_urls
from moto.core.utils import utcnow
from moto.ec2.models import ec2_backends
from moto.ssm.exceptions import ValidationException
from moto.ssm.models import Parameter, ParameterDict, SimpleSystemManagerBackend

from lab.moto.instances import LabInstance
from lab.moto.ssm.agents import Agent, Agents
from lab.moto.ssm.commands import Command
from lab.moto.ssm.responses import LabSSMResponse

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
    """Systems Manager of an account's region: its parameters, agents and commands."""

    _url_module = moto_urls

    def __init__(self, region_name: str, account_id: str) -> None:
        super().__init__(region_name, account_id)
        self._parameters = LabParameters(account_id, region_name)
        self.agents = Agents()
        self.sent: dict[str, Command] = {}

    @property
    def url_paths(self) -> dict[str, Any]:
        """The paths that the lab's class of answers has."""
        return {"/$": LabSSMResponse.dispatch}

    def live_agents(self) -> list[Agent]:
        """The agents of instances that still exist."""
        instances = list(LabInstance.machines.by_address.values())
        return self.agents.live({instance.id for instance in instances})

    def deliver(self, instance_id: str, message: dict[str, Any]) -> bool:
        """Put a message where an instance's agent asks for it; False if there is none."""
        agent = self.agents.find(instance_id)
        if agent:
            agent.messages.put(message)
        return agent is not None

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
