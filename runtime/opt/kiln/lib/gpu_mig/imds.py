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
    """(status, body) of one request. By hand: http.client takes 25 ms of every boot to import."""
    import socket

    endpoint = os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://169.254.169.254")
    where = re.match(r"(?:http://)?(?:\[([^\]]+)\]|([^:/]+))(?::([0-9]+))?/?$", endpoint)
    if not where:
        raise ValueError("{!r} is no address of an IMDS".format(endpoint))
    host = where.group(1) or where.group(2)
    lines = ["{} {} HTTP/1.1".format(method, path), "Host: " + host, "Connection: close"]
    lines += ["{}: {}".format(*header) for header in headers.items()]
    lines += ["Content-Length: 0"] if method == "PUT" else []
    # As bytes: a host of type str costs the import of the codec for international names.
    address = (host.encode("ascii"), int(where.group(3) or 80))
    with socket.create_connection(address, timeout=_left(deadline)) as link:
        link.sendall("\r\n".join(lines + ["", ""]).encode("ascii"))
        answer = b""
        while len(answer) < 65536 and not _whole(answer):
            link.settimeout(_left(deadline))
            part = link.recv(65536)
            if not part:
                break
            answer += part
    head, _, body = answer.partition(b"\r\n\r\n")
    first = head.split(None, 2)
    if len(first) < 2 or not first[0].startswith(b"HTTP/") or not first[1].isdigit():
        raise OSError("no HTTP, but {!r}".format(answer[:40]))
    return int(first[1]), _unchunked(body) if _field(head, b"transfer-encoding") else body


def _left(deadline):
    left = deadline - time.monotonic()
    if left <= 0:
        raise OSError("no answer within {} s".format(BUDGET))
    return left


def _whole(answer):
    head, end, body = answer.partition(b"\r\n\r\n")
    length = _field(head, b"content-length")
    return bool(end) and length.isdigit() and len(body) >= int(length)


def _field(head, name):
    for line in head.split(b"\r\n")[1:]:
        key, _, value = line.partition(b":")
        if key.lower() == name:
            return value.strip()
    return b""


def _unchunked(body):
    found = b""
    while body:
        size, _, body = body.partition(b"\r\n")
        n = int(size.partition(b";")[0], 16)
        found, body = found + body[:n], body[n + 2 :] if n else b""
    return found


def machine_id():
    """What tells this instance from others made of the same image."""
    uuid = paths.read("/sys/class/dmi/id/product_uuid").strip()
    return uuid or paths.read("/etc/machine-id").strip()
