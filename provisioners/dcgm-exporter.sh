#!/usr/bin/env bash
# dcgm-exporter with the fields that CloudWatch gets, for `telemetry: {dcgm: true}`.
export KILN_COMPONENT=dcgm-exporter
# shellcheck source=provisioners/lib/kiln.sh
source "${KILN_DIR:?}/lib/kiln.sh"

read -ra packages <<<"$DCGM_EXPORTER_PACKAGES"
mapfile -t names < <(kiln_names "${packages[@]}")
kiln_unhold "${names[@]}"
kiln_install "${packages[@]}"
kiln_hold "${names[@]}"
kiln_record "version=$DCGM_EXPORTER_VERSION" "packages+=${names[*]}"
kiln_install_runtime etc/kiln/dcgm-counters.csv etc/systemd/system/nvidia-dcgm-exporter.service.d
kiln_enable nvidia-dcgm-exporter.service
