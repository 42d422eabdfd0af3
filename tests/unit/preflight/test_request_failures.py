"""Why a request to a vendor failed: a few words for what requests and urllib3 say."""

from __future__ import annotations

import errno
import os
import socket
import ssl
from pathlib import Path
from typing import Any

import pytest
import requests
from urllib3 import connection, exceptions
from urllib3.connectionpool import HTTPConnectionPool

from kiln.preflight.indexes import Fetcher, NoAnswerError

POOL: Any = HTTPConnectionPool("vendor.example")
CONNECTION: Any = connection.HTTPConnection("vendor.example")


def after_retries(error: Exception) -> requests.RequestException:
    return requests.ConnectionError(exceptions.MaxRetryError(POOL, "/file", error))


REFUSED = OSError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))


UNKNOWN = socket.gaierror(-2, "Name or service not known")
UNTRUSTED = ssl.SSLCertVerificationError(1, "[SSL: CERTIFICATE_VERIFY_FAILED] self-signed")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (
            after_retries(exceptions.NameResolutionError("vendor.example", CONNECTION, UNKNOWN)),
            "its name cannot be resolved",
        ),
        (
            after_retries(exceptions.NewConnectionError(CONNECTION, str(REFUSED))),
            "connection refused",
        ),
        (requests.exceptions.SSLError(UNTRUSTED), "its TLS certificate is not trusted"),
        (
            requests.ReadTimeout(exceptions.ReadTimeoutError(POOL, "/file", "Read timed out.")),
            "no answer in time",
        ),
        (requests.RequestException("something new"), "something new"),
    ],
)
def test_failed_request_says_why(
    error: Exception, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(requests, "request", fail)
    with pytest.raises(NoAnswerError) as refused:
        Fetcher(tmp_path).size("https://vendor.example/file")
    assert str(refused.value).startswith(f"vendor.example: {reason}")
