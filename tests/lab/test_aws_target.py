"""With AWS credentials the same command builds in AWS: here AWS's host names lead to the lab.

Nothing tells the pipeline so: it signs in, looks the parent AMI up, opens its own address, runs
Packer and checks the AMI as in an account. Only vendors' keys and hashes are the lab's, since its
packages are.

The build is a company's: its own tags, a private subnet that a filter finds, a key, a profile, a
proxy, mirrors, an instance type that EC2 does not have. The AMI is then verified as by somebody
without such settings.
"""

from __future__ import annotations

import functools
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aws_front
import company
import fleet_guests
import pytest
import yaml
from conftest import (
    AL2,
    inventory,
    launching,
    plain_client,
    users_environment,
)

from devel.testbed import bare_checkout
from kiln import components
from kiln.base.progress import Progress
from kiln.cli.acceptance_steps import usual_row
from kiln.matrix import load
from kiln.preflight.ask import demand
from lab.api import session_token
from lab.base import settings
from lab.base.settings import Lab
from lab.daemon import control
from lab.target import LabTarget
from lab.vendors import mirror

Kiln = Callable[..., subprocess.CompletedProcess[str]]
TAGS = {"team": "ml platform", "cost-center": "4711", "project": "llm"}
MIRRORED = {"cuda": "developer.download.nvidia.com", "driver": "us.download.nvidia.com"}


@dataclass(frozen=True)
class Built:
    """A finished build, what it left in EC2, its calls, and what went through the proxy."""

    done: subprocess.CompletedProcess[str]
    left: dict[str, set[str]]
    calls: aws_front.Calls
    by_proxy: set[str]
    by_itself: set[str]

    def called(self, action: str) -> list[dict[str, str]]:
        """The parameters of each call of an action."""
        return [call for call in self.calls if call.get("Action") == action]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of this checkout, whose lock file is written to. All is baked, but little is checked:
    what the checks find is test_build.py's."""
    keep = ("nvidia-repo", "efa", "aws-hw-monitor", "cloudwatch-agent")
    baked = {component.name for component in components.everything()}
    copy = bare_checkout(
        tmp_path_factory.mktemp("aws"), *keep, baked=baked, checked=["nvidia-driver", "hygiene"]
    )
    lock = copy / "amis.lock.yaml"
    # The vendors' real hashes are not those of the lab's packages.
    known = yaml.safe_load(lock.read_text())
    known["artifacts"] = [{**artifact, "sha256": None} for artifact in known["artifacts"]]
    lock.write_text(yaml.safe_dump(known, sort_keys=False))
    return copy


@pytest.fixture(scope="module")
def calls() -> aws_front.Calls:
    """What AWS was asked for, by anybody."""
    return []


@pytest.fixture(scope="module")
def account(
    lab: Lab, calls: aws_front.Calls, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, str]]:
    """The environment of a user with credentials, on a machine that reaches AWS."""
    (recipe,) = (item for item in load.load_recipes() if item.name == AL2)
    target = LabTarget("a test", endpoint=settings.current().endpoint)
    with target.hooks.prepared("a test", [recipe], Progress()):
        home = tmp_path_factory.mktemp("home")
    with aws_front.serve(lab, calls) as way:
        yield (
            users_environment(home)
            | way
            | {
                "KILN_TESTS_ALLOW_PACKER_1_6_IN_AWS": "1",
                # Nothing else says that it is a lab: AWS_ENDPOINT_URL is not set.
                "AWS_ACCESS_KEY_ID": session_token.KEY_ID,
                "AWS_SECRET_ACCESS_KEY": session_token.SECRET_KEY,
                "AWS_SESSION_TOKEN": session_token.require(lab),
                "PKR_VAR_signing_keys": json.dumps(mirror.key_fingerprints()),
                "PKR_VAR_poll_seconds": "1",
                "PKR_VAR_reboot_pause": "1s",
            }
        )


