#!/usr/bin/env bash
# MIG layouts, applied at every boot: MIG instances never survive one, MIG mode may not either.
#
#@ env MIG_CONFIG  optional  layout to apply when no instance tag names one; empty: none
# shellcheck source=provisioners/lib/kiln.sh
source "${KILN_DIR:?}/lib/kiln.sh"

kiln_install_runtime opt/kiln/lib/gpu_common opt/kiln/lib/gpu_mig usr/local/bin/gpu-mig \
    etc/default/gpu-mig etc/kiln/mig-config.json etc/kiln/mig-config.d
kiln_install_units kiln-mig.service
[[ -z $MIG_CONFIG ]] || sed -i "s/^MIG_CONFIG=.*/MIG_CONFIG=$MIG_CONFIG/" /etc/default/gpu-mig
# Compiled once here: the image's first start is faster and the program takes less memory.
python3 -m compileall -q /opt/kiln/lib/gpu_common /opt/kiln/lib/gpu_mig || kiln_die "gpu_mig does not compile on this Python"
/usr/local/bin/gpu-mig validate >&2 || kiln_die "the MIG configuration is not valid" "its own message is above"
kiln_enable kiln-mig.service
kiln_record "config=$MIG_CONFIG"
