#!/usr/bin/env bash
# The unit that sets the GPUs' highest application clocks at every boot. gpu_boot/devices.json, which
# nvidia-driver.sh installs, names them.
# shellcheck source=provisioners/lib/kiln.sh
source "${KILN_DIR:?}/lib/kiln.sh"

kiln_install_runtime opt/kiln/lib/gpu_common opt/kiln/lib/gpu_boot usr/local/bin/kiln-gpu-clocks
kiln_install_units kiln-gpu-clocks.service kiln-gpu.target
/usr/local/bin/kiln-gpu-clocks --help 2>/dev/null || kiln_die "kiln-gpu-clocks does not run on this Python"
kiln_enable kiln-gpu-clocks.service kiln-gpu.target
