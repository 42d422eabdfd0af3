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
# shellcheck source=provisioners/lib/kiln.sh
source "${KILN_DIR:?}/lib/kiln.sh"

if [[ -n $NVIDIA_FABRICMANAGER_PACKAGES ]]; then
    kiln_install_held "$NVIDIA_FABRICMANAGER_PACKAGES"
else
    # NVIDIA's archive: bin, lib, etc, share and systemd, to be laid out below /usr.
    archive=$(kiln_download NVIDIA_FABRICMANAGER) || exit 1
    tree=$(kiln_unpack "$archive" --strip-components=1) || exit 1
    # libc.so.6 (libc6,x86-64) => /lib/x86_64-linux-gnu/libc.so.6
    libraries=$(ldconfig -p | sed -n 's|^[[:blank:]]*libc\.so\.6 .* => \(/.*\)/libc\.so\.6$|\1|p') \
        || kiln_die "ldconfig cannot list the libraries"
    [[ -n $libraries ]] || kiln_die "ldconfig does not know where libc.so.6 is"
    install -m 0755 "$tree"/bin/* /usr/bin/
    cp -a "$tree"/lib/. "${libraries%%$'\n'*}/"
    mkdir -p /usr/share/nvidia
    cp -a "$tree"/share/nvidia/. /usr/share/nvidia/
    install -D -m 0644 "$tree/etc/fabricmanager.cfg" /usr/share/nvidia/nvswitch/fabricmanager.cfg
    install -D -m 0644 "$tree/systemd/nvidia-fabricmanager.service" /usr/lib/systemd/system/nvidia-fabricmanager.service
    rm -rf "$tree"
    ldconfig
    kiln_record "archive=${archive##*/}"
fi
answer=$(nv-fabricmanager --version) || kiln_die "nv-fabricmanager does not run"
[[ $answer =~ [0-9]+(\.[0-9]+)+ ]] || kiln_die "nv-fabricmanager prints no version: ${answer%%$'\n'*}"
version=${BASH_REMATCH[0]}
[[ $version == "$NVIDIA_DRIVER_VERSION" ]] \
    || kiln_die "fabric manager is $version, the driver $NVIDIA_DRIVER_VERSION" "they must be equal"

kiln_install_runtime etc/systemd/system/nvidia-fabricmanager.service.d
# NVLSM runs fourth-generation NVSwitch; it talks to it over ib_umad. It has no unit: fabric manager starts
# it, and a second one would be in its way.
if [[ -n $NVLSM_PACKAGES ]]; then
    # shellcheck disable=SC2086  # a list of names
    kiln_install $NVLSM_OS_PACKAGES
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