@pytest.fixture(scope="module")
def subnet(ec2: Any, client: Any, lab: Lab) -> str:
    """The account's private subnet, in the network that this machine is in; its profile and key."""
    vpc = ec2.create_vpc(CidrBlock=lab.network)["Vpc"]["VpcId"]
    made = str(ec2.create_subnet(VpcId=vpc, CidrBlock=lab.network)["Subnet"]["SubnetId"])
    ec2.create_tags(Resources=[made], Tags=[{"Key": "Class", "Value": "build"}])
    client("iam").create_instance_profile(InstanceProfileName="kiln-builder")
    key = client("kms").create_key()["KeyMetadata"]["KeyId"]
    client("kms").create_alias(AliasName="alias/ami", TargetKeyId=key)
    return made


@pytest.fixture(scope="module")
def built(
    checkout: Path, account: dict[str, str], calls: aws_front.Calls, ec2: Any, subnet: str, lab: Lab
) -> Built:
    """A company's build: settings from both places of the matrix, the environment and flags."""
    assert subnet
    with company.serve(lab, MIRRORED) as behind:
        _set_up(checkout, behind.proxy)
        before, log = inventory(ec2), lab.shared / mirror.LOG
        start = log.stat().st_size if log.exists() else 0
        control.order_fault(
            lab,
            action="RunInstances",
            code="InsufficientInstanceCapacity",
            match={"InstanceType": "g5.xlarge"},
            times=50,
        )
        command = [checkout / "invoke", "build", "--distro", "al2", "--driver", "510.47.03"]
        command += ["--iam-instance-profile", "kiln-builder", "--json"]
        done = subprocess.run(
            command, cwd=checkout, env={**account, "KILN_AWS_KMS_KEY_ID": "alias/ami"},
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600, check=False,
        )  # fmt: skip
        control.call(lab, "faults/clear")
        assert done.returncode == 0, failures(done) + done.stderr
        with log.open() as lines:
            lines.seek(start)
            asked = [line.split() for line in lines]
    after = inventory(ec2)
    return Built(
        done,
        {kind: after[kind] - before[kind] for kind in after},
        list(calls),
        behind.hosts,
        {
            words[3]
            for words in asked
            if words[1].startswith(f"{lab.prefix}.") and words[1] != lab.gateway
        },
    )


def _set_up(checkout: Path, proxy: str) -> None:
    path = checkout / "amis.yaml"
    matrix = yaml.safe_load(path.read_text())
    at = f"https://{company.MIRROR}"
    matrix["defaults"]["aws"] = {
        "tags": {"team": "ml platform", "cost-center": "0"},
        "subnet_filter": {"filters": {"tag:Class": "build"}},
        "proxy": proxy,
        "mirrors": {f"https://{host}": f"{at}/{path}" for path, host in MIRRORED.items()},
    }
    matrix["amis"][0]["aws"] = {
        "tags": {"cost-center": "4711", "project": "llm"},
        "instance_types": {"x86_64": ["g5.xlarge", "g4dn.xlarge"]},
    }
    path.write_text(yaml.safe_dump(matrix, sort_keys=False))


def failures(done: subprocess.CompletedProcess[str]) -> str:
    """The failed checks and their messages."""
    results = json.loads(done.stdout or "[]")
    if isinstance(results, dict):  # an error
        return ""
    checks = [check for result in results for check in result["checks"]["checks"]]
    return "".join(f"{check}\n" for check in checks if check["outcome"] == "failed")


def record(built: Built) -> dict[str, Any]:
    (only,) = json.loads(built.done.stdout)
    return dict(only)


def test_launch_and_its_settings_are_named_first(built: Built, checkout: Path) -> None:
    output = built.done.stderr.splitlines()
    end = output.index("account: 123456789012")
    lines = (checkout / "amis.yaml").read_text().splitlines()

    def at(text: str, column: int) -> str:
        (number,) = (number for number, line in enumerate(lines, 1) if line.strip() == text)
        return f"(amis.yaml:{number}:{column})"

    assert output[0] == "target: AWS, region us-east-1 (AWS credentials found: env)"
    assert output[end - 1] == f"will launch: g5.xlarge or g4dn.xlarge and g4dn.xlarge in us-east-1 for {AL2}"  # fmt: skip  # noqa: E501
    settings_ = output[1 : end - 1]
    assert "aws: iam_instance_profile kiln-builder (--iam-instance-profile)" in settings_
    assert "aws: kms_key_id alias/ami (KILN_AWS_KMS_KEY_ID)" in settings_
    team, cost = at("team: ml platform", 13), at("cost-center: '4711'", 20)
    tags = f"team=ml platform {team}, cost-center=4711 {cost}, project=llm"
    assert f"aws: tags {tags} {at('project: llm', 16)}" in settings_
    assert len(settings_) == 7


