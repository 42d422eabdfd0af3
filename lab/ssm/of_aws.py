"""The Command documents of AWS that the lab runs: their parameters as AWS documents them.

https://docs.aws.amazon.com/systems-manager/latest/userguide/run-command.html
https://docs.aws.amazon.com/systems-manager/latest/userguide/distributor-working-with-packages-deploy.html
https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/download-CloudWatch-Agent-on-EC2-Instance-SSM-first.html
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

Content = Mapping[str, Any]
DEFAULT_TIMEOUT = 3600
SHELL, PACKAGE = "aws:runShellScript", "aws:configurePackage"
_SCRIPTS = Path(__file__).with_name("scripts")


def script(name: str) -> str:
    """A script of this folder."""
    return (_SCRIPTS / name).read_text(encoding="utf-8")


def _choice(default: str, *values: str) -> dict[str, Any]:
    return {"type": "String", "default": default, "allowedValues": list(values)}


_RUN_SHELL_SCRIPT: Content = {
    "schemaVersion": "2.2",
    "parameters": {
        "commands": {"type": "StringList", "minItems": 1},
        "workingDirectory": {"type": "String", "default": ""},
        "executionTimeout": {
            "type": "String",
            "default": str(DEFAULT_TIMEOUT),
            "allowedPattern": "([1-9][0-9]{0,4})|(1[0-6][0-9]{4})|(17[0-1][0-9]{3})"
            "|(172[0-7][0-9]{2})|(172800)",
        },
    },
    "mainSteps": [
        {
            "action": SHELL,
            # Its one step has the name of its plugin: invocations show PluginName
            # aws:runShellScript.
            "name": SHELL,
            "inputs": {
                "runCommand": "{{ commands }}",
                "workingDirectory": "{{ workingDirectory }}",
                "timeoutSeconds": "{{ executionTimeout }}",
            },
        }
    ],
}
_CONFIGURE_PACKAGE: Content = {
    "schemaVersion": "2.2",
    "parameters": {
        "action": {"type": "String", "allowedValues": ["Install", "Uninstall"]},
        "installationType": _choice(
            "Uninstall and reinstall", "Uninstall and reinstall", "In-place update"
        ),
        "name": {"type": "String"},
        "version": {"type": "String", "default": ""},
        "additionalArguments": {"type": "String", "default": "{}"},
    },
    "mainSteps": [
        {
            "action": PACKAGE,
            "name": "configurePackage",
            "inputs": {
                "name": "{{ name }}",
                "action": "{{ action }}",
                "installationType": "{{ installationType }}",
                "version": "{{ version }}",
            },
        }
    ],
}
# Its steps are called Control… and one runs on each platform, as published answers show.
_MANAGE_AGENT: Content = {
    "schemaVersion": "2.2",
    "parameters": {
        "action": _choice(
            "configure",
            *("configure", "configure (append)", "configure (remove)", "start", "status", "stop"),
        ),
        "mode": _choice("ec2", "ec2", "onPremise", "auto"),
        "optionalConfigurationSource": _choice("ssm", "ssm", "default", "all"),
        "optionalConfigurationLocation": {
            "type": "String",
            "default": "",
            "allowedPattern": '[a-zA-Z0-9-"~:_@./^(*)!<>?=+]*',
        },
        "optionalRestart": _choice("yes", "yes", "no"),
    },
    "mainSteps": [
        {
            "action": SHELL,
            "name": "ControlCloudWatchAgentLinux",
            "precondition": {"StringEquals": ["platformType", "Linux"]},
            "inputs": {
                "runCommand": [
                    "action='{{ action }}'",
                    "mode='{{ mode }}'",
                    "source='{{ optionalConfigurationSource }}'",
                    "location='{{ optionalConfigurationLocation }}'",
                    "restart='{{ optionalRestart }}'",
                    script("manage-agent.sh"),
                ]
            },
        },
        {
            "action": "aws:runPowerShellScript",
            "name": "ControlCloudWatchAgentWindows",
            "precondition": {"StringEquals": ["platformType", "Windows"]},
            "inputs": {"runCommand": []},
        },
    ],
}
DOCUMENTS: dict[str, Content] = {
    "AWS-RunShellScript": _RUN_SHELL_SCRIPT,
    "AWS-ConfigureAWSPackage": _CONFIGURE_PACKAGE,
    "AmazonCloudWatch-ManageAgent": _MANAGE_AGENT,
}
