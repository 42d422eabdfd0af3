"""What the launch says about MIG: the instance tag `kiln:mig-config`, or a line in user-data.

IMDSv2 only. All requests together get `BUDGET` seconds: a machine without IMDS boots on.
"""

from __future__ import annotations

import os
import re
import time

from . import paths

TAG = "kiln:mig-config"
BUDGET = 0.8
_USER_DATA = r"^[ \t]*#?[ \t]*kiln:mig-config[ \t]*[=:][ \t]*(\S+)[ \t]*$"


def launch_label():
    """(label, where it came from), or ("", why there is none). Never raises, never waits long."""
    deadline = time.monotonic() + BUDGET
    try:
        status, token = _request(
            "PUT", "/latest/api/token", deadline, {"X-aws-ec2-metadata-token-ttl-seconds": "60"}
        )
        if status != 200:
            return "", "IMDS refused a token (HTTP {})".format(status)
        head = {"X-aws-ec2-metadata-token": token.decode("ascii")}
        status, body = _request("GET", "/latest/meta-data/tags/instance/" + TAG, deadline, head)
        if status == 200 and body.strip():
            return body.decode("utf-8", "replace").strip(), "instance tag " + TAG
        status, body = _request("GET", "/latest/user-data", deadline, head)
        found = from_user_data(body) if status == 200 else ""
        return found, "user-data" if found else "no tag {} and no such line in user-data".format(
            TAG
        )
    except (OSError, ValueError) as e:
        return "", "IMDS did not answer: {}".format(e)


def from_user_data(body):
    """The label a line `kiln:mig-config=<label>` names (it may be a `#` comment), or ""."""
    if body[:2] == b"\x1f\x8b":
        import gzip

        try:
            body = gzip.decompress(body)
        except (OSError, EOFError):
            return ""
    found = re.search(_USER_DATA, body.decode("utf-8", "replace").replace("\r", ""), re.M)
    return found.group(1) if found else ""


def _request(method, path, deadline, headers):
    import http.client  # 25 ms to import: only when IMDS is asked at all

    left = deadline - time.monotonic()
    if left <= 0:
        raise OSError("no answer within {} s".format(BUDGET))
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


def machine_id():
    """What tells this instance from others made of the same image."""
    uuid = paths.read("/sys/class/dmi/id/product_uuid").strip()
    return uuid or paths.read("/etc/machine-id").strip()
