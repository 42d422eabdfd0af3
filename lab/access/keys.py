"""The access keys that the lab's API accepts.

A lab makes one key when it first comes up and keeps it in its state folder, where only root reads
it: who has the secret can start machines on this host. Other keys (of IAM users and assumed roles,
which moto made) are looked up where they are.
"""

from __future__ import annotations

import json
import os
import secrets
import string
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from kiln.base.errors import KilnError, operation_failed
from lab import folders
from lab.settings import Lab

# AWS's ids are AKIA or ASIA and 16 of these. Ours begin differently, so that nothing (a scanner for
# leaked keys, AWS) takes them for AWS's.
# https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_identifiers.html
_ALPHABET = string.ascii_uppercase + "234567"
_PREFIX = "KILN"


@dataclass(frozen=True)
class Key:
    """An access key. `principal` says whose it is, for the lab's log; `token` goes with a key that
    a role handed out, and expires (seconds since 1970). The secret is in no representation of the
    object."""

    id: str
    secret: str = field(repr=False)
    principal: str
    token: str | None = field(default=None, repr=False)
    expires: float | None = None


# A key by its id; None for an unknown one.
Lookup = Callable[[str], Key | None]


def ensure(lab: Lab) -> Key:
    """The lab's own key, made when it is missing.

    Raises operation_failed, naming sudo, for a user who may not read it.
    """
    key = read(lab)
    if key is None:
        try:
            folders.private(lab.root, lab.state)
            _write(_file(lab), _new(lab))
        except PermissionError:
            raise _for_root(lab) from None
        key = read(lab)
    if key is None:
        raise operation_failed(f"{_file(lab)} was deleted while it was read", hint="try again")
    return key


def read(lab: Lab) -> Key | None:
    """The lab's own key; None when it was never up, or was deleted. Raises what `ensure` raises."""
    path = _file(lab)
    try:
        data = json.loads(path.read_text())
        return Key(data["id"], data["secret"], data["principal"])
    except FileNotFoundError:
        return None
    except PermissionError:
        raise _for_root(lab) from None
    except (ValueError, KeyError, TypeError):
        raise operation_failed(
            f"{path} does not hold the lab's keys", hint="delete it: the next start makes new ones"
        ) from None


def _for_root(lab: Lab) -> KilnError:
    return operation_failed(
        f"the keys of the lab are readable by root only ({_file(lab)})", hint="run it with sudo"
    )


def first_of(*lookups: Lookup) -> Lookup:
    """The key that the first of several stores has."""

    def find(key_id: str) -> Key | None:
        return next((key for lookup in lookups if (key := lookup(key_id))), None)

    return find


def only(key: Key) -> Lookup:
    """A store with one key."""
    return {key.id: key}.get


def _new(lab: Lab) -> Key:
    name = "".join(secrets.choice(_ALPHABET) for _ in range(16))
    return Key(_PREFIX + name, secrets.token_urlsafe(30), f"the user of {lab.bridge}")


def _write(path: Path, key: Key) -> None:
    """Write the file with its final mode from the start; another process may be first."""
    making = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    making.unlink(missing_ok=True)
    with open(making, "x", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        json.dump({"id": key.id, "secret": key.secret, "principal": key.principal}, file)
    try:
        path.hardlink_to(making)
    except FileExistsError:
        pass
    finally:
        making.unlink()


def _file(lab: Lab) -> Path:
    return lab.state / "keys.json"
