"""`./invoke` as a person meets it on a bad day: one message, the right exit code, nothing left.

AWS is a stub on 127.0.0.1 that answers what the test wants and keeps what it was asked. No lab.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs

import pytest

from kiln.base.paths import ROOT
from tests.unit import commands

AL2 = "al2-510.47.03-cuda11.6-base-x86_64"
BUILD = ("build", "--distro", "al2", "--driver", "510.47.03")
ERROR = "<Response><Errors><Error><Code>{}</Code><Message>{}</Message></Error></Errors></Response>"
ANSWERS = {
    "GetCallerIdentity": (
        200,
        '<GetCallerIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">'
        "<GetCallerIdentityResult><Account>123456789012</Account><Arn>arn:aws:iam::1:user/u</Arn>"
        "<UserId>u</UserId></GetCallerIdentityResult></GetCallerIdentityResponse>",
    ),
    "GetParameter": (200, json.dumps({"Parameter": {"Value": "ami-0123456789abcdef0"}})),
    "DescribeImages": (
        200,
        '<DescribeImagesResponse xmlns="http://ec2.amazonaws.com/doc/2016-11-15/"><imagesSet><item>'
        "<imageId>ami-0123456789abcdef0</imageId><imageState>available</imageState>"
        "<name>amzn2</name>"
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
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

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


Run = Callable[..., "subprocess.CompletedProcess[str]"]
Refused = Callable[..., str]


@pytest.fixture
def aws() -> Iterator[Aws]:
    stub = Aws()
    yield stub
    stub.server.shutdown()


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """./invoke with a build folder and a lab of its own, and no AWS but what a test gives."""

    def call(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        clean = {
            **os.environ,
            "AWS_EC2_METADATA_DISABLED": "true",
            "HOME": str(tmp_path),
            "KILN_BUILD_DIR": str(tmp_path / "build"),
            "KILN_LAB_STATE": str(tmp_path / "lab"),
            "KILN_LAB_INDEX": "50",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        return commands.invoke(*arguments, env=clean | environment)

    return call


@pytest.fixture
def refused(run: Run, tmp_path: Path) -> Refused:
    """Run ./invoke, hold it to one message, no traceback and nothing left; the message."""

    def call(code: int, *arguments: str, **environment: str) -> str:
        done = run(*arguments, **environment)
        output = done.stdout + done.stderr
        assert done.returncode == code, output
        assert "Traceback" not in output
        assert done.stderr.count("error: ") == 1, done.stderr
        assert "\x1b" not in output
        left = [path for path in tmp_path.glob("build/*/*") if path.name != ".lock"]
        assert left == []
        assert not (tmp_path / "lab").exists()
        return done.stderr[done.stderr.index("error: ") :]

    return call


def test_an_ami_to_verify_that_ami_kiln_did_not_build(refused: Refused, aws: Aws) -> None:
    message = refused(2, "verify", "--ami", "ami-0123456789abcdef0", **aws.environment)
    assert "kiln:recipe" in message


def test_no_packer_and_no_leave_to_install_it(refused: Refused, aws: Aws, tmp_path: Path) -> None:
    for name in ("bash", "env", "dirname", "cmp", "git", "ssh"):
        (tmp_path / "bin").mkdir(exist_ok=True)
        (tmp_path / "bin" / name).symlink_to(str(shutil.which(name)))
    path = {"PATH": str(tmp_path / "bin"), "HOME": str(tmp_path)}
    message = refused(1, *BUILD, "--no-install", **aws.environment, **path)
    assert "packer: builds the AMI" in message
    assert "run: sudo sh -c 'apt-get update && apt-get install" in message


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
)
def test_an_aws_that_refuses(
    refused: Refused, aws: Aws, action: str, answer: tuple[int, str], messages: list[str]
) -> None:
    aws.answers[action] = answer
    if not action:
        aws.server.shutdown()
        aws.server.server_close()
    text = refused(1, *BUILD, **aws.environment)
    assert [message for message in messages if message not in text] == []
    assert "RunInstances" not in aws.asked


def test_a_second_build_of_the_same_ami_at_once(refused: Refused, aws: Aws, tmp_path: Path) -> None:
    folder = tmp_path / "build" / AL2
    folder.mkdir(parents=True)
    with (folder / ".lock").open("w") as lock:
        lock.write("run 20261121T000000Z-abcd, process 4242")
        lock.flush()
        fcntl.flock(lock, fcntl.LOCK_EX)
        message = refused(1, *BUILD, **aws.environment)
    assert f"{AL2} is being built already: run 20261121T000000Z-abcd, process 4242" in message


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk takes root")
def test_a_disk_without_room_for_the_builds_records(
    refused: Refused, aws: Aws, tmp_path: Path
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(disk)], check=True)
    (disk / AL2).mkdir()
    (disk / AL2 / ".lock").touch()
    with pytest.raises(OSError, match="No space left"):
        (disk / "filler").write_bytes(bytes(65537))
    try:
        message = refused(1, *BUILD, **aws.environment, KILN_BUILD_DIR=str(disk))
        assert "No space left on device" in message
        assert [path.name for path in (disk / AL2).iterdir()] == [".lock"]
    finally:
        subprocess.run(["umount", str(disk)], check=True)
    assert not {"CreateKeyPair", "RunInstances"} & set(aws.asked)


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user takes root")
def test_the_lab_without_root_says_what_still_works() -> None:
    done = subprocess.run(
        [str(ROOT / ".venv/bin/python"), "-c",
         # All is imported as root: root's own Python may lie where nobody else can read.
         "import os\n"
         "from lab.daemon import host\n"
         "os.seteuid(65534)\n"
         "host.can_run()"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "it needs root" in done.stderr
    assert "list, check, render, validate, and building in AWS" in done.stderr


# What a person sees when nothing is wrong.


def test_a_dry_run_in_aws_shows_the_plan_and_only_looks(run: Run, aws: Aws, tmp_path: Path) -> None:
    done = run(*BUILD, "--dry-run", "--verify-instance-type", "p4d.24xlarge", **aws.environment)
    assert done.returncode == 0, done.stderr
    first, second = done.stderr.splitlines()[:2]
    assert first == "target: AWS, region eu-central-1 (AWS credentials found: env)"
    assert second == f"will launch: g4dn.xlarge and p4d.24xlarge in eu-central-1 for {AL2}"
    assert "packer/al2-classic-base-x86_64\n" in done.stdout
    assert "ami-0123456789abcdef0 amzn2" in done.stdout
    assert "bake nvidia-driver:" in done.stdout
    assert set(aws.asked) == {"GetCallerIdentity", "GetParameter", "DescribeImages"}
    assert not (tmp_path / "build").exists()


def test_verify_says_what_it_launches_before_anything_is(run: Run, aws: Aws) -> None:
    status, image = aws.answers["DescribeImages"]
    tags = f"<tagSet><item><key>kiln:recipe</key><value>{AL2}</value></item></tagSet></item>"
    aws.answers["DescribeImages"] = (status, image.replace("</item>", tags))
    done = run(
        *("verify", "--ami", "ami-0123456789abcdef0", "--instance-type", "g5.xlarge"),
        **aws.environment,
    )
    assert done.returncode == 1  # this AWS answers no more
    lines = done.stderr.splitlines()
    assert "will launch: g5.xlarge in eu-central-1 for ami-0123456789abcdef0" in lines
    assert "Traceback" not in done.stderr


def test_a_dry_run_in_the_lab_starts_no_lab(run: Run, tmp_path: Path) -> None:
    done = run(*BUILD, "--dry-run", "--json")
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[0] == (
        "target: lab on this machine (no AWS credentials found); nothing is created in AWS"
    )
    (plan,) = json.loads(done.stdout)
    assert plan["target"] == "lab"
    assert plan["source_ami"]["ami_id"].startswith("ami-")
    assert plan["steps"][0] == f"launch g4dn.xlarge from {plan['source_ami']['ami_id']}"
    assert not (tmp_path / "build").exists()
    assert not (tmp_path / "lab").exists()


def test_the_front_door_loads_nothing_heavy() -> None:
    heavy = {"boto3", "botocore", "moto", "jinja2", "rich", "hcl2", "pytest"}
    done = subprocess.run(
        [str(ROOT / ".venv/bin/python"), "-c",
         "import sys, kiln.cli.main, tasks; print(*sys.modules)"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert heavy & set(done.stdout.split()) == set()
