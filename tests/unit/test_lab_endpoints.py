"""Which host names lead from a guest to the lab instead of AWS."""

from __future__ import annotations

import fnmatch
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from lab.machine import endpoints


@pytest.mark.parametrize(
    ("name", "here"),
    [
        ("ssm.us-east-1.amazonaws.com", True),
        ("ec2messages.us-gov-west-1.amazonaws.com", True),
        ("logs.eu-central-1.api.aws", True),
        ("sts.amazonaws.com", True),
        ("s3.eu-west-1.amazonaws.com", True),
        ("of-the-lab.s3.eu-west-1.amazonaws.com", True),
        ("of-the-lab.s3.amazonaws.com", True),
        # Anybody's bucket: a download from there must work as without the lab.
        ("amazon-ssm-us-east-1.s3.us-east-1.amazonaws.com", False),
        ("123456789012.dkr.ecr.us-east-1.amazonaws.com", False),
        ("my-lb-1.us-east-1.elb.amazonaws.com", False),
        ("ssm.us-east-1.amazonaws.com.example.net", False),
        ("docs.aws.amazon.com", False),
    ],
)
def test_endpoints_lead_here_and_other_names_of_aws_do_not(name: str, here: bool) -> None:
    assert endpoints.is_here(name, "of-the-lab".__eq__) is here


@pytest.mark.parametrize(
    "name",
    [
        "ssm.us-east-1.amazonaws.com",
        "logs.eu-central-1.api.aws",
        "sts.amazonaws.com",
        "a-bucket.s3.us-west-2.amazonaws.com",
        "a-bucket.s3.amazonaws.com",
    ],
)
def test_the_certificate_holds_them(name: str) -> None:
    label = name.split(".", 1)[1]
    held = endpoints.certified()
    assert name in held or any(n == f"*.{label}" and fnmatch.fnmatch(name, n) for n in held)


@contextmanager
def serving(kind: type[BaseHTTPRequestHandler]) -> Iterator[int]:
    with ThreadingHTTPServer(("127.0.0.1", 0), kind) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


@pytest.mark.parametrize(
    ("body", "status", "arrived"),
    [
        (
            b"5\r\nhello\r\n3;x=y\r\n!!!\r\n0\r\nx-amz-checksum-crc32: AAAA\r\n\r\n",
            200,
            b"hello!!!",
        ),
        (b"0\r\n\r\n", 200, b""),
        (b"zz\r\n", 411, None),
        (b"7fffffff\r\n", 411, None),
    ],
)
def test_an_upload_in_chunks_as_boto3_sends_it_reaches_the_lab_whole(
    body: bytes, status: int, arrived: bytes | None
) -> None:
    seen: list[bytes] = []

    class Api(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            seen.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with serving(Api) as port:

        class Front(Api):
            def do_PUT(self) -> None:
                endpoints.forward(self, port)

        with serving(Front) as front, socket.create_connection(("127.0.0.1", front)) as guest:
            guest.sendall(
                b"PUT /x HTTP/1.1\r\nHost: b\r\nTransfer-Encoding: chunked\r\n\r\n" + body
            )
            assert guest.recv(100).split()[1] == str(status).encode()
    assert seen == ([] if arrived is None else [arrived])
