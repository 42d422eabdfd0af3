#!/usr/bin/env bash
# MIG layouts, applied at every boot: instances do not survive one, the mode may not either.
export KILN_COMPONENT=gpu-mig
# shellcheck source=provisioners/lib/kiln.sh
source "${KILN_DIR:?}/lib/kiln.sh"

kiln_install_runtime opt/kiln/lib/gpu_mig usr/local/bin/gpu-mig etc/systemd/system/aws-gpu-mig.service \
    etc/systemd/system/aws-gpu-mig.service.d \
    etc/default/gpu-mig etc/kiln/mig-config.yaml etc/kiln/mig-config.d
# These wait for the layout, where they exist.
for unit in kubelet ecs slurmd; do
    [[ -z $(systemctl list-unit-files --no-legend "$unit.service") ]] \
        || kiln_install_runtime "etc/systemd/system/$unit.service.d/20-gpu-mig.conf"
done
kiln_install_files etc/default/gpu-mig etc/kiln/mig-config.d
[[ -z $MIG_CONFIG ]] || sed -i "s/^MIG_CONFIG=.*/MIG_CONFIG=$MIG_CONFIG/" /etc/default/gpu-mig
# Compiled once here: the image's first start is faster and the program takes less memory.
python3 -m compileall -q /opt/kiln/lib/gpu_mig || kiln_die "gpu_mig does not compile on this Python"
gpu-mig validate >&2 || kiln_die "the MIG configuration is not valid" "its own message is above"
kiln_enable aws-gpu-mig.service
kiln_record "config=$MIG_CONFIG"