def test_record_and_report_have_each_launch(built: Built) -> None:
    full, *launched = record(built)["tries"]
    assert (full["stage"], full["instance_type"], full["market"]) == ("bake", "g5.xlarge", "on-demand")  # fmt: skip  # noqa: E501
    assert "InsufficientInstanceCapacity" in full["answer"]
    answers = [(launch["stage"], launch["instance_type"], launch["answer"]) for launch in launched]
    assert answers == [
        ("bake", "g4dn.xlarge", ""),
        ("verify", "g4dn.xlarge", ""),
    ]
    assert len({launch["subnet_id"] for launch in (full, *launched)}) == 1
    report = (Path(record(built)["folder"]) / "report.html").read_text()
    assert "bake: g5.xlarge in subnet-" in report


def test_the_ami_is_verified_and_all_that_is_left(built: Built) -> None:
    done = record(built)
    assert (done["target"], done["status"]) == ("aws", "verified")
    left = {kind: result for kind, result in built.left.items() if result}
    assert left.pop("amis") == {done["ami_id"]}
    assert set(left) <= {"snapshots"}


def test_everything_that_was_made_carries_the_companys_tags(built: Built, ec2: Any) -> None:
    kinds = []
    for call in built.calls:
        for name, kind in call.items():
            if match := re.fullmatch(r"(TagSpecification\.\d+)\.ResourceType", name):
                assert _tags(call, match[1]).items() >= TAGS.items(), (call["Action"], kind)
                kinds.append((call["Action"], kind))
    assert set(kinds) >= {
        ("CreateKeyPair", "key-pair"),
        ("CreateSecurityGroup", "security-group"),
        ("RunInstances", "instance"),
        ("RunInstances", "volume"),
    }
    (image,) = ec2.describe_images(ImageIds=[record(built)["ami_id"]])["Images"]
    (disk,) = image["BlockDeviceMappings"]
    (snapshot,) = ec2.describe_snapshots(SnapshotIds=[disk["Ebs"]["SnapshotId"]])["Snapshots"]
    for resource in (image, snapshot):
        tags = {tag["Key"]: tag["Value"] for tag in resource["Tags"]}
        assert tags.items() >= {**TAGS, "kiln:run-id": record(built)["run_id"]}.items()


def _tags(call: dict[str, str], prefix: str) -> dict[str, str]:
    keys_ = [name for name in call if re.fullmatch(rf"{re.escape(prefix)}\.Tag\.\d+\.Key", name)]
    return {call[name]: call[name.removesuffix("Key") + "Value"] for name in keys_}


def test_instances_are_in_the_private_subnet(built: Built, subnet: str, lab: Lab) -> None:
    launches = built.called("RunInstances")
    assert {call["SubnetId"] for call in launches} == {subnet}
    (rule,) = built.called("AuthorizeSecurityGroupIngress")
    assert rule["IpPermissions.1.IpRanges.1.CidrIp"] == f"{lab.gateway}/32"
    assert {} not in built.calls, "the public address was asked for"


def test_key_and_profile_are_those_of_the_settings(built: Built) -> None:
    bake, check = built.called("RunInstances")[-2:]
    assert bake["BlockDeviceMapping.1.Ebs.KmsKeyId"] == "alias/ami"
    for call in (bake, check):
        assert call["IamInstanceProfile.Name"] == "kiln-builder"


def test_bake_reaches_vendors_by_proxy_or_mirror(
    built: Built,
) -> None:
    assert built.by_itself == set()
    assert company.MIRROR in built.by_proxy
    assert "efa-installer.amazonaws.com" in built.by_proxy
    assert built.by_proxy.isdisjoint(MIRRORED.values())
    urls = {item["url"].split("/")[2] for item in record(built)["versions"]["downloads"]}
    assert urls >= set(MIRRORED.values())
    assert company.MIRROR not in urls


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
    token = account["AWS_SESSION_TOKEN"].encode()
    assert not any(token in text for text in [*texts, built.done.stderr.encode()])


