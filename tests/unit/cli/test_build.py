"""`./invoke build` and `verify` on a bad day: one message, the right exit status, nothing left.

AWS is a stub on 127.0.0.1 that answers what the test wants and keeps what it was asked. No lab.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs

import pytest

from tests.unit.cli.conftest import Done

pytestmark = pytest.mark.slow

AL2 = "al2-510.47.03-cuda11.6-base-x86_64"
BUILD = ("build", "--distro", "al2", "--driver", "510.47.03")
AMI = "ami-0123456789abcdef0"
ERROR = "<Response><Errors><Error><Code>{}</Code><Message>{}</Message></Error></Errors></Response>"
ANSWERS = {
    "GetCallerIdentity": (
        200,
        '<GetCallerIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">'
        "<GetCallerIdentityResult><Account>123456789012</Account><Arn>arn:aws:iam::1:user/u</Arn>"
        "<UserId>u</UserId></GetCallerIdentityResult></GetCallerIdentityResponse>",
    ),
    "GetParameter": (200, json.dumps({"Parameter": {"Value": AMI}})),
    "DescribeImages": (
        200,
        '<DescribeImagesResponse xmlns="http://ec2.amazonaws.com/doc/2016-11-15/"><imagesSet><item>'
        f"<imageId>{AMI}</imageId><imageState>available</imageState><name>amzn2</name>"
        "<creationDate>2026-01-01T00:00:00.000Z</creationDate></item></imagesSet>"
        "</DescribeImagesResponse>",
    ),
}  # fmt: skip


class Aws:
    """An AWS that answers three calls; `answers` changes them, `asked` are the actions so far."""

    def __init__(self) -> None:
        self.answers = dict(ANSWERS)
        self.asked: list[str] = []
        aws = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                target = self.headers.get("X-Amz-Target", "")
                action = target.rpartition(".")[2] or parse_qs(body)["Action"][0]
                aws.asked.append(action)
                status, text = aws.answers.get(
                    action, (403, ERROR.format("UnauthorizedOperation", "not in this test"))
                )
                self.send_response(status)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def environment(self) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.server.server_address[1]}",
            "AWS_ACCESS_KEY_ID": "AKIAEXAMPLE",
            "AWS_SECRET_ACCESS_KEY": "example",
            "AWS_DEFAULT_REGION": "eu-central-1",
            # There is no network to fetch a newer one from.
            "KILN_TESTS_ALLOW_PACKER_1_6_IN_AWS": "1",
        }


Run = Callable[..., Done]


@pytest.fixture
def aws() -> Iterator[Aws]:
    stub = Aws()
    yield stub
    stub.server.shutdown()


@pytest.fixture
def refused(run: Run, aws: Aws, tmp_path: Path) -> Callable[..., str]:
    """Run ./invoke, hold it to one message and nothing left; the message."""

    def call(code: int, *arguments: str, **environment: str) -> str:
        done = run(*arguments, **(aws.environment | environment))
        assert done.status == code, done
        assert done.err.count("error: ") == 1, done
        assert [path for path in tmp_path.glob("build/*/*") if path.name != ".lock"] == []
        assert not (tmp_path / "lab").exists()
        assert not {"CreateKeyPair", "RunInstances"} & set(aws.asked)
        return done.err[done.err.index("error: ") :]

    return call


def test_ami_that_ami_kiln_did_not_build_is_refused(refused: Callable[..., str]) -> None:
    assert "kiln:recipe" in refused(2, "verify", "--ami", AMI)


@pytest.mark.parametrize(
    ("action", "answer", "messages"),
    [
        (
            "GetCallerIdentity",
            (403, ERROR.format("ExpiredToken", "The token is expired")),
            ["ExpiredToken", "log in again"],
        ),
        (
            "GetParameter",
            (400, json.dumps({"__type": "ParameterNotFound"})),
            ["source AMI not found", "amzn2-ami-kernel-5.10-hvm-x86_64-gp2", "amis.yaml"],
        ),
        (
            "DescribeImages",
            (400, ERROR.format("InvalidAMIID.NotFound", "it does not exist")),
            [f"source AMI not found for {AL2} in eu-central-1"],
        ),
        (
            "DescribeImages",
            (403, ERROR.format("UnauthorizedOperation", "not you")),
            ["docs/iam-policy.json"],
        ),
        ("", (0, ""), ["Could not connect to the endpoint"]),
    ],
    ids=["expired", "no parameter", "no image", "denied", "down"],
)
def test_aws_that_refuses_is_one_message(
    refused: Callable[..., str],
    aws: Aws,
    action: str,
    answer: tuple[int, str],
    messages: list[str],
) -> None:
    aws.answers[action] = answer
    if not action:
        aws.server.shutdown()
        aws.server.server_close()
    text = refused(1, *BUILD)
    assert [message for message in messages if message not in text] == []


def test_second_build_of_a_row_is_refused(refused: Callable[..., str], tmp_path: Path) -> None:
    folder = tmp_path / "build" / AL2
    folder.mkdir(parents=True)
    with (folder / ".lock").open("w") as lock:
        lock.write("run 20261121T000000Z-abcd, process 4242")
        lock.flush()
        fcntl.flock(lock, fcntl.LOCK_EX)
        message = refused(1, *BUILD)
    assert f"{AL2} is being built already: run 20261121T000000Z-abcd, process 4242" in message


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk takes root")
def test_full_disk_ends_a_build_before_a_launch(
    refused: Callable[..., str], tmp_path: Path
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(disk)], check=True)
    try:
        (disk / AL2).mkdir()
        (disk / AL2 / ".lock").touch()
        with pytest.raises(OSError, match="No space left"):
            (disk / "filler").write_bytes(bytes(65537))
        assert "No space left on device" in refused(1, *BUILD, KILN_BUILD_DIR=str(disk))
        assert [path.name for path in (disk / AL2).iterdir()] == [".lock"]
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_dry_run_in_aws_shows_the_plan(run: Run, aws: Aws, tmp_path: Path) -> None:
    done = run(*BUILD, "--dry-run", "--verify-instance-type", "p4d.24xlarge", **aws.environment)
    assert done.status == 0, done.err
    first, second, third = done.err.splitlines()[:3]
    assert first == "target: AWS, region eu-central-1 (AWS credentials found: env)"
    assert third.startswith("account: ")
    assert second == f"will launch: g4dn.xlarge and p4d.24xlarge in eu-central-1 for {AL2}"
    assert "packer/al2-classic-base-x86_64\n" in done.out
    assert f"{AMI} amzn2" in done.out
    assert "bake nvidia-driver:" in done.out
    assert set(aws.asked) == {"GetCallerIdentity", "GetParameter", "DescribeImages"}
    assert not (tmp_path / "build").exists()


def test_verify_says_what_it_will_launch(run: Run, aws: Aws) -> None:
    status, image = aws.answers["DescribeImages"]
    tags = f"<tagSet><item><key>kiln:recipe</key><value>{AL2}</value></item></tagSet></item>"
    aws.answers["DescribeImages"] = (status, image.replace("</item>", tags))
    done = run("verify", "--ami", AMI, "--instance-type", "g5.xlarge", **aws.environment)
    assert done.status == 1  # this AWS answers no more
    assert f"will launch: g5.xlarge in eu-central-1 for {AMI}" in done.err.splitlines()


def test_dry_run_in_the_lab_starts_no_lab(run: Run, tmp_path: Path) -> None:
    done = run(*BUILD, "--dry-run", "--json")
    assert done.status == 0, done.err
    assert done.err.startswith("target: lab on this machine (no AWS credentials found)")
    (plan,) = json.loads(done.out)
    assert plan["target"] == "lab"
    assert plan["steps"][0] == f"launch g4dn.xlarge from {plan['source_ami']['ami_id']}"
    assert not (tmp_path / "build").exists()
    assert not (tmp_path / "lab").exists()
