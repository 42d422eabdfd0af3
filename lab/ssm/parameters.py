"""Parameter Store's limits that moto 5.2.5 does not know: sizes by tier, and names of AMIs.

https://docs.aws.amazon.com/systems-manager/latest/userguide/parameter-store-advanced-parameters.html
https://docs.aws.amazon.com/systems-manager/latest/userguide/parameter-store-ec2-aliases.html
"""

from __future__ import annotations

import inspect
import re
from typing import Any

from moto.ec2.models import ec2_backends
from moto.ssm.exceptions import ValidationException
from moto.ssm.models import SimpleSystemManagerBackend

_STANDARD, _ADVANCED = 4096, 8192
_AMI = re.compile("ami-([0-9a-f]{8}|[0-9a-f]{17})")


def install() -> None:
    """Put the limits before moto's PutParameter. Call it once per process."""
    SimpleSystemManagerBackend.put_parameter = _limited(SimpleSystemManagerBackend.put_parameter)


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
