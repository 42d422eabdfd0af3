"""The layout chosen at launch: the instance tag `kiln:mig-config`, or a line in user-data.

IMDSv2 only. IMDS may be late at boot, so a request that gets no answer is repeated until `BUDGET`
seconds are over. Without an answer nobody knows the launch's layout, and the node must not join.
"""

from __future__ import annotations

import errno
import os
import re
import socket
import time
import zlib

from . import paths
from .errors import operation_failed

TAG = "kiln:mig-config"
# Seconds: of all requests, of one try, and between two. cloud-init waits up to 240 for IMDS.
BUDGET = 30.0
TRY = 5.0
PAUSE = 1.0
_UNREACHABLE = (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ETIMEDOUT)  # the network may be late
MAX_BYTES = 1 << 20  # of unpacked user-data; EC2 takes at most 16 KiB, packed or not
_USER_DATA = r"^[ \t]*(?:#[ \t]*)?kiln:mig-config[ \t]*[=:][ \t]*(\S+)[ \t]*$"


def launch_label() -> tuple[str, str]:
    """(label, its source), or ("", why there is none): IMDS is off, or names no layout.

    Raises MigError (exit status 1) when IMDS does not answer, or only with HTTP 5xx.
    """
    deadline = time.monotonic() + BUDGET
    try:
        status, token = _answer(
            "PUT", "/latest/api/token", deadline, {"X-aws-ec2-metadata-token-ttl-seconds": "60"}
        )
        if status != 200:
            return "", f"IMDS refused a token (HTTP {status})"
        head = {"X-aws-ec2-metadata-token": token.decode("ascii")}
        status, body = _answer("GET", "/latest/meta-data/tags/instance/" + TAG, deadline, head)
        if status == 200 and body.strip():
            return body.decode("utf-8", "replace").strip(), "instance tag " + TAG
        status, body = _answer("GET", "/latest/user-data", deadline, head)
        text = unpacked(body) if status == 200 else b""
        if text is None:
            return (
                "",
                f"no tag {TAG}, and user-data is not one gzip member of at most {MAX_BYTES} bytes",
            )
        label = from_user_data(text)
        return label, "user-data" if label else f"no tag {TAG} and no such line in user-data"
    except (OSError, ValueError) as e:
        return "", f"IMDS did not answer: {e}"


def from_user_data(body: bytes) -> str:
    """The label in a line `kiln:mig-config=<label>` (which may be a `#` comment), or "".

    `body`: user-data as it is, or packed by gzip.
    """
    body = unpacked(body) or b""
    match = re.search(_USER_DATA, body.decode("utf-8", "replace").replace("\r", ""), re.M)
    return match.group(1) if match else ""


def unpacked(body: bytes) -> bytes | None:
    """User-data without gzip; None if it is damaged, too long or more than one member."""
    if body[:2] != b"\x1f\x8b":
        return body
    member = zlib.decompressobj(wbits=31)
    try:
        text = member.decompress(body, MAX_BYTES + 1)
    except zlib.error:
        return None
    whole = member.eof and not member.unused_data.strip(b"\0")
    return text if whole and len(text) <= MAX_BYTES else None


def _answer(method: str, path: str, deadline: float, headers: dict[str, str]) -> tuple[int, bytes]:
    """The first answer that is not HTTP 5xx. Raises MigError at `deadline`."""
    while True:
        try:
            status, body = _request(method, path, headers)
            if status < 500:
                return status, body
            why = f"HTTP {status}"
        except OSError as e:
            if not isinstance(e, socket.timeout) and e.errno not in _UNREACHABLE:
                raise
            why = str(e)
        if time.monotonic() + PAUSE >= deadline:
            raise operation_failed(
                f"IMDS does not tell the launch's MIG layout: {why}",
                f"reboot, or set MIG_IMDS=no in {paths.DEFAULTS} to use the image's layout",
            )
        time.sleep(PAUSE)


def _request(method: str, path: str, headers: dict[str, str]) -> tuple[int, bytes]:
    import http.client  # takes 25 ms, which MIG_IMDS=no saves at boot

    endpoint = os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://169.254.169.254")
    host = re.sub(r"^http://", "", endpoint).rstrip("/")
    try:
        connection = http.client.HTTPConnection(host, timeout=TRY)
        try:
            connection.request(method, path, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.read(65536)
        finally:
            connection.close()
    except http.client.HTTPException as e:
        raise OSError(str(e) or type(e).__name__) from e


def machine_id() -> str:
    """An id that differs between instances of the same image."""
    uuid = paths.read("/sys/class/dmi/id/product_uuid").strip()
    return uuid or paths.read("/etc/machine-id").strip()
