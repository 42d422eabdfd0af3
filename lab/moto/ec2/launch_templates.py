"""Launch templates: user data is checked; a new version inherits from the one it is based on.

https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_CreateLaunchTemplateVersion.html
(SourceVersion). moto 5.2.5 takes the new version's own data alone.
"""

from __future__ import annotations

from typing import Any

from lab.moto.ec2.calls import Request, call
from lab.moto.ec2.launch import check_user_data

_MALFORMED = "InvalidUserData.Malformed"


@call("CreateLaunchTemplate")
def _new(request: Request) -> dict[str, Any]:
    check_user_data(
        (request.parameters.get("LaunchTemplateData") or {}).get("UserData"), _MALFORMED
    )
    result: dict[str, Any] = request.moto_answer().result
    return result


@call("CreateLaunchTemplateVersion")
def _new_version(request: Request) -> dict[str, Any]:
    parameters = request.parameters
    check_user_data((parameters.get("LaunchTemplateData") or {}).get("UserData"), _MALFORMED)
    if parameters.get("SourceVersion"):
        named, number = parameters.get("LaunchTemplateName"), parameters.get("LaunchTemplateId")
        backend = request.backend
        template = (
            backend.get_launch_template_by_name(named)
            if named
            else backend.get_launch_template(number)
        )
        source = template.get_version(parameters["SourceVersion"])
        data = {**source.data, **(parameters.get("LaunchTemplateData") or {})}
        request.response.params = {**parameters, "LaunchTemplateData": data}
    result: dict[str, Any] = request.moto_answer().result
    return result
