"""The way to the WebSockets of sessions: they are not signed, their first message has a token."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from lab.access import auth
from lab.ssm import sessions, websocket
from lab.ssm.sessions import Sessions

Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class _OverError(ConnectionAbortedError):
    """The connection had no HTTP answer, and is used up: the server drops it."""


def over(application: Application, kept: Sessions, addresses: Sequence[str]) -> Application:
    """`application`, with the sessions' WebSockets in front of it. `addresses` are the lab's."""

    def entrance(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        path = str(environ.get("PATH_INFO", ""))
        whole = websocket.is_wanted(environ) and "HTTP_SEC_WEBSOCKET_KEY" in environ
        if not path.startswith(sessions.PATH) or not whole or auth.from_a_page(environ, addresses):
            return application(environ, start_response)
        kept.channel(environ)
        raise _OverError

    return entrance
