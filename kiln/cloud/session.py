"""SSH to an instance through Session Manager: no open port, no address, from anywhere.

The same as `aws ssm start-session --document-name AWS-StartSSHSession`, without the AWS CLI: SSM
opens the session, and AWS's plugin carries ssh's bytes.
https://docs.aws.amazon.com/systems-manager/latest/userguide/session-manager-getting-started-enable-ssh-connections.html
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

from kiln.base.errors import KilnError
from kiln.base.paths import ROOT
from kiln.cloud import aws
from kiln.cloud.target import Target

PLUGIN = "session-manager-plugin"
_ERROR = "AMI Kiln: "
# How the reason begins when Systems Manager opens no session.
REFUSED = "no session of"


def require_plugin() -> None:
    """Require AWS's plugin on this machine."""
    if not shutil.which(PLUGIN):
        raise KilnError(
            f"ssh_interface session_manager needs {PLUGIN}, which is not on PATH",
            hint="https://docs.aws.amazon.com/systems-manager/latest/userguide/"
            "session-manager-working-with-install-plugin.html",
        )


def is_online(instance_id: str, target: Target) -> bool:
    """Return True if the instance's SSM agent has registered, so that sessions can begin."""
    wanted: list[Any] = [{"Key": "InstanceIds", "Values": [instance_id]}]
    with aws.explained(f"whether {instance_id} has registered with Systems Manager is not known"):
        answer = aws.ssm(target).describe_instance_information(Filters=wanted)
    return any(
        instance.get("PingStatus") == "Online" for instance in answer["InstanceInformationList"]
    )


def proxy_command(target: Target, folder: Path) -> str:
    """Return the ProxyCommand of ssh that reaches an instance, whose id is the host's name.

    `folder`, which nobody else may read, gets a file with the endpoint and keys of a target that
    has its own.
    """
    settings = folder / "session.json"
    settings.touch(mode=0o600)
    settings.write_text(json.dumps(dict(target.client_settings())))
    words = [sys.executable, "-m", __name__, target.region, str(settings)]
    started = f"env PYTHONPATH={shlex.quote(str(ROOT))} {shlex.join(words)}"
    return f"{started.replace('%', '%%')} %h %p"


def carry(region: str, settings: str, instance_id: str, port: str) -> None:
    """Become the plugin, with a new session of the instance; stdin and stdout are ssh's."""
    own = json.loads(Path(settings).read_text())
    parameters = {
        "Target": instance_id,
        "DocumentName": "AWS-StartSSHSession",
        "Parameters": {"portNumber": [port]},
    }
    with aws.explained(f"{REFUSED} {instance_id} could be opened"):
        client = aws.new_client("ssm", region, own)
        answer = client.start_session(**parameters)
    opened = {name: answer[name] for name in ("SessionId", "TokenValue", "StreamUrl")}
    # Its arguments as the AWS CLI gives them: awscli/customizations/sessionmanager.py (aws/aws-cli)
    plugin = str(Path(shutil.which(PLUGIN) or PLUGIN))
    request, endpoint = json.dumps(parameters), client.meta.endpoint_url
    environment = dict(os.environ)
    # The plugin makes calls of its own, to resume and to end the session.
    if keys := {name.upper(): text for name, text in own.items() if name.startswith("aws_")}:
        others = {name for name in environment if not name.startswith("AWS_")}
        environment = {name: environment[name] for name in others} | keys
    profile = environment.get("AWS_PROFILE", "")
    os.execve(  # noqa: S606 - no shell
        plugin,
        [PLUGIN, json.dumps(opened), region, "StartSession", profile, request, endpoint],
        environment,
    )


def carry_or_explain(*words: str) -> None:
    """`carry`, with an error as a line of stderr, to which ssh adds lines of its own."""
    try:
        carry(*words)
    except KilnError as error:
        sys.exit(_ERROR + error.message.replace("\n", " "))


def reason_in(errors: str) -> str:
    """Return why ssh failed, from its stderr: what `carry_or_explain` wrote, or its own last
    line."""
    lines = errors.strip().splitlines() or ["ssh failed"]
    ours = (line.removeprefix(_ERROR) for line in lines if line.startswith(_ERROR))
    return next(ours, lines[-1])


if __name__ == "__main__":
    carry_or_explain(*sys.argv[1:])
