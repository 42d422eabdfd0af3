"""Many jobs on slices: an Argo Workflow that fans out, and the way to it from nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kiln import facts
from kiln.base.errors import KilnError
from kiln.base.yaml_files import as_yaml
from kiln.consume import eks, eksctl
from kiln.consume.documents import title
from kiln.consume.launch_request import LaunchRequest
from kiln.consume.machine import network_interfaces

# Argo makes a list of as many items before it starts the first.
_MOST_JOBS = 10_000
# Whose rights a job's pod needs to report its result; the chart makes it in the walk-through.
_ACCOUNT = "argo-workflow"
# Stand in the documents of others until the walk-through's shell puts in what it knows.
_AMI, _CLUSTER = "AMI-OF-THE-CHANNEL", "CLUSTER"
_ZONE, _OTHER_ZONE = "ZONE-OF-THE-GPUS", "OTHER-ZONE"


def workflow(wanted: LaunchRequest) -> str:
    """A Workflow with a job for each slice of a node, or as many as are wanted.

    Raises KilnError (exit status 2) for more jobs than one Workflow fans out over.
    """
    resource, places = slice_resource(wanted)
    jobs = wanted.jobs or places
    if not 1 <= jobs <= _MOST_JOBS:
        raise KilnError(
            f"--jobs {jobs}: one Workflow fans out over 1 to {_MOST_JOBS}", hint="--jobs 56"
        )
    job: dict[str, Any] = {
        "name": "job",
        "inputs": {"parameters": [{"name": "number"}]},
        # A node that is drained takes its pods with it: they run again, anywhere.
        "retryStrategy": {
            "limit": "2",
            "retryPolicy": "Always",
            "backoff": {"duration": "10s", "factor": "2"},
        },
        "nodeSelector": {
            "kiln/channel": wanted.channel,
            "node.kubernetes.io/instance-type": wanted.instance_type.type,
        },
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
        "container": {
            "image": "public.ecr.aws/amazonlinux/amazonlinux:2023",
            "command": ["nvidia-smi", "-L"],
            "env": [{"name": "JOB", "value": "{{inputs.parameters.number}}"}],
            "resources": {"limits": {resource: "1"}},
        },
    }
    every: dict[str, Any] = {
        "name": "job",
        "template": "job",
        "arguments": {"parameters": [{"name": "number", "value": "{{item}}"}]},
        "withSequence": {"count": str(jobs)},
    }
    document = {
        "apiVersion": "argoproj.io/v1alpha1",
        "kind": "Workflow",
        "metadata": {"generateName": f"{wanted.name}-"},
        "spec": {
            "entrypoint": "all-jobs",
            "serviceAccountName": _ACCOUNT,
            "parallelism": min(jobs, places),
            "ttlStrategy": {"secondsAfterCompletion": 86400},
            "podGC": {"strategy": "OnPodSuccess"},
            "templates": [{"name": "all-jobs", "steps": [[every]]}, job],
        },
    }
    return as_yaml(
        [
            title(wanted, "kubectl create -f THIS-FILE"),
            f"{jobs} jobs; one node has {places} × {resource}: `parallelism` is that of one node.",
            "Change the container, which reads its number in JOB. The pods run as the service",
            f"account {_ACCOUNT}, which needs Argo's role for executors.",
        ],
        document,
    )


def slice_resource(wanted: LaunchRequest) -> tuple[str, int]:
    """What a pod requests, and how many of it a node has: of a layout, its most frequent slice."""
    offered = eks.node_resources(wanted)
    offered.pop("vpc.amazonaws.com/efa", None)
    return max(offered.items(), key=lambda pair: pair[1])


def walk_through(wanted: LaunchRequest) -> str:
    """A script from nothing to the last job and back: cluster, charts, Workflow, clean-up."""
    resource, places = slice_resource(wanted)
    chart = facts.table("mig-kubernetes")["charts"]["gpu-operator"]["version"]
    # GPU nodes take only pods that tolerate their taint: the charts' own need another node.
    system = "m6i.large" if wanted.instance_type.arch == "x86_64" else "m6g.large"
    cluster = eksctl.cluster_config(replace(wanted, image_id=_AMI))
    cluster["managedNodeGroups"].append(
        {"name": "system", "instanceType": system, "desiredCapacity": 1}
    )
    if network_interfaces(wanted):
        cluster["managedNodeGroups"][0]["availabilityZones"] = [_ZONE]
        # A cluster wants two, and with EFA all GPU nodes are in one.
        cluster["availabilityZones"] = [_ZONE, _OTHER_ZONE]
    places_in = {_AMI: "AMI", _CLUSTER: "CLUSTER", _ZONE: "ZONE", _OTHER_ZONE: "OTHER_ZONE"}
    put_in = "; ".join(f"s/ {word}$/ ${name}/" for word, name in places_in.items())
    steps = [
        _HEAD.format(
            what=title(wanted, "A cluster with its jobs"),
            kind=wanted.instance_type.type,
            name=wanted.name,
            region=wanted.region,
            parameter=wanted.parameter,
            image=wanted.image_id or "",
        ),
        _heredoc(f'sed "{put_in}"', as_yaml([], cluster), "cluster.yaml"),
        f'eksctl create cluster {eksctl.NO_PLUGIN} --config-file "$FOLDER/cluster.yaml"\n',
        "helm repo add nvidia https://helm.ngc.nvidia.com/nvidia\n"
        "helm repo add argo https://argoproj.github.io/argo-helm\n"
        "helm repo update\n",
        _heredoc("cat", eks.gpu_operator(wanted), "gpu-operator.yaml"),
        f"helm upgrade --install gpu-operator nvidia/gpu-operator --version {chart} \\\n"
        "  --namespace gpu-operator --create-namespace \\\n"
        '  --values "$FOLDER/gpu-operator.yaml"\n',
        "helm upgrade --install argo-workflows argo/argo-workflows \\\n"
        "  --namespace argo --create-namespace --set workflow.serviceAccount.create=true\n",
        _WAIT.format(resource=resource.replace(".", "\\."), shown=resource, places=places),
        _heredoc("cat", workflow(wanted), "jobs.yaml"),
        _RUN,
    ]
    return "\n".join(steps)


def _heredoc(through: str, text: str, file: str) -> str:
    return f"{through} >\"$FOLDER/{file}\" <<'END'\n{text}END\n"


_HEAD = """\
#!/bin/bash
# {what}.
# It launches a {kind}, which costs money until it is gone: with KEEP=1 the cluster stays.
# Needs aws, eksctl, kubectl and helm. CLUSTER names the cluster, ZONE and OTHER_ZONE its
# availability zones, of which the first has the GPUs.
set -euo pipefail
CLUSTER=${{CLUSTER:-{name}}}
export AWS_REGION={region}
ZONE=${{ZONE:-{region}a}} OTHER_ZONE=${{OTHER_ZONE:-{region}b}}
AMI={image}
PARAMETER={parameter}
if [[ -z $AMI ]]; then
  AMI=$(aws ssm get-parameter --name "$PARAMETER" --query Parameter.Value --output text)
