"""What a team pastes or applies to launch a channel's image, judged by the tools that read it."""

from __future__ import annotations

import email
import json
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import hcl2
import jsonschema
import pytest
import yaml

from devel import packers
from kiln import facts
from kiln.base.paths import runtime_module
from kiln.consume import KINDS, LaunchRequest, launch_request
from kiln.matrix.load import load_recipes
from kiln.packer.program import Packer
from tests.unit import cfn_lint, commands
from tests.unit.consume import consumers
from tests.unit.consume.consumers import (
    AMI,
    BASE,
    ECS,
    EKS,
    EXAMPLES,
    RESERVATION,
    WALK,
    asked,
    made,
    of_every_line,
    of_kinds,
)

pytestmark = pytest.mark.slow

SLICED = "all-1g.5gb"
CHARTS = json.loads((EXAMPLES.parent / "charts.json").read_text())
EKSCTL = json.loads((EXAMPLES.parent / "eksctl.json").read_text())


def test_documents_are_the_committed_examples() -> None:
    """What was meant: python -m tests.unit.consume.consumers, and read the difference."""
    written = dict(consumers.examples())
    assert {path.name for path in EXAMPLES.iterdir()} == set(written)
    for name, text in written.items():
        assert text == (EXAMPLES / name).read_text(encoding="utf-8"), name


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        ("cloudformation", BASE),
        ("ecs", ECS),
        ("eks-managed-nodegroup", EKS),
        ("eks-self-managed", EKS),
        ("batch", ECS),
    ],
)
def test_cfn_lint_takes_the_stack(kind: str, line: str) -> None:
    """With EFA, and slices where the kind has them."""
    wanted = asked(line, label=SLICED) if line != ECS else asked(line)
    assert cfn_lint.mistakes(made(kind, wanted), "us-east-1") == []


