"""The SSH host keys of a new instance, as it wrote them to its console.

cloud-init prints them there at the first boot of the images of Amazon, Canonical and Debian. EC2
hands the console out over its authenticated API, so nobody on the network can change them. (Keys
that this machine made could be given to the instance in its user data, but whoever may call
DescribeInstanceAttribute in the account reads that.)

https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_GetConsoleOutput.html
https://cloudinit.readthedocs.io/en/latest/reference/modules.html#keys-to-console
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

from kiln.base.stopping import Stop
from kiln.cloud.target import Target

_BEGIN, _END = "-----BEGIN SSH HOST KEY KEYS-----", "-----END SSH HOST KEY KEYS-----"
_KEY = re.compile(r"\b(ssh-ed25519|ssh-rsa|ecdsa-sha2-nistp(?:256|384|521)) ([A-Za-z0-9+/]+=*)")
# An instance on Nitro shows its console at once, an older one some minutes after its boot:
# https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instance-console.html
PATIENCE = 120.0
_TRY_AGAIN = ("RequestLimitExceeded", "InternalError", "Unavailable", "InvalidInstanceID.NotFound")


def in_console(text: str) -> list[str]:
    """The keys on a console, each as `type base64`; of several boots those of the last."""
    before, _, _ = text.rpartition(_END)
    _, begin, block = before.rpartition(_BEGIN)
    return [f"{kind} {key}" for kind, key in _KEY.findall(block)] if begin else []


def wait(
    client: Any,
    instance_id: str,
    target: Target,
    *,
    is_up: Callable[[], bool],
    waits_for: Callable[[str], None],
    say: Callable[[str], None],
    stop: Stop,
    timeout: float,
) -> list[str]:
    """The instance's host keys; [] when its console does not show them: `say` gets a warning.

    Waits until SSH answers (`is_up`), and then, as `waits_for` reports, PATIENCE seconds longer or
    half of `timeout`; `timeout` seconds at most.
    Raises StoppedError as soon as `stop` is set.
    """
    from botocore.exceptions import BotoCoreError, ClientError

    more = {"Latest": True}
    start = time.monotonic()
    up_since = None
    reason = "its console does not show it"
    while time.monotonic() - start < timeout:
        try:
            answer = client.get_console_output(InstanceId=instance_id, **more)
            keys = in_console(answer.get("Output") or "")
            if keys:
                return keys
        except ClientError as error:
            code = error.response["Error"].get("Code", "")
            if code == "UnsupportedOperation" and more:
                more = {}  # not on Nitro
            elif code not in _TRY_AGAIN:
                reason = f"GetConsoleOutput answered {code}"
                break
        except BotoCoreError as error:  # the network, for a moment
            reason = f"GetConsoleOutput: {error}"
        if up_since is None and is_up():
            up_since = time.monotonic()
            waits_for(f"the host key of {instance_id} on its console")
        if up_since is not None and time.monotonic() - up_since > min(PATIENCE, timeout / 2):
            break
        stop.sleep(target.poll_seconds)
    if up_since is None and not is_up():
        return []  # the caller reports that SSH does not answer
    say(
        f"warning: the host key of {instance_id} is not known ({reason}): the first one that "
        "answers at its address is trusted"
    )
    return []
