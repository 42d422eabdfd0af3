"""Bad inputs through the command line: exit status, words, no traceback, no control character."""

from __future__ import annotations

import json
import os
import re
import shlex
from pathlib import Path

import pytest

from kiln.base.paths import ROOT
from tests.unit.commands import invoke
from tests.unit.records import a_record

LOCK = """\
artifacts:
- url: https://vendor.example/a.rpm
  version: 1.2.3
  sha256: 1111111111111111111111111111111111111111111111111111111111aaaaaa
packages:
- repository: archive of al2
  signed_by: the distribution's own keys
  packages: [gcc]
"""
AL2 = "--distro al2 --driver 510.47.03"
LAB = f"build {AL2} --target lab --dry-run"
A_NAME = "is not a recipe's name"

# Variables of the environment, the command, and words of the answer.
COMMANDS = [
    ("", "nosuch", "unknown task nosuch"),
    ("", "'\x1b[31mtask'", "unknown task \\x1b[31mtask"),
    ("", "build --distro", "--distro needs a value"),
    ("", "build --distro '' --dry-run", "--distro is empty"),
    ("", "build --distro al3 --dry-run", "no row of the matrix has --distro al3"),
    ("", "build --driver 999 --dry-run", "no row of the matrix has --driver 999"),
    ("", "build --name '\x1b[31m' --dry-run", "has --name \\u001b[31m"),
    ("", f"build {AL2} --target aws --dry-run", "boto3 finds no AWS credentials"),
    ("", f"build {AL2} --target moon --dry-run", "--target moon is not known"),
    ("", f"{LAB} --instance-type 'g4dn.xlarge;id'", "is not an instance type such as g4dn.xlarge"),
    ("", f"{LAB} --region '*'", "--region * is not a region such as eu-central-1"),
    ("", f"{LAB} --subnet-id '*'", "--subnet-id: '*' is not a subnet's id such as"),
    ("", f"build {AL2} --dry-run --verify-instance-type g5g.xlarge", "g5g.xlarge is arm64"),
    ("", f"build {AL2} --dry-run --instance-types g5g.xlarge", "g5g.xlarge is arm64"),
    (
        "",
        f"build {AL2} --dry-run --subnet-id subnet-01234567 --subnet-filter tag:a=b",
        "--subnet-id and --subnet-filter both name the subnet",
    ),
    ("", "catalogue --port 70000", "--port 70000 is not a port"),
    ("", "check --distro al3 --driver 510.47.03", "al3 is not a known distribution"),
    ("", f"check {AL2} --arch mips", "arch mips does not exist"),
    ("", f"check {AL2} --cuda x", "--cuda x is not a version such as 13.0.2"),
    ("", "verify", "verify needs one of --ami, --instance, --host"),
    ("", "verify --ami '*'", "--ami * is not an AMI's id such as"),
    ("", "verify --ami ami-0123456789abcdef0 -k xid_evnt", "did you mean 'xid_event'?"),
    ("", "which", "which needs a question"),
    ("", "which --instance-type g4dn", "g4dn is not a GPU instance type that AMI Kiln knows"),
    ("", "xid.explain x", "'x' is not an Xid; write 79, xid79 or sxid 12028"),
    ("", "xid.parse nothing", "nothing: No such file or directory"),
    ("", "lock --from nothing", "nothing"),
    ("", "sbom nothing", "nothing: no record of such a build in"),
    (
        "AWS_PROFILE=nothing",
        f"build {AL2} --dry-run",
        "The config profile (nothing) could not be found",
    ),
    ("AWS_REGION=x;id", f"build {AL2} --dry-run", "AWS_REGION x;id is not a region such as"),
    (
        "AWS_DEFAULT_REGION=\x1b[31m",
        f"build {AL2} --dry-run",
        "AWS_DEFAULT_REGION '\\x1b[31m' is not a",
    ),
    ("KILN_LAB_INDEX=../1", LAB, "KILN_LAB_INDEX=../1 is not a valid lab index"),
    ("KILN_LAB_PORT=99999", LAB, "KILN_LAB_PORT=99999 is not a port"),
    ("KILN_MATRIX=/dev/null/x", "list", "cannot be read"),
    ("KILN_MATRIX=/nothing.yaml", "list", "/nothing.yaml: no such file"),
    ("KILN_AWS_SPOT=maybe", LAB, "KILN_AWS_SPOT: 'maybe'"),
]
# What is replaced in LOCK, and words of the answer.
LOCKS = [
    ((LOCK, ""), "amis.lock.yaml:1:1: artifacts is missing"),
    ((LOCK, "- x\n"), "amis.lock.yaml:1:1: "),
    ((LOCK, "<<<<<<< HEAD\na: 1\n"), "amis.lock.yaml:2:2: not valid YAML"),
    ((LOCK, "artifacts: []\npackages: b\n"), "amis.lock.yaml:2:11: packages: must be a list"),
    ((LOCK, "{"), "amis.lock.yaml:2:1: not valid YAML"),
    (
        ("packages:\n-", "artifacts: []\npackages:\n-"),
        "5:1: not valid YAML: 'artifacts' is a duplicate",
    ),
    (("- url: https://vendor.example/a.rpm\n ", "-"), "amis.lock.yaml:2:3: artifacts.0.url is mi"),
    (("1111", "AAAA"), "is not a sha256 (64 hexadecimal digits)"),
    (("  version: 1.2.3\n", ""), "amis.lock.yaml:2:3: artifacts.0: an artifact needs"),
    (("packages: [gcc]", "packages: [5]"), "amis.lock.yaml:8:14: packages.0.packages.0: "),
    (("  version", "  color: red\n  version"), "artifacts.0.color: there is no such key"),
    (("packages:\n-", f"{LOCK[11 : LOCK.index('pack')]}packages:\n-"), "is listed twice"),
]
# What a record says, and words of the answer.
RECORDS = [
    ({"schema": 99}, "a record of schema 99; this checkout reads 2"),
    ({"run_id": "../../x"}, "`run_id` ../../x is not a run id"),
    ({"region": "*"}, "`region` * is not a region"),
    ({"git_commit": "--help"}, "`git_commit` --help is not a git commit"),
    ({"ami_id": "ami-*"}, "`ami_id` ami-* is not an AMI's id"),
    ({"status": "good"}, "`status`"),
    ({"recipe": None}, "`recipe`"),
    ({"recipe": {"name": "../../x"}}, A_NAME),
    ({"recipe": {"name": "al2\x1b[31m"}}, A_NAME),
    ({"versions": "x"}, "`versions`"),
]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A bare one: no AWS configuration, no lab."""
    return {
        "PATH": os.environ.get("PATH", ""),
        "HOME": str(tmp_path),
        "TERM": "dumb",
        "AWS_EC2_METADATA_DISABLED": "true",
        "KILN_BUILD_DIR": str(tmp_path / "build"),
        "KILN_PACKER_DIR": str(tmp_path / "packer"),
        "KILN_LAB_STATE": str(tmp_path / "lab"),
    }


def answer(command: str, environment: dict[str, str]) -> str:
    """The output of a command that ends with exit status 2."""
    done = invoke(*shlex.split(command), env=environment)
    output = done.stdout + done.stderr
    assert done.returncode == 2, output
    assert "Traceback" not in output
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f]", output)
    return output


@pytest.mark.parametrize(("variable", "command", "words"), COMMANDS)
def test_bad_command(variable: str, command: str, words: str, environment: dict[str, str]) -> None:
    name, _, value = variable.partition("=")
    assert words in answer(command, environment | ({name: value} if name else {}))


@pytest.mark.parametrize(("edit", "words"), LOCKS)
def test_bad_lock_file(
    edit: tuple[str, str], words: str, environment: dict[str, str], tmp_path: Path
) -> None:
    lock = tmp_path / "amis.lock.yaml"
    assert edit[0] in LOCK
    lock.write_text(LOCK.replace(*edit))
    environment |= {"KILN_LOCK": str(lock), "KILN_MATRIX": str(ROOT / "amis.yaml")}
    assert words in answer("lock", environment)


@pytest.mark.parametrize(("change", "words"), RECORDS)
def test_bad_record(
    change: dict[str, object], words: str, environment: dict[str, str], tmp_path: Path
) -> None:
    record = tmp_path / "record.json"
    record.write_text(json.dumps({**a_record().as_json(), **change}))
    assert words in answer(f"sbom {record}", environment)