@pytest.fixture(scope="module")
def plain(built: Built, checkout: Path, account: dict[str, str]) -> Kiln:
    """Somebody without settings, in the same account."""
    assert built
    path = checkout / "plain.yaml"
    matrix = yaml.safe_load((checkout / "amis.yaml").read_text())
    for block in (matrix["defaults"], matrix["amis"][0]):
        del block["aws"]
    path.write_text(yaml.safe_dump(matrix, sort_keys=False))
    environment = {**account, "KILN_MATRIX": str(path)}

    def run(*arguments: str, program: Sequence[str] = ("./invoke",), **more: str) -> Any:
        return subprocess.run(
            [*program, *arguments], cwd=checkout, env=environment | more,
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=900, check=False,
        )  # fmt: skip

    return run


@pytest.fixture(scope="module")
def impatient(plain: Kiln) -> Kiln:
    """The same, with shorter waits than one should have in AWS."""
    return functools.partial(plain, program=(sys.executable, "-c", IMPATIENT))


# ./invoke that does not wait as long as one should in AWS.
IMPATIENT = """
import sys
from kiln.cli.main import main
from kiln.cloud.target import Target
from tasks import ns
Target.wait_seconds = 0.5
main(ns)
"""


def acceptance(
    run: Kiln, checkout: Path, status: int, *flags: str, **more: str
) -> dict[str, tuple[str, str]]:
    """The outcome and detail of each step of a walk."""
    place = ("--target", "aws", "--region", "us-east-1", "--second-region", "us-west-2")
    done = run("acceptance", *place, *flags, "--json", **more)
    assert done.returncode == status, done.stdout + done.stderr
    (file,) = (checkout / "evidence").glob("*-us-east-1.json")
    text = file.read_text()
    assert not re.search("ami-[0-9a-f]{8}|123456789012", text), text
    steps = json.loads(text)["steps"]
    assert [step["id"] for step in steps] == [
        step["id"] for step in json.loads(done.stdout)["steps"]
    ]
    return {step["id"]: (step["outcome"], step["detail"]) for step in steps}


@pytest.mark.all
def test_acceptance_walks_through_the_account(
    built: Built, impatient: Kiln, checkout: Path, calls: aws_front.Calls, ec2: Any, lab: Lab
) -> None:
    """As Spot instances, reached by the public address of this machine."""
    there, ami = plain_client(lab, "ec2", "us-west-2"), record(built)["ami_id"]
    before, asked = [inventory(ec2), inventory(there)], len(calls)
    steps = acceptance(impatient, checkout, 0, "--name", AL2, "--ami", ami, KILN_AWS_SPOT="true")
    assert all(outcome != "failed" for outcome, _ in steps.values())
    # Nobody has said that these ran.
    skipped = {step: detail for step, (outcome, detail) in steps.items() if outcome == "skipped"}
    assert set(skipped) == {
        *("preflight", "stack", "report", "fleet", "session", "mig", "delete-stack")
    }
    assert "DescribeStacks is not implemented" in skipped["stack"]
    assert [inventory(ec2), inventory(there)] == before
    made = calls[asked:]
    spot = [call for call in made if call.get("InstanceMarketOptions.MarketType") == "spot"]
    assert [call for call in spot if call["Action"] == "RunInstances"], made
    assert not any("SubnetId" in call for call in spot)
    assert {} in made, "the public address was not asked for"
    assert not any("team" in text for call in spot for text in call.values())


@pytest.fixture(scope="module")
def profile(client: Any) -> Iterator[str]:
    """An instance profile that reports and may be managed."""
    with fleet_guests.role(client, fleet_guests.MANAGED, fleet_guests.REPORTS) as name:
        yield name


# Where `acceptance` finds AWS's image with a driver, which the lab has not.
WITH_DRIVER = "/tests/with-driver"
REPORTING = f"""
from kiln.cli import acceptance_steps
acceptance_steps._PLAIN = "{WITH_DRIVER}"
{IMPATIENT}"""


