#!/usr/bin/env bash
# Fabric manager refuses any driver but its own version. Enabled, but started only where the boot-time
# selection found NVSwitch: elsewhere it would be a failed unit on every instance.
export KILN_COMPONENT=nvidia-fabricmanager
# shellcheck source=provisioners/lib/kiln.sh
source "${KILN_DIR:?}/lib/kiln.sh"

fabricmanager_version() { nv-fabricmanager --version 2>/dev/null | grep -oE '[0-9]+(\.[0-9]+)+' | head -n 1 || true; }

# NVIDIA's archive: bin, lib, etc, share and systemd, to be laid out below /usr.
install_archive() {
    local archive tree
    if [[ $(fabricmanager_version) == "$NVIDIA_DRIVER_VERSION" ]]; then
        kiln_say "fabric manager $NVIDIA_DRIVER_VERSION is there already"
        return
    fi
    archive=$(kiln_download NVIDIA_FABRICMANAGER)
    tree=$(mktemp -d "$KILN_DIR/fabricmanager.XXXXXX")
    tar -xf "$archive" -C "$tree" --strip-components=1
    install -m 0755 "$tree"/bin/* /usr/bin/
    cp -a "$tree"/lib/. "$(ldconfig -p | sed -n 's|.* => \(/.*\)/libc\.so\.6$|\1|p' | head -n 1)/"
    mkdir -p /usr/share/nvidia
    cp -a "$tree"/share/nvidia/. /usr/share/nvidia/
    install -D -m 0644 "$tree/etc/fabricmanager.cfg" /usr/share/nvidia/nvswitch/fabricmanager.cfg
    install -D -m 0644 "$tree/systemd/nvidia-fabricmanager.service" /usr/lib/systemd/system/nvidia-fabricmanager.service
    rm -rf "$tree"
    ldconfig
    kiln_record "archive=${archive##*/}"
}

if [[ -n $NVIDIA_FABRICMANAGER_PACKAGES ]]; then
    read -ra packages <<<"$NVIDIA_FABRICMANAGER_PACKAGES"
    mapfile -t names < <(kiln_names "${packages[@]}")
    kiln_unhold "${names[@]}"
    kiln_install "${packages[@]}"
    kiln_hold "${names[@]}"
    kiln_record "packages+=${names[*]}"
else
    install_archive
fi
version=$(fabricmanager_version)
[[ $version == "$NVIDIA_DRIVER_VERSION" ]] \
    || kiln_die "fabric manager is ${version:-missing}, the driver $NVIDIA_DRIVER_VERSION" "they have to be equal"

kiln_install_runtime etc/systemd/system/nvidia-fabricmanager.service.d
units=(nvidia-fabricmanager.service)
# Fourth-generation NVSwitch is run through NVLSM, which talks to it over ib_umad.
if [[ -n $NVLSM_PACKAGES ]]; then
    read -ra packages <<<"$NVLSM_PACKAGES"
    read -ra libraries <<<"$NVLSM_OS_PACKAGES"
    mapfile -t names < <(kiln_names "${packages[@]}")
    kiln_unhold "${names[@]}"
    kiln_install "${packages[@]}" "${libraries[@]}"
    kiln_hold "${names[@]}"
    kiln_record "nvlsm+=${names[*]}"
    kiln_install_runtime etc/systemd/system/nvlsm.service.d
    units+=(nvlsm.service)
fi
kiln_enable "${units[@]}"
kiln_record "version=$version"
