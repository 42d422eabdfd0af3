#!/bin/bash
# A cluster with its jobs: al2023/lts/eks/x86_64, channel stable, on p4d.24xlarge.
# It launches a p4d.24xlarge, which costs money until it is gone: with KEEP=1 the cluster stays.
# Needs aws, eksctl, kubectl and helm. CLUSTER names the cluster, ZONE and OTHER_ZONE its
# availability zones, of which the first has the GPUs.
set -euo pipefail
CLUSTER=${CLUSTER:-gpu-al2023-lts-eks}
export AWS_REGION=us-east-1
ZONE=${ZONE:-us-east-1a} OTHER_ZONE=${OTHER_ZONE:-us-east-1b}
AMI=
PARAMETER=/ami-kiln/al2023/lts/eks/x86_64/stable/image_id
if [[ -z $AMI ]]; then
  AMI=$(aws ssm get-parameter --name "$PARAMETER" --query Parameter.Value --output text)
fi
FOLDER=$(mktemp -d)
clean_up() {
  [[ -n ${KEEP:-} ]] || eksctl delete cluster --name "$CLUSTER" --wait
  rm -rf "$FOLDER"
}
trap clean_up EXIT

cat >"$FOLDER/cluster.yaml" <<END
apiVersion: eksctl.io/v1alpha5
kind: ClusterConfig
metadata:
  name: $CLUSTER
  region: us-east-1
managedNodeGroups:
- name: gpu-al2023-lts-eks
  ami: $AMI
  amiFamily: AmazonLinux2023
  instanceType: p4d.24xlarge
  desiredCapacity: 1
  minSize: 0
  maxSize: 4
  volumeSize: 100
  volumeEncrypted: true
  privateNetworking: true
  disableIMDSv1: true
  efaEnabled: true
  availabilityZones:
  - $ZONE
  labels:
    kiln/channel: stable
  taints:
  - key: nvidia.com/gpu
    value: "true"
    effect: NoSchedule
  tags:
    Name: gpu-al2023-lts-eks
    kiln:line: al2023/lts/eks/x86_64
    kiln:channel: stable
    kiln:mig-config: all-1g.5gb
  preBootstrapCommands:
  - "# kiln:mig-config=all-1g.5gb"
- name: system
  instanceType: m6i.large
  desiredCapacity: 1
availabilityZones:
- $ZONE
- $OTHER_ZONE
END

eksctl create cluster --install-nvidia-plugin=false --config-file "$FOLDER/cluster.yaml"

helm repo add nvidia https://helm.ngc.nvidia.com/nvidia
helm repo add argo https://argoproj.github.io/argo-helm
helm repo update

cat >"$FOLDER/gpu-operator.yaml" <<'END'
# helm upgrade --install gpu-operator nvidia/gpu-operator -f THIS-FILE: al2023/lts/eks/x86_64, channel stable, on p4d.24xlarge
# Driver and container toolkit are on the image; its gpu-mig makes the slices at boot.
driver:
  enabled: false
toolkit:
  enabled: false
mig:
  strategy: mixed
migManager:
  enabled: false
devicePlugin:
  enabled: true
dcgmExporter:
  enabled: true
END

helm upgrade --install gpu-operator nvidia/gpu-operator --version 26.7.0 \
  --namespace gpu-operator --create-namespace \
  --values "$FOLDER/gpu-operator.yaml"

helm upgrade --install argo-workflows argo/argo-workflows \
  --namespace argo --create-namespace --set workflow.serviceAccount.create=true

# The slices are there when gpu-mig has made them and the device plugin has counted them.
OF_NODES='{range .items[*]}{.status.allocatable.nvidia\.com/mig-1g\.5gb} {end}'
for ((tries = 0; tries < 60; tries++)); do
  offered=$(kubectl get nodes --output "jsonpath=$OF_NODES")
  [[ " $offered " != *" 56 "* ]] || break
  sleep 10
done
((tries < 60)) || { echo "no node offers 56 × nvidia.com/mig-1g.5gb: $offered" >&2; exit 1; }

cat >"$FOLDER/jobs.yaml" <<'END'
# kubectl create -f THIS-FILE: al2023/lts/eks/x86_64, channel stable, on p4d.24xlarge
# 200 jobs; one node has 56 × nvidia.com/mig-1g.5gb: `parallelism` is that of one node.
# Change the container, which reads its number in JOB. The pods run as the service
# account argo-workflow, which needs Argo's role for executors.
apiVersion: argoproj.io/v1alpha1
kind: Workflow
metadata:
  generateName: gpu-al2023-lts-eks-
spec:
  entrypoint: all-jobs
  # Its rights let a job's pod report its result; the chart makes it in the walk-through.
  serviceAccountName: argo-workflow
  parallelism: 56
  ttlStrategy:
    secondsAfterCompletion: 86400
  podGC:
    strategy: OnPodSuccess
  templates:
  - name: all-jobs
    steps:
    - - name: job
        template: job
        arguments:
          parameters:
          - name: number
            value: "{{item}}"
        withSequence:
          count: "200"
  - name: job
    inputs:
      parameters:
      - name: number
    # A node that is drained takes its pods with it: they run again, anywhere.
    retryStrategy:
      limit: "2"
      retryPolicy: Always
      backoff:
        duration: 10s
        factor: "2"
    nodeSelector:
      kiln/channel: stable
      node.kubernetes.io/instance-type: p4d.24xlarge
    tolerations:
    - key: nvidia.com/gpu
      operator: Exists
      effect: NoSchedule
    container:
      image: public.ecr.aws/amazonlinux/amazonlinux:2023
      command: [nvidia-smi, -L]
      env:
      - name: JOB
        value: "{{inputs.parameters.number}}"
      resources:
        limits:
          nvidia.com/mig-1g.5gb: "1"
END

JOBS=$(kubectl create --filename "$FOLDER/jobs.yaml" --output name)
kubectl wait "$JOBS" --for=condition=Completed --timeout=2h
RESULT='{.status.phase}: {.status.progress}, {.status.startedAt} to {.status.finishedAt}{"\n"}'
kubectl get "$JOBS" --output "jsonpath=$RESULT"
PHASE=$(kubectl get "$JOBS" --output 'jsonpath={.status.phase}')
[[ $PHASE = Succeeded ]]