def reporting_matrix(checkout: Path) -> Path:
    """The rows with a quick agent; `preflight` trusts the keys of the lab's mirror."""
    path, keys = checkout / "reporting.yaml", checkout / "kiln/facts/knowledge/keys.yaml"
    matrix = yaml.safe_load((checkout / "plain.yaml").read_text())
    matrix["defaults"]["telemetry"] = {"flush_interval": 2, "interval": 10, "log_group": "/theirs"}
    path.write_text(yaml.safe_dump(matrix, sort_keys=False))
    known = yaml.safe_load(keys.read_text())
    for name, fingerprint in mirror.key_fingerprints().items():
        known["keys"][name]["fingerprint"] = fingerprint
    keys.write_text(yaml.safe_dump(known, sort_keys=False))
    target = LabTarget("a test", endpoint=settings.current().endpoint)
    with target.hooks.prepared("a test", [usual_row()], Progress()):
        # The mirror makes a repository when it is asked for it, which takes longer than one waits.
        for repository in demand(usual_row()).repositories:
            mirror.find(f"{repository.url}/repodata/repomd.xml")
    return path


def make_image_with_driver(ec2: Any, ssm: Any, key: tuple[str, Path]) -> None:
    """Make an AMI with a driver's programs and no agent, and its parameter."""
    usual = "/aws/service/ami-amazon-linux-latest/al2023-ami-kernel-default-x86_64"
    with launching(ec2, key, ssm.get_parameter(Name=usual)["Parameter"]["Value"]) as launch:
        guest = launch()
        fleet_guests.lay(guest)
        image = ec2.create_image(InstanceId=guest.id, Name="with-driver")["ImageId"]
        ec2.get_waiter("image_available").wait(ImageIds=[image], WaiterConfig={"Delay": 1})
    ssm.put_parameter(Name=WITH_DRIVER, Value=image, Type="String")


@pytest.mark.all
def test_acceptance_builds_and_reports(
    plain: Kiln, checkout: Path, profile: str, ec2: Any, client: Any, key: Any, lab: Lab
) -> None:
    there, ssm = plain_client(lab, "ec2", "us-west-2"), client("ssm")
    more = {"KILN_MATRIX": str(reporting_matrix(checkout))}
    make_image_with_driver(ec2, ssm, key)

    def left() -> list[Any]:
        documents = ssm.list_documents(Filters=[{"Key": "Owner", "Values": ["Self"]}])
        templates = ec2.describe_launch_templates()["LaunchTemplates"]
        buckets = [bucket["Name"] for bucket in client("s3").list_buckets()["Buckets"]]
        held = [inventory(ec2), inventory(there), templates]
        return [*held, documents["DocumentIdentifiers"], buckets]

    before = left()
    run = functools.partial(plain, program=(sys.executable, "-c", REPORTING))
    steps = acceptance(run, checkout, 0, KILN_AWS_IAM_INSTANCE_PROFILE=profile, **more)
    skipped = {step for step, (outcome, _) in steps.items() if outcome == "skipped"}
    assert skipped == {"stack", "session", "mig", "delete-stack"}, steps
    assert steps["report"][1] == "a test event in /theirs, a GPU metric in CWAgent"
    assert left() == before


# As in https://github.com/aws/karpenter-provider-aws/issues/7370
DENIED = (
    "You are not authorized to perform this operation. User: arn:aws:sts::123456789012:"
    "assumed-role/build/1 is not authorized to perform: ec2:RunInstances on resource: arn:aws:ec2:"
    "us-east-1:123456789012:instance/* with an explicit deny in a service control policy. Encoded "
    "authorization failure message: g4oZPBqZ4Bni8dE5dGjxYTnOZ"
)


def test_denied_launch_says_how_to_read_why(lab: Lab, kiln: Kiln, ec2: Any) -> None:
    before, code = inventory(ec2), "UnauthorizedOperation"
    control.order_fault(lab, action="RunInstances", code=code, message=DENIED, times=9)
    done = kiln("build", "--distro", "al2", "--driver", "510.47.03", "--target", "lab")
    assert done.returncode == 1
    assert done.stderr.count("error: ") == 1
    assert "aws sts decode-authorization-message --encoded-message g4oZPBqZ4Bni8dE5dGjxYTnOZ\n" in done.stderr  # fmt: skip  # noqa: E501
    assert inventory(ec2) == before
