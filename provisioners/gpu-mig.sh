#!/usr/bin/env bash
# MIG layouts, applied at every boot: MIG instances never survive one, MIG mode may not either.
#
#@ env MIG_CONFIG  optional  layout to apply when no instance tag names one; empty: none
export KILN_COMPONENT=gpu-mig
# shellcheck source=provisioners/lib/kiln.sh
source "${KILN_DIR:?}/lib/kiln.sh"

kiln_install_runtime opt/kiln/lib/gpu_mig usr/local/bin/gpu-mig etc/systemd/system/aws-gpu-mig.service \
    etc/systemd/system/aws-gpu-mig.service.d \
    etc/default/gpu-mig etc/kiln/mig-config.yaml etc/kiln/mig-config.d
# These services wait for the layout. ParallelCluster writes slurmd's unit at the node's first boot.
kiln_install_runtime etc/systemd/system/kubelet.service.d etc/systemd/system/ecs.service.d \
    etc/systemd/system/slurmd.service.d
[[ -z $MIG_CONFIG ]] || sed -i "s/^MIG_CONFIG=.*/MIG_CONFIG=$MIG_CONFIG/" /etc/default/gpu-mig
# Compiled once here: the image's first start is faster and the program takes less memory.
python3 -m compileall -q /opt/kiln/lib/gpu_mig || kiln_die "gpu_mig does not compile on this Python"
gpu-mig validate >&2 || kiln_die "the MIG configuration is not valid" "its own message is above"
kiln_enable aws-gpu-mig.service
kiln_record "config=$MIG_CONFIG"
