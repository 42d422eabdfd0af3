#!/usr/bin/env bash
# The Xid event monitor: reads the kernel log, writes /var/log/gpuevent.log; hooks on events, health at boot.
# shellcheck source=provisioners/lib/kiln.sh
source "${KILN_DIR:?}/lib/kiln.sh"

kiln_install_runtime opt/kiln/lib/gpu_common opt/kiln/lib/gpu_xid usr/local/bin/gpu-xid etc/kiln/gpu-xid.json etc/kiln/xid.d
kiln_install_units kiln-xid.service kiln-xid-hooks.path kiln-xid-hooks.service kiln-gpu-health.service kiln-gpu.target
# Compiled once here: the image's first start is faster and the program takes less memory.
python3 -m compileall -q /opt/kiln/lib/gpu_common /opt/kiln/lib/gpu_xid || kiln_die "gpu_xid does not compile on this Python"
kiln_enable kiln-xid.service kiln-xid-hooks.path kiln-gpu-health.service kiln-gpu.target
version=$(cd /opt/kiln/lib/gpu_xid && find . -name '*.py' -exec cat {} + | sha256sum) || kiln_die "gpu_xid cannot be read"
kiln_record "version=${version:0:12}"
