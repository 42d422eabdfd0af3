#!/usr/bin/env bash
# The NVIDIA driver at exactly the recipe's version, its kernel module built by DKMS now, for the kernel
# that will boot: a build at boot would cost every instance a minute.
export KILN_COMPONENT=nvidia-driver
# shellcheck source=provisioners/lib/kiln.sh
source "${KILN_DIR:?}/lib/kiln.sh"

kernel=$(kiln_assert_kernel)
compiler=$(kiln_compiler "$kernel")

# nouveau must not take the GPU first.
printf 'blacklist nouveau\noptions nouveau modeset=0\n' >/etc/modprobe.d/kiln-nouveau.conf

# Where the kernel's compiler is not the default one, DKMS has to be told, now and for any rebuild: it
# drops CC from its environment. The module has had several names.
if [[ $("$compiler" -dumpversion | cut -d. -f1) != $(gcc -dumpversion | cut -d. -f1) ]]; then
    mkdir -p /etc/dkms
    for module in nvidia nvidia-open; do
        # DKMS fills in ${kernelver}.
        # shellcheck disable=SC2016
        printf 'MAKE[0]="make -j%s CC=%s KERNEL_UNAME=${kernelver} modules"\n' "$(nproc)" "$compiler" >"/etc/dkms/$module.conf"
    done
fi

# Debian calls the file nvidia-current.ko and makes nvidia an alias.
module_field() {
    modinfo -k "$kernel" -F "$1" nvidia 2>/dev/null || modinfo -k "$kernel" -F "$1" nvidia-current 2>/dev/null || true
}

install_runfile() {
    local run flags=(--silent --dkms --no-questions --ui=none --no-x-check --no-nouveau-check --no-backup
        --kernel-name="$kernel" --tmpdir="$KILN_DIR")
    if [[ -x /usr/bin/nvidia-smi && $(module_field version) == "$NVIDIA_DRIVER_VERSION" ]]; then
        kiln_say "driver $NVIDIA_DRIVER_VERSION is there already"
        return
    fi
    # The flag that chooses the module's flavour changed its name in branch 560.
    if ! kiln_version_lt "$NVIDIA_DRIVER_VERSION" 560; then
        flags+=(--kernel-module-type="$NVIDIA_KERNEL_MODULE")
    elif [[ $NVIDIA_KERNEL_MODULE == open ]]; then
        flags+=(-m=kernel-open)
    fi
    [[ ! -d /usr/src/kernels/$kernel ]] || flags+=(--kernel-source-path="/usr/src/kernels/$kernel")
    run=$(kiln_download NVIDIA_DRIVER)
    if ! sh "$run" "${flags[@]}" >&2; then
        tail -n 40 /var/log/nvidia-installer.log "/var/lib/dkms/nvidia/$NVIDIA_DRIVER_VERSION/build/make.log" >&2 2>/dev/null || true
        kiln_die "the driver installer failed for kernel $kernel" "its log is above"
    fi
    kiln_record "runfile=${run##*/}"
}

# Metapackages name only a minimum for what they pull in: hold all of the driver to one version.
pin_apt() {
    printf 'Package: *nvidia* libcuda1* cuda-drivers* libcudadebugger1 libnvcuvid1 libnvoptix1\nPin: version %s-*\nPin-Priority: 1001\n' \
        "$NVIDIA_DRIVER_VERSION" >/etc/apt/preferences.d/kiln-nvidia-driver
}

# Debian's own driver is in non-free.
enable_non_free() {
    local file
    for file in /etc/apt/sources.list /etc/apt/sources.list.d/*; do
        case $file in
            */nvidia-*) continue ;;
            *.sources) sed -i -E '/^Components:/{/non-free( |$)/!s/$/ contrib non-free non-free-firmware/}' "$file" ;;
            *) [[ ! -f $file ]] || sed -i -E '/^deb .* main/{/ non-free( |$)/!s/$/ contrib non-free non-free-firmware/}' "$file" ;;
        esac
    done
    kiln_refresh ""
}

