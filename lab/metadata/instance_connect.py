"""EC2 Instance Connect: a key that opens an instance for a minute.

SendSSHPublicKey puts the key into the instance's metadata, where sshd's AuthorizedKeysCommand finds
it: on images with the package ec2-instance-connect (Amazon Linux and Ubuntu have it, Debian not).
https://docs.aws.amazon.com/ec2-instance-connect/latest/APIReference/API_SendSSHPublicKey.html
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import time
import uuid
from dataclasses import dataclass
from typing import Any

from moto.core.exceptions import JsonRESTError
from moto.ec2.models import ec2_backends

from lab.guests.instances import LabInstance
from lab.metadata import identity

_SECONDS = 60
_USER = re.compile(r"[A-Za-z_][A-Za-z0-9_.@-]{0,30}[A-Za-z0-9$_-]?")
_KINDS = (b"ssh-rsa", b"ssh-ed25519")


@dataclass(frozen=True)
class ActiveKey:
    """A key that a user of an instance can log in with until a time of this machine's clock."""

    user: str
    key: str
    until: int
    request: str


def send(response: Any) -> str:
    """SendSSHPublicKey, instead of moto's, which reports success and does nothing."""
    parameters = json.loads(response.body or "{}")
    if not _USER.fullmatch(parameters["InstanceOSUser"]):
        raise _refused("InvalidArgsException", "InstanceOSUser is not a name of a user")
    key = _public_key(parameters["SSHPublicKey"])
    backend = ec2_backends[response.current_account][response.region]
    instance = next(
        (
            instance
            for instance in backend.all_instances()
            if instance.id == parameters["InstanceId"]
        ),
        None,
    )
    zone = parameters.get("AvailabilityZone")
    if instance is None or zone not in (None, instance.availability_zone):
        raise _refused("EC2InstanceNotFoundException", "Instance not found.")
    if instance.state != "running":
        raise _refused(
            "EC2InstanceStateInvalidException", f"The instance is {instance.state}, not running."
        )
    request = str(uuid.uuid4())
    now = int(time.time())
    kept = [key for key in instance.connect_keys if key.until > now]
    user = parameters["InstanceOSUser"]
    instance.connect_keys = [*kept, ActiveKey(user, key, now + _SECONDS, request)]
    return json.dumps({"RequestId": request, "Success": True})


def active(instance: LabInstance) -> dict[str, Any]:
    """`managed-ssh-keys` of an instance's metadata; empty when it has no such key now."""
    now = int(time.time())
    users: dict[str, str] = {}
    for key in instance.connect_keys:
        if key.until > now:
            text = f"#Timestamp={key.until}\n#Instance={instance.id}\n#Request={key.request}\n"
            signed = identity.signed_key(instance.machines.lab, f"{text}{key.key}\n")
            users[key.user] = users.get(key.user, "") + signed
    if not users:
        return {}
    certificate = identity.certificate(instance.machines.lab)
    return {"managed-ssh-keys": {"active-keys": users, "signer-cert": certificate}}


def _public_key(text: str) -> str:
    """A public key as OpenSSH writes it, without its comment. Raises InvalidArgsException."""
    kind, _, rest = text.strip().partition(" ")
    blob = rest.partition(" ")[0]
    try:
        content = base64.b64decode(blob, validate=True)
    except (ValueError, binascii.Error):
        content = b""
    name = content[4 : 4 + int.from_bytes(content[:4], "big")]
    if name not in _KINDS or name != kind.encode():
        raise _refused("InvalidArgsException", "SSHPublicKey is not an OpenSSH public key")
    return f"{kind} {blob}"


def _refused(code: str, message: str) -> JsonRESTError:
    return JsonRESTError(code, message)
