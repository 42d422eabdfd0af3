#!/usr/bin/env bash
# IMEX lets the GPUs of several GB200 or GB300 hosts reach each other's memory. Its version is the driver's.
# It starts only where the boot-time selection finds such a GPU, and the addresses of the domain's nodes.
#
#@ env NVIDIA_DRIVER_VERSION  required  the driver's version
#@ env NVIDIA_IMEX_PACKAGES   required  name=version …
#@ env NVIDIA_IMEX_OWNER      required  who starts it: host, or dra (NVIDIA's DRA driver, which refuses a host's IMEX)
# shellcheck source=provisioners/lib/kiln.sh
source "${KILN_DIR:?}/lib/kiln.sh"

kiln_install_held "$NVIDIA_IMEX_PACKAGES"
kiln_install_runtime etc/systemd/system/nvidia-imex.service.d
kiln_install_files etc/modprobe.d/kiln-imex.conf
if [[ $NVIDIA_IMEX_OWNER == dra ]]; then
    systemctl --quiet mask nvidia-imex.service
else
    kiln_enable nvidia-imex.service
fi
kiln_record "version=$NVIDIA_DRIVER_VERSION"
