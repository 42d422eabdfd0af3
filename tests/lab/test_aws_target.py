"""With AWS credentials the same command builds in AWS: here AWS's host names lead to the lab.

Nothing tells the pipeline so: it signs in, looks the parent AMI up, opens its own address, runs
Packer and checks the AMI as in an account. Only vendors' keys and hashes are the lab's, since its
packages are.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aws_front
import pytest
import yaml
from conftest import inventory, slim_checkout, users_environment

from kiln.matrix import load
from lab import keys, mirror, settings
from lab.settings import Lab
from lab.target import LabTarget

AL2 = "al2-510.47.03-cuda11.6-base-x86_64"
Built = tuple[subprocess.CompletedProcess[str], dict[str, set[str]]]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of this checkout, whose lock file is written to."""
    copy = slim_checkout(
        tmp_path_factory.mktemp("aws"), "efa", "aws-hw-monitor", "cloudwatch-agent"
    )
    lock = copy / "amis.lock.yaml"
    # The vendors' real hashes are not those of the lab's packages.
    known = yaml.safe_load(lock.read_text())
    known["artifacts"] = [{**artifact, "sha256": None} for artifact in known["artifacts"]]
    lock.write_text(yaml.safe_dump(known, sort_keys=False))
    return copy


@pytest.fixture(scope="module")
def account(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment of a user with credentials, on a machine that reaches AWS."""
    (recipe,) = (item for item in load.load_recipes() if item.name == AL2)
    LabTarget("a test", endpoint=settings.current().endpoint).prepare([recipe], lambda line: None)
    home, own = tmp_path_factory.mktemp("home"), keys.ensure(lab)
    with aws_front.serve(lab) as way:
        yield (
            users_environment(home)
            | way
            | {
                # Nothing else says that it is a lab: AWS_ENDPOINT_URL is not set.
                "AWS_ACCESS_KEY_ID": own.id,
                "AWS_SECRET_ACCESS_KEY": own.secret,
                "PKR_VAR_signing_keys": json.dumps(mirror.key_fingerprints()),
                "PKR_VAR_poll_seconds": "1",
                "PKR_VAR_reboot_pause": "1s",
            }
        )


@pytest.fixture(scope="module")
def built(checkout: Path, account: dict[str, str], ec2: Any) -> Built:
    """A finished build, and the resources in EC2 that it created."""
    before = inventory(ec2)
    command = [checkout / "invoke", "build", "--distro", "al2", "--driver", "510.47.03", "--json"]
    done = subprocess.run(
        command, cwd=checkout, env=account, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, failures(done) + done.stderr
    after = inventory(ec2)
    return done, {kind: after[kind] - before[kind] for kind in after}


def failures(done: subprocess.CompletedProcess[str]) -> str:
    """The failed checks and their messages."""
    checks = [
        check for result in json.loads(done.stdout or "[]") for check in result["checks"]["checks"]
    ]
    return "".join(f"{check}\n" for check in checks if check["outcome"] == "failed")


def record(built: Built) -> dict[str, Any]:
    (only,) = json.loads(built[0].stdout)
    return dict(only)


def test_what_will_be_launched_where_is_said_before_anything_is(built: Built) -> None:
    assert built[0].stderr.splitlines()[:3] == [
        "target: AWS, region us-east-1 (AWS credentials found: env)",
        f"will launch: g4dn.xlarge in us-east-1 for {AL2}",
        "account: 123456789012",
    ]


def test_the_ami_is_verified_and_all_that_is_left(built: Built) -> None:
    done = record(built)
    assert (done["target"], done["status"]) == ("aws", "verified")
    left = {kind: result for kind, result in built[1].items() if result}
    assert left.pop("amis") == {done["ami_id"]}
    assert set(left) <= {"snapshots"}


def test_its_tags_say_aws(built: Built, ec2: Any) -> None:
    (image,) = ec2.describe_images(ImageIds=[record(built)["ami_id"]])["Images"]
    tags = {tag["Key"]: tag["Value"] for tag in image["Tags"]}
    assert tags["kiln:target"] == "aws"
    assert tags["kiln:verified"].startswith("pass ")


def test_the_build_leaves_the_lock_file_alone_and_says_how_to_fill_it(
    built: Built, checkout: Path
) -> None:
    assert f"./invoke lock --from {record(built)['run_id']}" in built[0].stderr
    artifacts = yaml.safe_load((checkout / "amis.lock.yaml").read_text())["artifacts"]
    assert not [one for one in artifacts if one.get("sha256")]


def test_the_hashes_it_met_are_locked_from_its_record(
    built: Built, checkout: Path, account: dict[str, str]
) -> None:
    command = [checkout / "invoke", "lock", "--from", record(built)["run_id"]]
    subprocess.run(command, cwd=checkout, env=account, stdin=subprocess.DEVNULL, check=True)
    locked = yaml.safe_load((checkout / "amis.lock.yaml").read_text())["artifacts"]
    known = {item["url"]: item["sha256"] for item in locked if item.get("sha256")}
    seen = record(built)["versions"]["downloads"]
    files = {
        item["url"]: item["sha256"] for item in seen if not item["url"].endswith((".pub", "gpgkey"))
    }
    assert known.items() <= files.items()
    assert any("NVIDIA-Linux-x86_64-510.47.03.run" in url for url in known)
    assert any("aws-efa-installer-1.34.0" in url for url in known)


def test_no_file_of_the_run_has_a_credential(
    built: Built, checkout: Path, account: dict[str, str]
) -> None:
    folder = Path(record(built)["folder"])
    texts = [path.read_bytes() for path in folder.rglob("*") if path.is_file()]
    assert len(texts) > 3
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        secret = account[name].encode()
        assert not any(secret in text for text in [*texts, built[0].stderr.encode()])
