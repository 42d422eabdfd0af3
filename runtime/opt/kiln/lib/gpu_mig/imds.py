"""The layout chosen at launch: the instance tag `kiln:mig-config`, or a line in user-data.

IMDSv2 only. All requests together may take `BUDGET` seconds, so that a machine without IMDS boots.
"""

from __future__ import annotations

import gzip
import os
import re
import time

from . import paths

TAG = "kiln:mig-config"
BUDGET = 0.8
_USER_DATA = r"^[ \t]*#?[ \t]*kiln:mig-config[ \t]*[=:][ \t]*(\S+)[ \t]*$"


def launch_label() -> tuple[str, str]:
    """(label, its source), or ("", why there is none). Never raises, never waits long."""
    deadline = time.monotonic() + BUDGET
    try:
        status, token = _request(
            "PUT", "/latest/api/token", deadline, {"X-aws-ec2-metadata-token-ttl-seconds": "60"}
        )
        if status != 200:
            return "", f"IMDS refused a token (HTTP {status})"
        head = {"X-aws-ec2-metadata-token": token.decode("ascii")}
        status, body = _request("GET", "/latest/meta-data/tags/instance/" + TAG, deadline, head)
        if status == 200 and body.strip():
            return body.decode("utf-8", "replace").strip(), "instance tag " + TAG
        status, body = _request("GET", "/latest/user-data", deadline, head)
        label = from_user_data(body) if status == 200 else ""
        return label, "user-data" if label else f"no tag {TAG} and no such line in user-data"
    except (OSError, ValueError) as e:
        return "", f"IMDS did not answer: {e}"


def from_user_data(body: bytes) -> str:
    """The label in a line `kiln:mig-config=<label>` (which may be a `#` comment), or ""."""
    if body[:2] == b"\x1f\x8b":
        try:
            body = gzip.decompress(body)
        except (OSError, EOFError):
            return ""
    match = re.search(_USER_DATA, body.decode("utf-8", "replace").replace("\r", ""), re.M)
    return match.group(1) if match else ""


def _request(method: str, path: str, deadline: float, headers: dict[str, str]) -> tuple[int, bytes]:
    import http.client  # takes 25 ms, which MIG_IMDS=no saves at boot

    left = deadline - time.monotonic()
    if left <= 0:
        raise OSError(f"no answer within {BUDGET} s")
    endpoint = os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://169.254.169.254")
    host = re.sub(r"^http://", "", endpoint).rstrip("/")
    try:
        connection = http.client.HTTPConnection(host, timeout=left)
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
