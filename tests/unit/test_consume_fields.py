"""Documents for eksctl and Helm, held against the fields that these have: tests/data/consumers."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from kiln import facts
from kiln.consume.argo import walk_through, workflow
from kiln.consume.launch_options import LaunchOptions
from tests.unit.consumers import AMI, asked, made, of_kinds

RECORDED = Path(__file__).parents[1] / "data/consumers"
EKSCTL = json.loads((RECORDED / "eksctl.json").read_text())["definitions"]
CHARTS = json.loads((RECORDED / "charts.json").read_text())
OPTIONS = LaunchOptions(placement_group="training", capacity_block="cr-0123456789abcdef0")
TYPES = {"string": str, "integer": int, "boolean": bool, "object": dict}


def astray(value: Any, kind: Any, place: str) -> list[str]:
    """Where a value is not of its kind: a type, a list of one, a definition, or an enum."""
    if isinstance(kind, list):
        if not isinstance(value, list):
            return [place]
        return [wrong for each in value for wrong in astray(each, kind[0], place)]
    if isinstance(kind, dict):
        return [] if value in kind["enum"] else [place]
    if kind not in EKSCTL:
        return [] if type(value) is TYPES.get(kind, str) else [place]
    known = EKSCTL[kind]
    missing = [f"{place}.{name}" for name in known["required"] if name not in value]
    return missing + [
        wrong
        for name, inner in value.items()
        for wrong in (
            astray(inner, known["fields"][name], f"{place}.{name}")
            if name in known["fields"]
            else [f"{place}.{name}"]
        )
    ]


def clusters() -> list[dict[str, Any]]:
    sliced = replace(asked(label="all-1g.5gb"), image_id=AMI, options=OPTIONS)
    texts = [*of_kinds("eksctl").values(), made("eksctl", sliced)]
    return [yaml.safe_load(text) for text in texts]


def test_eksctl_has_each_field_of_its_file_and_takes_each_value() -> None:
    for cluster in clusters():
        assert astray(cluster, "ClusterConfig", "") == []
    wrong = {**cluster, "managedNodeGroup": [], "kind": "Cluster"}
    wrong["managedNodeGroups"][0]["minSize"] = "0"
    del wrong["metadata"]["region"]
    assert sorted(astray(wrong, "ClusterConfig", "")) == [
        ".kind",
        ".managedNodeGroup",
        ".managedNodeGroups.minSize",
        ".metadata.region",
    ]


def test_eksctls_own_schema_takes_its_file() -> None:
    schema = os.environ.get("KILN_EKSCTL_SCHEMA")
    if not schema:
        pytest.skip("KILN_EKSCTL_SCHEMA names no schema.json of eksctl")
    for cluster in clusters():
        jsonschema.Draft7Validator(json.loads(Path(schema).read_text())).validate(cluster)


def test_eksctl_keeps_the_layout_in_user_data() -> None:
    """Of a NodeConfig it writes what it has read, without comments; a script stands as it is."""
    (group,) = clusters()[-1]["managedNodeGroups"]
    assert group["preBootstrapCommands"] == ["# kiln:mig-config=all-1g.5gb"]
    assert "overrideBootstrapCommand" not in group


def leaves(values: Any, at: str = "") -> set[str]:
    if not isinstance(values, dict) or not values:
        return {at}
    return {p for key, value in values.items() for p in leaves(value, f"{at}.{key}".lstrip("."))}


def unknown(paths: set[str], chart: str) -> list[str]:
    """Paths that a chart's values.yaml lacks; below a value of its own, such as {}, all may be."""
    known = set(CHARTS[chart]["values"])

    def has(path: str) -> bool:
        parts = path.split(".")
        return any(".".join(parts[:n]) in known for n in range(1, len(parts) + 1))

    return sorted(path for path in paths if not has(path))


def test_the_charts_have_each_value_and_take_it() -> None:
    operators = replace(asked(label="all-1g.5gb"), owner="operator")
    own = {"migManager": {"config": {"create": True, "name": "x", "data": {"config.yaml": ""}}}}
    values = [
        *of_kinds("gpu-operator").values(),
        made("gpu-operator", operators),
        yaml.safe_dump(own),
    ]
    assert {yaml.safe_load(text)["mig"]["strategy"] for text in values[:-1]} == {"none", "mixed"}
    for text in values:
        read = yaml.safe_load(text)
        assert unknown(leaves(read), "gpu-operator") == []
        for path, allowed in CHARTS["gpu-operator"]["enums"].items():
            value: Any = read
            for part in path.split("."):
                value = value.get(part, {})
            assert value == {} or value in allowed, path
    plugin = list(of_kinds("device-plugin").values())
    assert plugin
    for text in plugin:
        assert unknown(leaves(yaml.safe_load(text)), "nvidia-device-plugin") == []
    assert unknown({"migManager.default", "mig.config"}, "gpu-operator") == [
        "mig.config",
        "migManager.default",
    ]


def test_the_facts_of_the_charts_are_the_charts() -> None:
    for name, chart in facts.table("mig-kubernetes")["charts"].items():
        assert unknown(set(chart["values"]), name) == []


def test_argos_chart_makes_the_account_that_the_jobs_run_as() -> None:
    chart = CHARTS["argo-workflows"]
    script = walk_through(asked())
    given = set(re.findall(r"--set (\S+)=", script))
    assert given and unknown(given, "argo-workflows") == []
    account = yaml.safe_load(workflow(asked()))["spec"]["serviceAccountName"]
    assert account == chart["defaults"]["workflow.serviceAccount.name"]
    # `kubectl create` without a namespace.
    assert chart["defaults"]["controller.workflowNamespaces"] == ["default"]
