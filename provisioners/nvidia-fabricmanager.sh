#!/usr/bin/env bash
# Fabric manager, which refuses any driver but its own version. It is enabled, but starts only where the
# boot-time selection finds NVSwitch: elsewhere it would be a failed unit on every instance.
#
#@ env      NVIDIA_DRIVER_VERSION          required  the driver's version
#@ env      NVIDIA_FABRICMANAGER_PACKAGES  optional  name=version …; empty: NVIDIA's archive
#@ env      NVLSM_PACKAGES                 optional  name=version …, for fourth-generation NVSwitch
#@ env      NVLSM_OS_PACKAGES              optional  the distribution's libraries and tools for it
#@ env      NVLSM_PROGRAM                  optional  where its package puts it
#@ download NVIDIA_FABRICMANAGER           optional  NVIDIA's archive, where there are no packages
export KILN_COMPONENT=nvidia-fabricmanager
# shellcheck source=provisioners/lib/kiln.sh
source "${KILN_DIR:?}/lib/kiln.sh"

# Prints nothing when there is none.
fabricmanager_version() {
    local answer
    answer=$(nv-fabricmanager --version 2>/dev/null) || return 0
    [[ ! $answer =~ [0-9]+(\.[0-9]+)+ ]] || printf '%s\n' "${BASH_REMATCH[0]}"
}

# NVIDIA's archive: bin, lib, etc, share and systemd, to be laid out below /usr.
lay_out() { # TREE LIBRARIES
    install -m 0755 "$1"/bin/* /usr/bin/ || return 1
    cp -a "$1"/lib/. "$2/" || return 1
    mkdir -p /usr/share/nvidia || return 1
    cp -a "$1"/share/nvidia/. /usr/share/nvidia/ || return 1
    install -D -m 0644 "$1/etc/fabricmanager.cfg" /usr/share/nvidia/nvswitch/fabricmanager.cfg || return 1
    install -D -m 0644 "$1/systemd/nvidia-fabricmanager.service" /usr/lib/systemd/system/nvidia-fabricmanager.service
}

install_archive() {
    local archive tree cache line libraries=
    archive=$(kiln_download NVIDIA_FABRICMANAGER) || exit 1
    tree=$(kiln_unpack "$archive" --strip-components=1) || exit 1
    cache=$(ldconfig -p) || kiln_die "ldconfig cannot list the libraries"
    while read -r line; do
        # libc.so.6 (libc6,x86-64) => /lib/x86_64-linux-gnu/libc.so.6
        [[ $line == 'libc.so.6 '*' => '/*/libc.so.6 ]] || continue
        libraries=${line##* => }
        libraries=${libraries%/*}
        break
    done <<<"$cache"
    [[ -n $libraries ]] || kiln_die "ldconfig does not know where libc.so.6 is"
    lay_out "$tree" "$libraries" || kiln_die "${archive##*/} cannot be installed" "the message of the command that failed is above"
    rm -rf "$tree" || kiln_die "$tree cannot be removed"
    ldconfig || kiln_die "ldconfig failed"
    kiln_record "archive=${archive##*/}"
}

version=$(fabricmanager_version) || exit 1
if [[ -n $NVIDIA_FABRICMANAGER_PACKAGES ]]; then
    kiln_install_held "$NVIDIA_FABRICMANAGER_PACKAGES"
elif [[ $version == "$NVIDIA_DRIVER_VERSION" ]]; then
    kiln_say "fabric manager $NVIDIA_DRIVER_VERSION is installed already"
else
    install_archive
fi
version=$(fabricmanager_version) || exit 1
[[ $version == "$NVIDIA_DRIVER_VERSION" ]] \
    || kiln_die "fabric manager is ${version:-missing}, the driver $NVIDIA_DRIVER_VERSION" "they must be equal"

kiln_install_runtime etc/systemd/system/nvidia-fabricmanager.service.d
# NVLSM runs fourth-generation NVSwitch; it talks to it over ib_umad. It has no unit: fabric manager starts
# it, and a second one would be in its way.
if [[ -n $NVLSM_PACKAGES ]]; then
    read -ra libraries <<<"$NVLSM_OS_PACKAGES"
    ((${#libraries[@]})) || kiln_die "NVLSM_OS_PACKAGES is empty" "NVLSM needs libibumad of the distribution"
    kiln_install "${libraries[@]}"
    kiln_install_held "$NVLSM_PACKAGES"
    # shellcheck disable=SC2154 # kiln_install_held sets `names`
    kiln_record "nvlsm+=${names[*]}"
    [[ -x ${NVLSM_PROGRAM:?} ]] || kiln_die "$NVLSM_PROGRAM is not there: fabric manager would not find NVLSM" \
        "the package has moved it; correct nvlsm in kiln/facts/knowledge/drivers.yaml"
    # Fabric manager's start script refuses to start without ib_umad, and sees no NVSwitch of this generation without
    # mlx5_ib: https://github.com/NVIDIA/gpu-operator/issues/2781. Each is in one of the kernel's packages or the other:
    # in Amazon Linux 2023's further modules, and of Ubuntu's 6.8 only mlx5_ib (linux-modules-extra-6.8.0-1070-aws).
    kernel=$(kiln_boot_kernel) || exit 1
    for module in mlx5_ib ib_umad; do kiln_kernel_module "$kernel" "$module"; done
    kiln_install_runtime etc/modules-load.d/kiln-nvlsm.conf
fi
kiln_enable nvidia-fabricmanager.service
kiln_record "version=$version"