install_packages() {
    local packages
    read -ra packages <<<"$NVIDIA_DRIVER_PACKAGES"
    mapfile -t names < <(kiln_names "${packages[@]}")
    kiln_unhold "${names[@]}"
    if [[ $KILN_FAMILY == debian ]]; then
        [[ $NVIDIA_DRIVER_SOURCE != distro || $KILN_DISTRO != debian* ]] || enable_non_free
        pin_apt
    elif dnf -q module list nvidia-driver >/dev/null 2>&1; then
        dnf -q -y module reset nvidia-driver >&2
        dnf -q -y module enable "nvidia-driver:$NVIDIA_DRIVER_STREAM" >&2 \
            || kiln_die "NVIDIA's repository has no module stream $NVIDIA_DRIVER_STREAM"
    fi
    kiln_install "${packages[@]}"
    # Everything of that version, not only what was asked for by name.
    if [[ $KILN_FAMILY == debian ]]; then
        mapfile -t names < <(dpkg-query -W -f '${db:Status-Abbrev}${Package} ${Version}\n' \
            | sed -n "s/^[hi]i *\([^ ]*\) \([0-9]*:\)\?${NVIDIA_DRIVER_VERSION//./\\.}-.*/\1/p" | sort -u)
    else
        mapfile -t names < <(rpm -qa --qf '%{NAME} %{VERSION}\n' \
            | awk -v version="$NVIDIA_DRIVER_VERSION" '$2 == version { print $1 }' | sort -u)
    fi
    kiln_hold "${names[@]}"
    kiln_record "packages+=${names[*]}"
}

case $NVIDIA_DRIVER_SOURCE in
    runfile) install_runfile ;;
    repo | distro) install_packages ;;
    *) kiln_die "unknown driver source $NVIDIA_DRIVER_SOURCE" "it is runfile, repo or distro" ;;
esac

# Packages build for the running kernel; in a container that is the host's.
if [[ -z $(module_field version) ]] && command -v dkms >/dev/null; then
    dkms autoinstall -k "$kernel" >&2 || true
fi
depmod "$kernel"
version=$(module_field version)
if [[ $version != "$NVIDIA_DRIVER_VERSION" ]]; then
    find /var/lib/dkms -name make.log -exec tail -n 40 {} + >&2 2>/dev/null || true
    kiln_die "the nvidia module for kernel $kernel is ${version:-missing}, not $NVIDIA_DRIVER_VERSION" \
        "the end of DKMS's log is above; kiln/knowledge/kernel_builds.yaml knows which pairs compile"
fi
vermagic=$(module_field vermagic)
[[ ${vermagic%% *} == "$kernel" ]] || kiln_die "the nvidia module was built for ${vermagic%% *}, not for $kernel"
case $(module_field license) in
    NVIDIA) flavour=proprietary ;;
    *GPL*) flavour=open ;;
    *) flavour=unknown ;;
esac
[[ $flavour == "$NVIDIA_KERNEL_MODULE" ]] || kiln_die "the nvidia module is $flavour, the recipe asks for $NVIDIA_KERNEL_MODULE"

# The runfile brings persistenced without a unit.
systemctl daemon-reload
[[ -n $(systemctl list-unit-files --no-legend nvidia-persistenced.service) ]] \
    || kiln_install_runtime etc/systemd/system/nvidia-persistenced.service
kiln_install_runtime opt/kiln/lib/gpu_boot usr/local/bin/kiln-gpu-boot \
    etc/systemd/system/kiln-gpu-boot.service etc/systemd/system/nvidia-persistenced.service.d
kiln_enable kiln-gpu-boot.service nvidia-persistenced.service
kiln_record "version=$version" "kernel=$kernel" "kernel_module=$flavour" "source=$NVIDIA_DRIVER_SOURCE"