@cache
def go_module(module: str) -> Path:
    """The folder of a Go module with a vendor's definitions; skips where it cannot be had."""
    if not shutil.which("go"):
        pytest.skip(f"no go on PATH, which fetches {module}")
    done = subprocess.run(
        ["go", "mod", "download", "-json", module],
        cwd="/", capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    if done.returncode:
        pytest.skip(f"cannot be fetched: {module}")
    return Path(json.loads(done.stdout)["Dir"])


def crds(folder: Path) -> dict[str, Any]:
    """The schemas of a vendor's kinds."""
    found = {}
    for path in folder.glob("*.yaml"):
        crd = yaml.safe_load(path.read_text())["spec"]
        found[crd["names"]["kind"]] = crd["versions"][0]["schema"]["openAPIV3Schema"]
    return found


def unknown(data: Any, schema: dict[str, Any], whole: dict[str, Any], at: str = "") -> list[str]:
    """The fields that a schema lacks, which the API server drops or refuses."""
    if "$ref" in schema:
        schema = whole["definitions"][schema["$ref"].removeprefix("#/definitions/")]
    if isinstance(data, list):
        return [name for item in data for name in unknown(item, schema.get("items", {}), whole, at)]
    fields = schema.get("properties")
    if not isinstance(data, dict) or fields is None:
        return []
    return [f"{at}.{key}" for key in data if key not in fields] + [
        name
        for key, value in data.items()
        if key in fields
        for name in unknown(value, fields[key], whole, f"{at}.{key}")
    ]


def test_karpenters_definitions_take_the_node_class_and_the_pool() -> None:
    folder = go_module("github.com/aws/karpenter-provider-aws@v1.14.0")
    schemas = crds(folder / "pkg/apis/crds")
    for text in (*of_kinds("karpenter").values(), made("karpenter", asked(label=SLICED))):
        documents = list(yaml.safe_load_all(text))
        assert [document["kind"] for document in documents] == ["EC2NodeClass", "NodePool"]
        for document in documents:
            schema = schemas[document["kind"]]
            jsonschema.Draft202012Validator(schema).validate(document)
            assert unknown(document, schema, schema) == []


def user_data(kind: str, wanted: LaunchRequest) -> str:
    """What a node of a kind gets as user data."""
    first = next(yaml.safe_load_all(made(kind, wanted.model_copy(update={"image_id": AMI}))))
    if kind == "karpenter":
        return str(first["spec"]["userData"])
    if kind == "eksctl":
        return "\n".join(first["managedNodeGroups"][0]["preBootstrapCommands"])
    template = first["Resources"]["LaunchTemplate"]["Properties"]["LaunchTemplateData"]
    return str(template["UserData"]["Fn::Base64"]["Fn::Sub"])


def test_nodeadm_takes_the_user_data() -> None:
    module = "github.com/awslabs/amazon-eks-ami/nodeadm@v0.0.0-20240229193347-cfab22a10647"
    schema = crds(go_module(module) / "crds")["NodeConfig"]
    for kind in ("karpenter", "eks-managed-nodegroup", "eks-self-managed"):
        text = user_data(kind, asked(label=SLICED))
        if kind != "karpenter":
            parts: Any = email.message_from_string(text).get_payload()
            assert [part.get_content_type() for part in parts] == ["application/node.eks.aws"]
            text = parts[0].get_payload()
        config = yaml.safe_load(text)
        assert (config["apiVersion"], config["kind"]) == ("node.eks.aws/v1alpha1", "NodeConfig")
        jsonschema.Draft202012Validator(schema).validate(config)
        assert unknown(config, schema, schema) == []


imds = runtime_module("gpu_mig.imds")


@pytest.mark.parametrize(
    "kind", ["karpenter", "eksctl", "eks-managed-nodegroup", "eks-self-managed"]
)
def test_eks_nodes_find_their_layout_without_tags(kind: str) -> None:
    wanted = asked(label=SLICED, image_id=AMI)
    assert imds.from_user_data(user_data(kind, wanted).encode()) == SLICED
    assert not re.search(r"InstanceMetadataTags: (?!disabled)", made(kind, wanted))


def test_argos_schema_takes_the_workflow() -> None:
    folder = go_module("github.com/argoproj/argo-workflows/v3@v3.7.2")
    whole = json.loads((folder / "api/jsonschema/schema.json").read_text())
    kind = {"$ref": "#/definitions/io.argoproj.workflow.v1alpha1.Workflow"}
    for text in (*of_kinds("argo").values(), made("argo", asked(label=SLICED, jobs=56))):
        workflow = yaml.safe_load(text)
        jsonschema.Draft202012Validator(whole | {"oneOf": [kind]}).validate(workflow)
        assert unknown(workflow, kind, whole) == []
    workflow["spec"]["paralelism"] = 1
    assert unknown(workflow, kind, whole) == [".spec.paralelism"]


PROGRAM = """#!/bin/bash
# A stand-in: notes its call, and answers as the walk-through needs it.
echo "${0##*/} $*" >> "$CALLS"
case "${0##*/} $*" in
  "aws ssm get-parameter"*) echo ami-0123456789abcdef0 ;;
  "eksctl create"*) cp "${!#}" "$CALLS.cluster" ;;
  "kubectl get nodes"*) echo "56 56 " ;;
  "kubectl create"*) cp "$3" "$CALLS.jobs"; echo workflow.argoproj.io/jobs-1 ;;
  "kubectl wait"*) [[ $FAIL != wait ]]; exit ;;
  "kubectl get workflow"*) [[ $FAIL = jobs ]] && echo Failed || echo Succeeded ;;
esac
"""


@pytest.mark.parametrize("fail", ["", "jobs"])
def test_walk_through_runs_jobs_and_removes_the_cluster(tmp_path: Path, fail: str) -> None:
    """Its own bash, with stand-ins for aws, eksctl, kubectl and helm."""
    script = tmp_path / "walk.sh"
    script.write_text(made("argo", asked(label=SLICED, jobs=56), WALK))
    assert subprocess.run(["shellcheck", script], check=False).returncode == 0
    for name in ("aws", "eksctl", "kubectl", "helm"):
        (tmp_path / name).write_text(PROGRAM)
        (tmp_path / name).chmod(0o755)
    calls = tmp_path / "calls"
    done = subprocess.run(
        ["bash", script], capture_output=True, text=True, check=False,
        env={"PATH": f"{tmp_path}:/usr/bin:/bin", "CALLS": str(calls), "FAIL": fail,
             "CLUSTER": "mine", "ZONE": "eu-west-1c", "TMPDIR": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == bool(fail), done.stderr
    words = [" ".join(line.split()[:3]) for line in calls.read_text().splitlines()]
    assert words[:2] == ["aws ssm get-parameter", "eksctl create cluster"]
    assert words[-1] == "eksctl delete cluster"
    cluster = yaml.safe_load((tmp_path / "calls.cluster").read_text())
    # eksctl wants two zones for a cluster and one for nodes with EFA.
    assert cluster["availabilityZones"] == ["eu-west-1c", "us-east-1b"]
    assert cluster["managedNodeGroups"][0]["ami"] == AMI
    assert yaml.safe_load((tmp_path / "calls.jobs").read_text())["kind"] == "Workflow"


@pytest.mark.parametrize("packer", packers.usable() or [None], ids=str)
def test_packer_takes_the_child_template(tmp_path: Path, packer: Packer | None) -> None:
    if packer is None or not packer.has_plugins:
        pytest.skip("KILN_SECOND_PACKER names no Packer with plugins")
    # The lines differ in values alone.
    for how in ("follows", "pinned"):
        text = next(text for name, text in of_kinds("packer").items() if name.endswith(how))
        (tmp_path / "child.pkr.hcl").write_text(text)
        done = subprocess.run(
            [packer.path, "validate", "child.pkr.hcl"],
            cwd=tmp_path, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr


def test_command_launches_as_the_launch_template_does(tmp_path: Path) -> None:
    """Its own bash, with a stand-in of the AWS CLI that keeps what it is asked."""
    fake = tmp_path / "aws"
    fake.write_text('#!/bin/bash\nprintf "%s" "${!#}" >"$ASKED"\n')
    fake.chmod(0o755)
    given = {"SUBNET": "subnet-1", "GROUP": "sg-1", "KEY": "me"}
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "ASKED": str(tmp_path / "asked")}
    block = asked(BASE, label=SLICED, instance_profile="role", capacity_block=RESERVATION)
    for launch in (block, asked(BASE, "g4dn.xlarge")):
        text = made("cli", launch)
        done = subprocess.run(["bash"], input=text, text=True, env=env | given, check=False)
        assert done.returncode == 0
        launched = json.loads((tmp_path / "asked").read_text())
        template = json.loads(made("launch-template-json", launch))["LaunchTemplateData"]
        cards = launched.get("NetworkInterfaces", [launched])
        assert {(card["SubnetId"], *card.get("Groups", ["sg-1"])) for card in cards} == {
            ("subnet-1", "sg-1")
        }
        for field in ("NetworkInterfaces", "SecurityGroupIds"):
            assert len(launched.pop(field, [])) == len(template.pop(field, []))
        more = {"SubnetId", "KeyName", "MinCount", "MaxCount"}
        assert {key: launched[key] for key in launched if key not in more} == template
    done = subprocess.run(
        ["bash"], input=text, text=True, env=env, capture_output=True, check=False
    )
    assert done.returncode == 1 and "SUBNET" in done.stderr
    for text in (*of_kinds("terraform").values(), made("terraform", block)):
        assert set(hcl2.loads(text)["resource"][0]) == {'"aws_launch_template"'}


def test_each_card_with_efa_gets_one_interface_for_it() -> None:
    # p5: 32 cards, all with EFA; p6-b300: 17, and the first has none.
    for instance_type, cards in (
        ("p4d.24xlarge", range(4)),
        ("p5.48xlarge", range(32)),
        ("p6-b300.48xlarge", range(1, 17)),
    ):
        line = f"al2023/production/base/{facts.instance(instance_type).arch}"
        first, *others = asked(line, instance_type).cards
        assert first == {"NetworkCardIndex": 0, "DeviceIndex": 0, "InterfaceType": "interface"}
        assert [interface["NetworkCardIndex"] for interface in others] == list(cards)
        assert {interface["InterfaceType"] for interface in others} == {"efa-only"}


def test_eksctl_has_each_field_of_its_file() -> None:
    account = {"placement_group": "training", "capacity_block": RESERVATION}
    sliced = made("eksctl", asked(label=SLICED, image_id=AMI, **account))
    for text in (*of_kinds("eksctl").values(), sliced):
        jsonschema.Draft7Validator(EKSCTL).validate(yaml.safe_load(text))
    cluster = yaml.safe_load(sliced)
    cluster["managedNodeGroups"][0]["minSize"] = "0"
    assert len(list(jsonschema.Draft7Validator(EKSCTL).iter_errors(cluster))) == 1


def leaves(values: Any, at: str = "") -> set[str]:
    if not isinstance(values, dict) or not values:
        return {at}
    return {p for key, value in values.items() for p in leaves(value, f"{at}.{key}".lstrip("."))}


def absent(paths: set[str], chart: str) -> list[str]:
    """Paths that a chart's values.yaml lacks; below a value of its own, such as {}, all may be."""
    known = set(CHARTS[chart]["values"])

    def has(path: str) -> bool:
        parts = path.split(".")
        return any(".".join(parts[:n]) in known for n in range(1, len(parts) + 1))

    return sorted(path for path in paths if not has(path))


def test_charts_have_each_value_and_take_it() -> None:
    operators = asked(label=SLICED, owner="operator")
    values = [*of_kinds("gpu-operator").values(), made("gpu-operator", operators)]
    for text in values:
        read = yaml.safe_load(text)
        assert absent(leaves(read), "gpu-operator") == []
        for path, allowed in CHARTS["gpu-operator"]["enums"].items():
            value: Any = read
            for part in path.split("."):
                value = value.get(part, {})
            assert value == {} or value in allowed, path
    for text in of_kinds("device-plugin").values():
        assert absent(leaves(yaml.safe_load(text)), "nvidia-device-plugin") == []
    for name, chart in facts.table("mig-kubernetes")["charts"].items():
        assert absent(set(chart["values"]), name) == []
    assert absent({"migManager.default", "mig.config"}, "gpu-operator") == [
        "mig.config",
        "migManager.default",
    ]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (f"--line {EKS} --for karpentr", "did you mean 'karpenter'?"),
        ("--line al2023/lts/ek/x86_64 --for cli", f"did you mean '{EKS}'?"),
        (f"--line {BASE} --for karpenter", "karpenter takes images of flavor eks"),
        (f"--line {EKS} --for cli --label all-1g.5gb", "no MIG on this GPU"),
        ("--line al2/classic/base/x86_64 --for cli --instance-type p4d.24xlarge "
         "--label all-1g.10gb", "needs driver >= 525"),
        (f"--line {EKS} --for cli --jobs 5", "cli takes no --jobs"),
        (f"--line {EKS} --for cli --capacity-block {RESERVATION} "
         f"--capacity-reservation {RESERVATION}", "in a capacity reservation or in a block"),
        (f"--line {EKS} --for cli --instance-type g4dn.xlarge,g5.xlarge",
         "cli is for one instance type, not 2"),
        (f"--line {EKS} --for device-plugin --instance-type p4d.24xlarge --label all-balanced "
         "--strategy single", "strategy single needs slices of one profile"),
    ],
)  # fmt: skip
def test_wrong_flags_are_refused_with_the_reason(flags: str, words: str) -> None:
    done = commands.invoke("consume", *flags.split())
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert words in done.stderr


def test_document_goes_to_the_file_alone(tmp_path: Path) -> None:
    file = tmp_path / "nodes.yaml"
    flags = ("--line", EKS, "--for", "karpenter", "--out", str(file))
    done = commands.invoke("consume", *flags)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert file.read_text() == made("karpenter", asked(types=None))


def test_kinds_are_listed_and_names_are_unique() -> None:
    done = commands.invoke("consume", "--list", "--json")
    assert list(json.loads(done.stdout)) == list(KINDS)
    assert {name.split(" ")[0] for name in of_every_line()} == set(KINDS)
    names: dict[str, str] = {}
    for recipe in load_recipes():
        for channel in ("nightly", "stable"):
            launch = launch_request(recipe.channel_line, channel, "us-east-1")
            assert re.fullmatch("[a-z][a-z0-9-]*", launch.name)
            assert names.setdefault(launch.name, launch.line + channel) == launch.line + channel
