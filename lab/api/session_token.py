"""The lab's session token, which every SDK sends as `X-Amz-Security-Token`.

A lab makes one at its first start and keeps it in its state folder, where only its user reads it:
who has it can start machines on this host. It lives until `lab.clean`: a lab is started anew when
its code or the matrix has changed, and its clients go on. Signatures are not checked, so id and
secret of the access key are no secrets.
"""

from __future__ import annotations

import hmac
import os
import secrets
from pathlib import Path

from kiln.base.errors import operation_failed
from lab.base.settings import Lab

# AWS's ids begin with AKIA or ASIA: nothing (a scanner for leaked keys, AWS) takes this for one.
KEY_ID = "KILNLAB0000000000000"
SECRET_KEY = "not-checked-by-the-lab"  # noqa: S105 - no secret
HEADER = "X-Amz-Security-Token"


def ensure(lab: Lab) -> str:
    """Return the lab's token, which is made if there is none."""
    if token := read(lab):
        return token
    file = _file(lab)
    making = file.with_suffix(".new")
    making.unlink(missing_ok=True)
    token = secrets.token_urlsafe(32)
    with open(making, "x", opener=lambda name, flags: os.open(name, flags, 0o600)) as opened:
        opened.write(token)
    making.rename(file)
    return token


def read(lab: Lab) -> str:
    """Return the lab's token; "" when the lab was never up."""
    try:
        return _file(lab).read_text()
    except FileNotFoundError:
        return ""


def require(lab: Lab) -> str:
    """Return the lab's token. Raises operation_failed when the lab was never up."""
    if token := read(lab):
        return token
    raise operation_failed(f"{lab.bridge} has no session token", hint="start it: ./invoke lab.up")


def is_same(token: str, other: str) -> bool:
    """Compare two tokens in constant time; no token is not the same as another missing one."""
    # compare_digest takes no text beyond ASCII, and a client may send any.
    return bool(token) and hmac.compare_digest(token.encode(), other.encode())


def _file(lab: Lab) -> Path:
    return lab.state / "session-token"
