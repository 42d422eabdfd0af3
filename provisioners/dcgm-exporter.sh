#!/usr/bin/env bash
# dcgm-exporter with the fields that CloudWatch gets, for `telemetry: {dcgm: true}`.
#
#@ env DCGM_EXPORTER_VERSION   required  the exporter's own version
#@ env DCGM_EXPORTER_PACKAGES  required  name=version …
# shellcheck source=provisioners/lib/kiln.sh
source "${KILN_DIR:?}/lib/kiln.sh"

kiln_install_held "$DCGM_EXPORTER_PACKAGES"
kiln_install_runtime etc/kiln/dcgm-counters.csv etc/systemd/system/nvidia-dcgm-exporter.service.d
kiln_enable nvidia-dcgm-exporter.service
kiln_record "version=$DCGM_EXPORTER_VERSION"