fi
FOLDER=$(mktemp -d)
clean_up() {{
  [[ -n ${{KEEP:-}} ]] || eksctl delete cluster --name "$CLUSTER" --wait
  rm -rf "$FOLDER"
}}
trap clean_up EXIT
"""
_WAIT = """\
# The slices are there when gpu-mig has made them and the device plugin has counted them.
OF_NODES='{{range .items[*]}}{{.status.allocatable.{resource}}} {{end}}'
for ((tries = 0; tries < 60; tries++)); do
  offered=$(kubectl get nodes --output "jsonpath=$OF_NODES")
  [[ " $offered " != *" {places} "* ]] || break
  sleep 10
done
((tries < 60)) || {{ echo "no node offers {places} × {shown}: $offered" >&2; exit 1; }}
"""
_RUN = """\
JOBS=$(kubectl create --filename "$FOLDER/jobs.yaml" --output name)
kubectl wait "$JOBS" --for=condition=Completed --timeout=2h
RESULT='{.status.phase}: {.status.progress}, {.status.startedAt} to {.status.finishedAt}{"\\n"}'
kubectl get "$JOBS" --output "jsonpath=$RESULT"
PHASE=$(kubectl get "$JOBS" --output 'jsonpath={.status.phase}')
[[ $PHASE = Succeeded ]]
"""
