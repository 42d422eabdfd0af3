"""What a team pastes or applies to launch a channel's image, judged by the tools that read it."""

from __future__ import annotations

import email
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import hcl2
import jsonschema
import pytest
import yaml

from devel import packers
from kiln import facts
from kiln.base import versions
from kiln.base.errors import KilnError
from kiln.base.paths import ROOT, RUNTIME
from kiln.base.runtime_import import runtime_module
from kiln.consume.argo import slice_resource, walk_through
from kiln.consume.eks import TAINT, node_resources
from kiln.consume.kinds import KINDS, kind_of
from kiln.consume.launch_options import LaunchOptions
from kiln.consume.launch_request import LaunchRequest, launch_request
from kiln.consume.machine import network_interfaces
from kiln.matrix.load import load_recipes
from kiln.mig.profiles import profiles_for
from kiln.packer.program import Packer
from kiln.publish import lines
from tests.unit import commands
from tests.unit.consumers import AMI, BASE, ECS, EKS, asked, made, of_every_line, of_kinds


def test_each_kind_has_a_document_for_some_line() -> None:
    assert {name.split(" ")[0] for name in of_every_line()} == set(KINDS)


def test_cloudformation_takes_its_templates(tmp_path: Path) -> None:
    """By cfn-lint, which knows each resource's schema."""
    kinds = ("launch-template", "cloudformation", "eks-managed-nodegroup", "eks-self-managed")
    found = of_kinds(*kinds, "ecs", "batch")
    found["efa"] = made("launch-template", asked(BASE, label="all-1g.5gb"))
    found["batch efa"] = made("batch", asked(ECS))
    # Of documents that differ in the names of their lines alone, one.
    names = re.compile(r"gpu-[a-z0-9-]+|[a-z0-9_]+/[a-z0-9_]+/[a-z]+/(x86_64|arm64)")
    several = {
        (name[:9], names.sub("", " ".join(text.split()))): text for name, text in found.items()
    }
    for number, text in enumerate(several.values()):
        (tmp_path / f"{number}.yaml").write_text(text)
    linted = subprocess.run(
        [Path(sys.executable).with_name("cfn-lint"), "--regions", "us-east-1", "--",
         *tmp_path.glob("*.yaml")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (linted.returncode, linted.stdout) == (0, "")


def go_module(module: str, whose: str) -> Path:
    """The folder of a Go module; skips the test where it cannot be had."""
    if not shutil.which("go"):
        pytest.skip(f"no go on PATH, which fetches {whose} definitions")
    done = subprocess.run(
        ["go", "mod", "download", "-json", module],
        cwd="/", capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    if done.returncode:
        pytest.skip(f"{whose} definitions cannot be fetched: {module}")
    return Path(json.loads(done.stdout)["Dir"])


@cache
def karpenters_own() -> dict[str, Any]:
    """Karpenter's definitions of its kinds, from its Go module."""
    folder = go_module("github.com/aws/karpenter-provider-aws@v1.14.0", "Karpenter's")
    found = {}
    for path in (folder / "pkg/apis/crds").glob("*.yaml"):
        crd = yaml.safe_load(path.read_text())["spec"]
        found[crd["names"]["kind"]] = crd["versions"][0]["schema"]["openAPIV3Schema"]
    return found


def unknown(data: Any, schema: dict[str, Any], place: str = "") -> list[str]:
    """Fields that a definition lacks; the API server drops or refuses them."""
    if isinstance(data, list):
        return [name for item in data for name in unknown(item, schema.get("items", {}), place)]
    fields = schema.get("properties")
    if not isinstance(data, dict) or fields is None:
        return []
    here = [f"{place}.{key}" for key in data if key not in fields]
    return here + [
        name
        for key, value in data.items()
        if key in fields
        for name in unknown(value, fields[key], f"{place}.{key}")
    ]


def test_karpenters_own_definitions_take_the_node_class_and_the_pool() -> None:
    crds = karpenters_own()
    texts = [*of_kinds("karpenter").values(), made("karpenter", asked(label="all-1g.5gb"))]
    for text in texts:
        documents = list(yaml.safe_load_all(text))
        assert [document["kind"] for document in documents] == ["EC2NodeClass", "NodePool"]
        for document in documents:
            schema = crds[document["kind"]]
            jsonschema.Draft202012Validator(schema).validate(document)
            assert unknown(document, schema) == []


def test_nodeadm_takes_the_user_data_of_every_kind_of_node() -> None:
    """By the definition of its NodeConfig, in its Go module."""
    folder = go_module(
        "github.com/awslabs/amazon-eks-ami/nodeadm@v0.0.0-20240229193347-cfab22a10647", "nodeadm's"
    )
    crd = yaml.safe_load((folder / "crds/node.eks.aws_nodeconfigs.yaml").read_text())["spec"]
    schema = crd["versions"][0]["schema"]["openAPIV3Schema"]
    (nodes, _) = yaml.safe_load_all(made("karpenter", asked(label="all-1g.5gb")))
    configs = [nodes["spec"]["userData"]]
    for kind in ("eks-managed-nodegroup", "eks-self-managed"):
        template = yaml.safe_load(made(kind, asked()))["Resources"]["LaunchTemplate"]
        data = template["Properties"]["LaunchTemplateData"]["UserData"]["Fn::Base64"]["Fn::Sub"]
        (part,) = email.message_from_string(data).get_payload()
        assert part.get_content_type() == "application/node.eks.aws"
        configs.append(part.get_payload())
    for text in configs:
        config = yaml.safe_load(text)
        assert (config["apiVersion"], config["kind"]) == ("node.eks.aws/v1alpha1", "NodeConfig")
        jsonschema.Draft202012Validator(schema).validate(config)
        assert unknown(config, schema) == []


def test_self_managed_nodes_have_the_label_and_the_taint_of_the_others() -> None:
    (_, pool) = yaml.safe_load_all(made("karpenter", asked()))
    (label,) = pool["spec"]["template"]["metadata"]["labels"].items()
    (taint,) = pool["spec"]["template"]["spec"]["taints"]
    template = yaml.safe_load(made("eks-self-managed", asked()))["Resources"]["LaunchTemplate"]
    data = template["Properties"]["LaunchTemplateData"]["UserData"]["Fn::Base64"]["Fn::Sub"]
    (part,) = email.message_from_string(data).get_payload()
    assert yaml.safe_load(part.get_payload())["spec"]["kubelet"]["flags"] == [
        "--node-labels={}={}".format(*label),
        "--register-with-taints={key}={value}:{effect}".format(**taint),
    ]


BLOCK = "cr-0123456789abcdef0"
CLUSTER = "al2023/production/parallelcluster/x86_64"
WORKFLOW = "io.argoproj.workflow.v1alpha1.Workflow"


@cache
def argos_own() -> dict[str, Any]:
    """Argo's JSON schema, from its Go module."""
    folder = go_module("github.com/argoproj/argo-workflows/v3@v3.7.2", "Argo's")
    schema: dict[str, Any] = json.loads((folder / "api/jsonschema/schema.json").read_text())
    return schema


def astray(workflow: dict[str, Any]) -> list[str]:
    """What Argo's schema takes and its controller refuses, or drops."""
    definitions = argos_own()["definitions"]

    def fields(data: Any, schema: dict[str, Any], place: str) -> list[str]:
        if "$ref" in schema:
            schema = definitions[schema["$ref"].removeprefix("#/definitions/")]
        if isinstance(data, list):
            return [name for item in data for name in fields(item, schema.get("items", {}), place)]
        known = schema.get("properties")
        if not isinstance(data, dict) or known is None:
            return []
        here = [f"{place}.{key}" for key in data if key not in known]
        return here + [
            name
            for key, value in data.items()
            if key in known
            for name in fields(value, known[key], f"{place}.{key}")
        ]

    wrong = fields(workflow, {"$ref": WORKFLOW}, "")
    spec = workflow["spec"]
    templates = {template["name"]: template for template in spec["templates"]}
    if spec["entrypoint"] not in templates:
        wrong.append(f"entrypoint {spec['entrypoint']}")
    for template in templates.values():
        for step in (step for group in template.get("steps", []) for step in group):
            called = templates.get(step["template"])
            given = {each["name"] for each in step.get("arguments", {}).get("parameters", [])}
            takes = {
                each["name"] for each in (called or {}).get("inputs", {}).get("parameters", [])
            }
            if called is None or given != takes:
                wrong.append(f"step {step['name']}")
        used = set(re.findall(r"\{\{inputs\.parameters\.([\w-]+)\}\}", json.dumps(template)))
        wrong += sorted(
            used - {each["name"] for each in template.get("inputs", {}).get("parameters", [])}
        )
    return wrong


def test_argos_own_schema_takes_the_workflow() -> None:
    sliced = asked(label="all-1g.5gb")
    for text in (*of_kinds("argo").values(), made("argo", replace(sliced, jobs=56))):
        workflow = yaml.safe_load(text)
        schema = argos_own() | {"oneOf": [{"$ref": f"#/definitions/{WORKFLOW}"}]}
        jsonschema.Draft202012Validator(schema).validate(workflow)
        assert astray(workflow) == []
    workflow["spec"]["entrypoint"] = "all-job"
    workflow["spec"]["paralelism"] = 1
    del workflow["spec"]["templates"][1]["inputs"]
    assert astray(workflow) == [".spec.paralelism", "entrypoint all-job", "step job", "number"]


def test_jobs_fan_out_over_the_slices_of_a_node() -> None:
    workflow = yaml.safe_load(made("argo", replace(asked(label="all-1g.5gb"), jobs=200)))
    (((step,),), job) = (
        workflow["spec"]["templates"][0]["steps"],
        workflow["spec"]["templates"][1],
    )
    assert (step["withSequence"], workflow["spec"]["parallelism"]) == ({"count": "200"}, 56)
    assert job["container"]["resources"] == {"limits": {"nvidia.com/mig-1g.5gb": "1"}}
    assert job["nodeSelector"]["node.kubernetes.io/instance-type"] == "p4d.24xlarge"
    whole = yaml.safe_load(made("argo", asked()))
    assert whole["spec"]["templates"][1]["container"]["resources"] == {
        "limits": {"nvidia.com/gpu": "1"}
    }
    assert whole["spec"]["templates"][0]["steps"][0][0]["withSequence"] == {"count": "8"}


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


@pytest.mark.parametrize("fail", ["", "wait", "jobs"])
def test_the_walk_through_runs_the_jobs_and_removes_the_cluster(tmp_path: Path, fail: str) -> None:
    """Its own bash, with stand-ins for aws, eksctl, kubectl and helm."""
    script = tmp_path / "walk.sh"
    script.write_text(walk_through(replace(asked(label="all-1g.5gb"), jobs=56)))
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
    assert cluster["metadata"]["name"] == "mine"
    gpus, system = cluster["managedNodeGroups"]
    # eksctl wants two zones for a cluster and one for nodes with EFA, and no plugin of its own.
    assert cluster["availabilityZones"] == ["eu-west-1c", "us-east-1b"]
    assert gpus["availabilityZones"] == ["eu-west-1c"]
    assert "eksctl create cluster --install-nvidia-plugin=false" in calls.read_text()
    # The charts' own pods tolerate no taint.
    assert gpus["ami"] == AMI and gpus["taints"] and "taints" not in system
    assert yaml.safe_load((tmp_path / "calls.jobs").read_text())["kind"] == "Workflow"


def test_slices_of_the_operator_are_not_made_by_the_image() -> None:
    text = made("gpu-operator", replace(asked(label="all-1g.5gb"), owner="operator"))
    values = yaml.safe_load(text)
    assert values["migManager"]["enabled"] and values["mig"] == {"strategy": "mixed"}
    assert "nvidia.com/mig.config=all-1g.5gb" in text and "MIG_OWNER=operator" in text


def test_parallelclusters_own_schema_takes_the_cluster_file(tmp_path: Path) -> None:
    python = os.environ.get("KILN_PCLUSTER")
    if not python:
        pytest.skip("KILN_PCLUSTER names no Python with aws-parallelcluster")
    script = (
        "import sys, yaml; from pcluster.schemas.cluster_schema import ClusterSchema\n"
        "for text in yaml.safe_load_all(sys.stdin):\n"
        "    ClusterSchema(cluster_name='judged').load(text)\n"
    )
    judged = "---\n".join(of_kinds("parallelcluster").values())
    for text, status in ((judged, 0), (judged.replace("CustomAmi", "CustomAmy"), 1)):
        done = subprocess.run(
            [python, "-c", script], input=text, capture_output=True, text=True, check=False,
            env={"PATH": os.environ["PATH"], "AWS_DEFAULT_REGION": "us-east-1"},
        )  # fmt: skip
        assert done.returncode == status, done.stderr


def test_terraform_is_laid_out_as_terraform_lays_it_out(tmp_path: Path) -> None:
    several = {**of_kinds("terraform"), "efa": made("terraform", asked(BASE, label="all-1g.5gb"))}
    for name, text in several.items():
        (tmp_path / f"{name.replace(' ', '-')}.tf").write_text(text)
        assert set(hcl2.loads(text)["resource"][0]) == {'"aws_launch_template"'}
    if shutil.which("terraform"):
        done = subprocess.run(
            ["terraform", "fmt", "-check", "-diff", tmp_path],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert (done.returncode, done.stdout) == (0, "")


def test_terraforms_interfaces_are_those_of_the_launch_template() -> None:
    for wanted in (asked(BASE), asked("al2023/production/base/x86_64", "p6-b300.48xlarge")):
        parsed = hcl2.loads(made("terraform", wanted))
        (template,) = parsed["resource"][0]['"aws_launch_template"'].values()
        names = {"NetworkCardIndex", "DeviceIndex", "InterfaceType", "DeleteOnTermination"}
        cards = [
            {"".join(part.title() for part in key.split("_")): value for key, value in each.items()}
            for each in template["network_interfaces"]
        ]
        data = json.loads(made("launch-template-json", wanted))["LaunchTemplateData"]
        assert [{key: _plain(card.get(key)) for key in names} for card in cards] == [
            {key: card[key] for key in names} for card in data["NetworkInterfaces"]
        ]


def _plain(value: Any) -> Any:
    return value.strip('"') if isinstance(value, str) else value


def test_terraforms_provider_knows_interfaces_of_efa_alone() -> None:
    """github:hashicorp/terraform-provider-aws CHANGELOG.md, 5.74.0: `efa-only`."""
    found = re.search(r'version = ">= ([\d.]+)"', made("terraform", asked(BASE)))
    assert found and versions.at_least(found[1], "5.74.0")


@pytest.mark.parametrize("packer", packers.usable() or [None], ids=str)
def test_packer_takes_the_child_template(tmp_path: Path, packer: Packer | None) -> None:
    if packer is None or not packer.has_plugins:
        pytest.skip("KILN_SECOND_PACKER names no Packer with plugins")
    for name, text in of_kinds("packer").items():
        assert list(hcl2.loads(text)["source"][0]) == ['"amazon-ebs"'], name
    # They differ in values alone.
    for how in ("follows", "pinned"):
        text = next(text for name, text in of_kinds("packer").items() if name.endswith(how))
        (tmp_path / "child.pkr.hcl").write_text(text)
        done = subprocess.run(
            [packer.path, "validate", "child.pkr.hcl"],
            cwd=tmp_path, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_command_launches_as_the_launch_template_does(tmp_path: Path) -> None:
    """Its own bash, with a stand-in of the AWS CLI that keeps what it is asked."""
    fake = tmp_path / "aws"
    fake.write_text('#!/bin/bash\nprintf "%s" "${!#}" >"$ASKED"\n')
    fake.chmod(0o755)
    given = {"SUBNET": "subnet-1", "GROUP": "sg-1", "KEY": "me"}
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "ASKED": str(tmp_path / "asked")}
    asked_for = replace(
        asked(BASE, label="all-1g.5gb"), options=LaunchOptions("role", capacity_block=BLOCK)
    )
    for launch in (asked_for, asked(BASE, "g4dn.xlarge")):
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


def test_bash_takes_the_command() -> None:
    for text in of_kinds("cli").values():
        assert subprocess.run(["bash", "-n"], input=text, text=True, check=False).returncode == 0


def test_an_account_of_its_own_is_in_the_documents() -> None:
    """Profile, placement group and block; kinds without a place for one refuse the flag."""
    options = LaunchOptions("gpu-role", "near", capacity_block=BLOCK)
    data = json.loads(made("launch-template-json", replace(asked(BASE), options=options)))
    assert data["LaunchTemplateData"]["IamInstanceProfile"] == {"Name": "gpu-role"}
    assert data["LaunchTemplateData"]["InstanceMarketOptions"] == {"MarketType": "capacity-block"}
    for kind in KINDS.values():
        line = {"ecs": ECS, "parallelcluster": CLUSTER, "eks": EKS}.get(
            *kind.flavors[:1] or ["eks"]
        )
        given = {"--instance-profile": "gpu-role", "--placement-group": "near"}
        given |= {"--capacity-block": BLOCK}
        whole = replace(asked(line or EKS, "g4dn.xlarge"), options=options, image_id=AMI)
        for flag, value in given.items():
            if flag in kind.options:
                assert value in made(kind.name, whole), (kind.name, flag)


def test_a_cluster_has_a_queue_for_each_instance_type() -> None:
    several = replace(
        asked(CLUSTER, "p4d.24xlarge", label="all-1g.5gb"),
        others=(facts.instance("p5.48xlarge"),),
        image_id=AMI,
    )
    cluster = yaml.safe_load(made("parallelcluster", several))
    queues = cluster["Scheduling"]["SlurmQueues"]
    assert [queue["Name"] for queue in queues] == ["p4d-24xlarge", "p5-48xlarge"]
    # The head node has no GPU.
    assert queues[0]["Tags"] == [{"Key": "kiln:mig-config", "Value": "all-1g.5gb"}]
    assert "kiln:mig-config" not in str(cluster["Tags"])


def test_a_distribution_that_parallelcluster_has_no_name_for_is_refused() -> None:
    wanted = replace(asked(CLUSTER, "g4dn.xlarge"), image_id=AMI)
    for distro, name in (("rocky9", "rocky9"), ("acme", "")):
        of_it = replace(wanted.recipe, distro=replace(wanted.recipe.distro, id=distro))
        if name:
            assert f"Os: {name}\n" in made("parallelcluster", replace(wanted, recipe=of_it))
            continue
        with pytest.raises(KilnError, match="takes images of distribution al2 or al2023"):
            made("parallelcluster", replace(wanted, recipe=of_it))


def test_the_clusters_script_switches_the_drain_hook_on(tmp_path: Path) -> None:
    """The command of its comment with a stand-in of `aws`, and the script on the image's folder."""
    text = made("parallelcluster", replace(asked(CLUSTER, "g4dn.xlarge"), image_id=AMI))
    (tmp_path / "aws").write_text('#!/bin/bash\ncat >"$PUT"\necho "$*"\n')
    (tmp_path / "aws").chmod(0o755)
    lines = text.splitlines()
    (at,) = (n for n, line in enumerate(lines) if line.startswith("#   printf"))
    command = "\n".join(line[1:] for line in lines[at : at + 2])
    script = tmp_path / "put"
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, check=True,
        env={"PATH": f"{tmp_path}:/usr/bin:/bin", "PUT": str(script)},
    )  # fmt: skip
    (queue,) = yaml.safe_load(text)["Scheduling"]["SlurmQueues"]
    assert done.stdout.split()[-1] == queue["CustomActions"]["OnNodeConfigured"]["Script"]
    shutil.copytree(RUNTIME / "etc/kiln/xid.d", tmp_path / "xid.d")
    here = script.read_text().replace("/etc/kiln/xid.d", str(tmp_path / "xid.d"))
    assert here.startswith("#!/bin/bash\n") and here != script.read_text()
    subprocess.run(["bash", "-e"], input=here, text=True, check=True)
    assert os.access(tmp_path / "xid.d/50-slurm-drain", os.X_OK)


def test_names_are_their_own_for_each_line_and_channel() -> None:
    names: dict[str, str] = {}
    for recipe in load_recipes():
        for channel in ("nightly", "stable"):
            launch = launch_request(recipe.channel_line, channel, "us-east-1")
            assert re.fullmatch("[a-z][a-z0-9-]*", launch.name)
            assert names.setdefault(launch.name, launch.line + channel) == launch.line + channel


def test_an_image_is_followed_by_the_parameter_unless_it_is_pinned() -> None:
    parameter = f"/ami-kiln/{EKS}/stable/image_id"
    follows = [text for name, text in of_every_line().items() if name.endswith("follows")]
    assert follows and not any(AMI in text for text in follows)
    (node_class, _) = yaml.safe_load_all(made("karpenter", asked()))
    assert node_class["spec"]["amiSelectorTerms"] == [{"ssmParameter": parameter}]
    template = json.loads(made("launch-template-json", asked()))
    assert template["LaunchTemplateData"]["ImageId"] == f"resolve:ssm:{parameter}"
    values = {"gpu-operator", "device-plugin", "argo"}
    for name, text in of_every_line().items():
        if name.endswith("pinned") and name.split(" ")[0] not in values:
            # Not only in what the document says of itself.
            assert AMI in " ".join(text.split()).replace(f"channel stable ({AMI})", ""), name
            assert "resolve:ssm" not in text and "ssmParameter" not in text, name


def test_every_card_with_efa_gets_an_interface_for_it() -> None:
    # p5: 32 cards, all with EFA; p6-b300: 17, and the first has none; p6e-gb200: the odd ones.
    for instance_type, cards in (
        ("p5.48xlarge", range(32)),
        ("p6-b300.48xlarge", range(1, 17)),
        ("p6e-gb200.36xlarge", range(1, 17, 2)),
    ):
        line = f"al2023/production/base/{facts.instance(instance_type).arch}"
        found = network_interfaces(asked(line, instance_type))
        assert found[0] == {"NetworkCardIndex": 0, "DeviceIndex": 0, "InterfaceType": "interface"}
        assert [interface["NetworkCardIndex"] for interface in found[1:]] == list(cards)
        assert {interface["InterfaceType"] for interface in found[1:]} == {"efa-only"}
    places = [
        (interface["NetworkCardIndex"], interface["DeviceIndex"])
        for interface in network_interfaces(asked())
    ]
    assert places == [(0, 0), (0, 1), (1, 0), (2, 0), (3, 0)]


@pytest.mark.parametrize("kind", ["launch-template", "cli", "terraform", "cloudformation"])
def test_unpublished_network_cards_get_no_document(kind: str) -> None:
    wanted = asked("al2023/production/base/arm64", "p6e-gb300.36xlarge")
    with pytest.raises(KilnError, match="nobody has published"):
        made(kind, wanted)
    assert made(kind, replace(wanted, recipe=replace(wanted.recipe, efa=None)))


def test_what_a_node_offers_is_what_its_type_has() -> None:
    """Of every instance type, whole and by each layout that suits it, in each document."""
    seen = set()
    for kind in facts.instances().values():
        line = f"al2023/lts/eks/{kind.arch}"
        try:
            whole = asked(line, kind.type)
        except KilnError:
            continue
        seen.add(kind.type)
        data = json.loads(made("launch-template-json", whole))["LaunchTemplateData"]
        assert data["InstanceType"] == kind.type
        (_, pool) = yaml.safe_load_all(made("karpenter", whole))
        assert pool["spec"]["limits"]["nvidia.com/gpu"] % kind.gpu_count == 0
        offered = node_resources(whole)
        assert offered.pop("vpc.amazonaws.com/efa", 0) == (kind.efa_interfaces if kind.efa else 0)
        assert offered == {"nvidia.com/gpu": kind.gpu_count}
        if kind.mig:
            (_, most) = slice_resource(replace(whole, label=f"all-{smallest(kind.type)}"))
            assert most % kind.gpu_count == 0 and most > kind.gpu_count
    assert len(seen) > 30


def smallest(instance_type: str) -> str:
    """The profile of which most fit."""
    every = profiles_for(instance_type)["profiles"]
    return str(
        max(every, key=lambda entry: ("+" not in entry["profile"], entry["per_gpu"]))["profile"]
    )


def test_no_type_gets_two_interfaces_in_one_place_or_more_than_it_has() -> None:
    for kind in facts.instances().values():
        line = f"al2023/production/base/{kind.arch}"
        try:
            found = network_interfaces(asked(line, kind.type))
        except KilnError:
            continue
        places = [(entry["NetworkCardIndex"], entry["DeviceIndex"]) for entry in found]
        assert len(places) == len(set(places))
        assert len(found) == (kind.efa_interfaces + 1 if kind.efa else 0), kind.type


def test_a_mig_layout_reaches_the_instance_and_the_charts() -> None:
    wanted = asked(label="all-1g.5gb")
    data = json.loads(made("launch-template-json", wanted))["LaunchTemplateData"]
    instance = data["TagSpecifications"][0]["Tags"]
    assert {"Key": "kiln:mig-config", "Value": "all-1g.5gb"} in instance
    assert data["MetadataOptions"]["InstanceMetadataTags"] == "enabled"
    assert yaml.safe_load(made("gpu-operator", wanted))["mig"] == {"strategy": "mixed"}
    assert yaml.safe_load(made("device-plugin", wanted))["migStrategy"] == "mixed"
    assert "nvidia.com/mig-1g.5gb: 56, vpc.amazonaws.com/efa: 4" in made("karpenter", wanted)


imds = runtime_module("gpu_mig.imds")


def user_data(kind: str, wanted: LaunchRequest) -> str:
    """What a node of a kind gets as user data."""
    first = next(yaml.safe_load_all(made(kind, replace(wanted, image_id=AMI))))
    if kind == "karpenter":
        return str(first["spec"]["userData"])
    if kind == "eksctl":
        return "\n".join(first["managedNodeGroups"][0]["preBootstrapCommands"])
    template = first["Resources"]["LaunchTemplate"]["Properties"]["LaunchTemplateData"]
    return str(template["UserData"]["Fn::Base64"]["Fn::Sub"])


@pytest.mark.parametrize(
    "kind", ["karpenter", "eksctl", "eks-managed-nodegroup", "eks-self-managed"]
)
def test_eks_nodes_find_their_layout_without_tags(kind: str) -> None:
    wanted = asked(label="all-1g.5gb")
    assert imds.from_user_data(user_data(kind, wanted).encode()) == "all-1g.5gb"
    assert not re.search(r"InstanceMetadataTags: (?!disabled)", made(kind, wanted))
    if kind.startswith("eks-"):
        # The account's default may be to show them.
        assert "InstanceMetadataTags: disabled" in made(kind, wanted)


def test_the_device_plugin_finds_nodes_with_our_taint() -> None:
    """By the label that its affinity needs, which its own chart sets on request."""
    values = yaml.safe_load(made("device-plugin", asked()))
    assert values["gfd"] == {"enabled": True}
    for tolerated in (values["tolerations"], values["nfd"]["worker"]["tolerations"]):
        assert {"key": TAINT["key"], "operator": "Exists", "effect": TAINT["effect"]} in tolerated


@pytest.mark.parametrize(("region", "partition"), [("us-east-1", "aws"), ("cn-north-1", "aws-cn")])
def test_karpenters_document_has_the_statement_for_its_role(region: str, partition: str) -> None:
    wanted = replace(asked(), region=region)
    (line,) = (line for line in made("karpenter", wanted).splitlines() if "ssm:Get" in line)
    assert json.loads(line.removeprefix("#")) == {
        "Effect": "Allow",
        "Action": "ssm:GetParameter",
        "Resource": f"arn:{partition}:ssm:{region}:*:parameter{wanted.parameter}",
    }
    assert "ssm:Get" not in made("karpenter", replace(wanted, image_id=AMI))


def with_settings(line: str, **changes: Any) -> lines.Line:
    """The row of a line as if the matrix said something else of it."""
    row = lines.load_line(line)
    return replace(row, recipe=replace(row.recipe, **changes))


def test_without_a_label_the_layout_is_the_one_that_the_image_makes_by_itself() -> None:
    row = with_settings(EKS, mig_config="all-1g.5gb")
    on = {"p4d.24xlarge": {"nvidia.com/mig-1g.5gb": 56}, "g5.xlarge": {"nvidia.com/gpu": 1}}
    for kind, offered in on.items():
        wanted = launch_request(EKS, "stable", "us-east-1", instance_type=kind, row=row)
        assert node_resources(wanted).items() >= offered.items()
    off = with_settings(EKS, mig_config="all-disabled")
    whole = launch_request(EKS, "stable", "us-east-1", instance_type="p4d.24xlarge", row=off)
    assert yaml.safe_load(made("device-plugin", whole))["migStrategy"] == "none"


def test_a_layout_that_the_images_driver_cannot_make_is_refused() -> None:
    classic = "al2/classic/base/x86_64"
    assert asked(classic, label="all-1g.5gb").label == "all-1g.5gb"
    with pytest.raises(KilnError, match=r"MIG profile 1g\.10gb on A100 .* needs driver >= 525"):
        asked(classic, label="all-1g.10gb")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--line", EKS, "--for", "karpentr"], "did you mean 'karpenter'?"),
        (["--line", EKS], "--for is missing"),
        (["--for", "cli"], "--line is missing"),
        (["--line", "al2023/lts/ek/x86_64", "--for", "cli"], f"did you mean '{EKS}'?"),
        (["--line", EKS, "--for", "cli", "--channel", "stabel"], "did you mean 'stable'?"),
        (["--line", BASE, "--for", "karpenter"], "karpenter takes images of flavour eks"),
        (["--line", ECS, "--for", "eksctl"], "eksctl takes images of flavour eks"),
        (["--line", EKS, "--for", "cli", "--instance-type", "g5g.xlarge"], "a processor of arm64"),
        (["--line", EKS, "--for", "cli", "--instance-type", "g7.2xlarge"], "does not serve g7"),
        (["--line", EKS, "--for", "cli", "--label", "all-1g.5gb"], "no MIG on this GPU"),
        (["--line", ECS, "--for", "ecs", "--instance-type", "p4d.24xlarge", "--label",
          "all-1g.5gb"], "ECS gives out whole GPUs"),
        (["--line", ECS, "--for", "batch", "--instance-type", "p4d.24xlarge", "--label",
          "all-1g.5gb"], "ECS gives out whole GPUs"),
        (["--line", EKS, "--for", "cli", "--jobs", "5"], "--jobs is for --for argo, not for cli"),
        (["--line", EKS, "--for", "argo", "--jobs", "0"], "--jobs 0: give a number from 1"),
        (["--line", EKS, "--for", "argo", "--jobs", "20000"], "fans out over 1 to 10000"),
        (["--line", EKS, "--for", "device-plugin", "--placement-group", "near"],
         "device-plugin takes no --placement-group"),
        (["--line", EKS, "--for", "cli", "--capacity-block", "near"], "is not a capacity reserv"),
        (["--line", EKS, "--for", "cli", "--capacity-block", BLOCK, "--capacity-reservation",
          BLOCK], "in a capacity reservation or in a block, not both"),
        (["--line", EKS, "--for", "cli", "--instance-type", "g4dn.xlarge,g5.xlarge"],
         "cli is for one instance type, not 2"),
        (["--line", CLUSTER, "--for", "parallelcluster", "--instance-type", "g5.xlarge,"],
         "instance type is missing"),
        (["--line", CLUSTER, "--for", "parallelcluster", "--instance-type", "g5.xlarge,g5.xlarge"],
         "--instance-type names g5.xlarge twice"),
        (["--line", EKS, "--for", "cli", "--walkthrough"], "--walkthrough is for --for argo"),
        (["--line", EKS, "--for", "cli", "--owner", "operatr"], "did you mean 'operator'?"),
        (
            ["--line", EKS, "--for", "device-plugin", "--instance-type", "p4d.24xlarge",
             "--label", "all-balanced", "--strategy", "single"],
            "strategy single needs slices of one profile",
        ),
    ],
)  # fmt: skip
def test_a_wrong_pair_is_refused_with_the_reason(arguments: list[str], words: str) -> None:
    done = commands.invoke("consume", *arguments)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert words in done.stderr


def test_standard_output_is_the_document_and_nothing_else(tmp_path: Path) -> None:
    flags = ["--line", EKS, "--for", "karpenter"]
    done = commands.invoke("consume", *flags)
    assert done.returncode == 0, done.stderr
    assert len(list(yaml.safe_load_all(done.stdout))) == 2
    file = tmp_path / "nodes.yaml"
    again = commands.invoke("consume", *flags, "--out", str(file))
    assert (again.returncode, again.stdout) == (0, "")
    assert file.read_text() == done.stdout


def test_the_kinds_are_listed() -> None:
    done = commands.invoke("consume", "--list", "--json")
    assert list(json.loads(done.stdout)) == list(KINDS)
    assert kind_of("ecs").flavors == ("ecs",)
    page = (ROOT / "docs/consume.md").read_text()
    assert [name for name in KINDS if f"| `{name}` |" not in page] == []
