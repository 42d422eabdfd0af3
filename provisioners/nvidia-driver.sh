#!/usr/bin/env bash
# The NVIDIA driver at exactly the recipe's version, its kernel module built by DKMS now, for the kernel
# that will boot: a build at boot would cost every instance a minute.
export KILN_COMPONENT=nvidia-driver
# shellcheck source=provisioners/lib/kiln.sh
source "${KILN_DIR:?}/lib/kiln.sh"

kernel=$(kiln_assert_kernel)
archive=/opt/kiln/modules/$kernel
# With both flavours the open one stays in /lib/modules: it is what a GPU newer than this image needs.
stays=$NVIDIA_KERNEL_MODULE
[[ $NVIDIA_KERNEL_MODULE != both ]] || stays=open

# nouveau must not take the GPU first.
printf 'blacklist nouveau\noptions nouveau modeset=0\n' >/etc/modprobe.d/kiln-nouveau.conf

# The module's DKMS name has been several things.
kiln_dkms_compiler "$kernel" nvidia nvidia-open nvidia-current nvidia-current-open

# Debian calls the file nvidia-current.ko and makes nvidia an alias.
module_field() {
    modinfo -k "$kernel" -F "$1" nvidia 2>/dev/null || modinfo -k "$kernel" -F "$1" nvidia-current 2>/dev/null || true
}

flavour_of() { # LICENSE
    case $1 in
        NVIDIA) echo proprietary ;;
        *GPL*) echo open ;;
        *) echo unknown ;;
    esac
}

# ---------------------------------------------------------------- the runfile

install_runfile() { # FLAVOUR
    local run flags=(--silent --dkms --no-questions --ui=none --no-x-check --no-nouveau-check --no-backup
        --kernel-name="$kernel" --tmpdir="$KILN_DIR")
    if [[ -x /usr/bin/nvidia-smi && $(module_field version) == "$NVIDIA_DRIVER_VERSION" && $(flavour_of "$(module_field license)") == "$1" ]]; then
        kiln_say "driver $NVIDIA_DRIVER_VERSION is there already"
        return
    fi
    # The flag that chooses the module's flavour changed its name in branch 560.
    if ! kiln_version_lt "$NVIDIA_DRIVER_VERSION" 560; then
        flags+=(--kernel-module-type="$1")
    elif [[ $1 == open ]]; then
        flags+=(-m=kernel-open)
    fi
    # The other flavour has brought the rest of the driver.
    [[ $NVIDIA_KERNEL_MODULE != both || $1 != "$stays" ]] || flags+=(-K)
    [[ ! -d /usr/src/kernels/$kernel ]] || flags+=(--kernel-source-path="/usr/src/kernels/$kernel")
    run=$(kiln_download NVIDIA_DRIVER)
    # Its own look at the compiler goes by CC.
    if ! CC=$(kiln_compiler "$kernel") sh "$run" "${flags[@]}" >&2; then
        tail -n 40 /var/log/nvidia-installer.log "/var/lib/dkms/nvidia/$NVIDIA_DRIVER_VERSION/build/make.log" >&2 2>/dev/null || true
        kiln_die "the driver installer failed for kernel $kernel" "its log is above"
    fi
    kiln_record "runfile=${run##*/}"
}

# ---------------------------------------------------------------- packages

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
    kiln_refresh
}

prepare_packages() {
    [[ $KILN_FAMILY == debian ]] || return 0
    [[ $NVIDIA_DRIVER_SOURCE != distro || $KILN_DISTRO != debian* ]] || enable_non_free
    pin_apt
}

choose_stream() { # STREAM
    if [[ $KILN_FAMILY != debian ]] && dnf -q module list nvidia-driver >/dev/null 2>&1; then
        dnf -q -y module reset nvidia-driver >&2
        dnf -q -y module enable "nvidia-driver:$1" >&2 || kiln_die "NVIDIA's repository has no module stream $1"
    fi
}

# Everything of that version, not only what was asked for by name.
hold_packages() {
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

install_packages() {
    local packages
    read -ra packages <<<"$NVIDIA_DRIVER_PACKAGES"
    mapfile -t names < <(kiln_names "${packages[@]}")
    kiln_unhold "${names[@]}"
    choose_stream "$NVIDIA_DRIVER_STREAM"
    kiln_install "${packages[@]}"
    hold_packages
}

# ---------------------------------------------------------------- one flavour, or both

# Built for that kernel, of that version and flavour, or the bake stops.
assert_module() { # FLAVOUR
    local version vermagic flavour
    # Packages build for the running kernel; in a container that is the host's.
    if [[ -z $(module_field version) ]] && command -v dkms >/dev/null; then
        dkms autoinstall -k "$kernel" >&2 || true
    fi
    depmod "$kernel"
    version=$(module_field version)
    if [[ $version != "$NVIDIA_DRIVER_VERSION" ]]; then
        find /var/lib/dkms -name make.log -exec tail -n 40 {} + >&2 2>/dev/null || true
        kiln_die "the $1 nvidia module for kernel $kernel is ${version:-missing}, not $NVIDIA_DRIVER_VERSION" \
            "the end of DKMS's log is above; kiln/facts/knowledge/kernel_builds.yaml knows which pairs compile"
    fi
    vermagic=$(module_field vermagic)
    [[ ${vermagic%% *} == "$kernel" ]] || kiln_die "the nvidia module was built for ${vermagic%% *}, not for $kernel"
    flavour=$(flavour_of "$(module_field license)")
    [[ $flavour == "$1" ]] || kiln_die "the nvidia module is $flavour, the recipe asks for $1"
}

# A flavour's modules as they lie below /lib/modules/KERNEL: kiln-gpu-boot has only to copy them back.
keep_flavour() { # FLAVOUR
    local file
    rm -rf "${archive:?}/$1"
    while read -r file; do
        install -D -m 0644 "$file" "$archive/$1/${file#"/lib/modules/$kernel/"}"
    done < <(find "$(dirname "$(module_field filename)")" -maxdepth 1 -type f -name 'nvidia*.ko*')
}

kept_version() { # FLAVOUR
    local file
    file=$(find "$archive/$1" \( -name 'nvidia.ko*' -o -name 'nvidia-current.ko*' \) 2>/dev/null | head -n 1)
    [[ -z $file ]] || modinfo -F version "$file"
}

# The other flavour by the same way, built by DKMS, kept, and taken off again.
bake_other_flavour() { # FLAVOUR
    local packages
    if [[ $(kept_version "$1") == "$NVIDIA_DRIVER_VERSION" ]]; then
        kiln_say "the $1 module is kept already"
        return
    fi
    kiln_say "building the $1 module, to be kept in $archive"
    if [[ $NVIDIA_DRIVER_SOURCE == runfile ]]; then
        install_runfile "$1"
        assert_module "$1"
        keep_flavour "$1"
        dkms remove "nvidia/$NVIDIA_DRIVER_VERSION" --all >&2
        rm -rf "/usr/src/nvidia-$NVIDIA_DRIVER_VERSION"
    else
        read -ra packages <<<"$NVIDIA_OTHER_PACKAGES"
        mapfile -t names < <(kiln_names "${packages[@]}")
        choose_stream "$NVIDIA_OTHER_STREAM"
        kiln_install "${packages[@]}"
        assert_module "$1"
        keep_flavour "$1"
        if [[ $KILN_FAMILY == debian ]]; then
            _kiln_pm purge -y "${names[@]}"
        else
            _kiln_pm remove "${names[@]}"
        fi || kiln_die "$KILN_PACKAGE_MANAGER cannot take off ${names[*]} again"
    fi
    depmod "$kernel"
    [[ -z $(module_field version) ]] || kiln_die "the $1 module is still in /lib/modules/$kernel" \
        "the $stays one could not be told from it"
}

case $NVIDIA_DRIVER_SOURCE in
    runfile) ;;
    repo | distro) prepare_packages ;;
    *) kiln_die "unknown driver source $NVIDIA_DRIVER_SOURCE" "it is runfile, repo or distro" ;;
esac
[[ $NVIDIA_KERNEL_MODULE != both ]] || bake_other_flavour proprietary
if [[ $NVIDIA_DRIVER_SOURCE == runfile ]]; then
    install_runfile "$stays"
else
    install_packages
fi
assert_module "$stays"

if [[ $NVIDIA_KERNEL_MODULE == both ]]; then
    keep_flavour open
    others=$(diff <(cd "$archive/proprietary" && find . -type f | sort) <(cd "$archive/open" && find . -type f | sort)) \
        || kiln_die "the flavours do not have the same modules: ${others//$'\n'/ }" "one could not take the other's place at boot"
    kiln_install_runtime etc/systemd/system/kiln-gpu-select.service etc/modprobe.d/kiln-gpu-select.conf
    kiln_record "archive=$archive" "kept+=proprietary open"
fi

# The runfile brings persistenced without a unit.
[[ -n $(systemctl list-unit-files --no-legend nvidia-persistenced.service) ]] \
    || kiln_install_runtime etc/systemd/system/nvidia-persistenced.service
kiln_install_runtime opt/kiln/lib/gpu_boot usr/local/bin/kiln-gpu-boot \
    etc/systemd/system/kiln-gpu-boot.service etc/systemd/system/nvidia-persistenced.service.d
kiln_enable kiln-gpu-boot.service nvidia-persistenced.service
[[ $NVIDIA_KERNEL_MODULE != both ]] || kiln_enable kiln-gpu-select.service
kiln_record "version=$NVIDIA_DRIVER_VERSION" "kernel=$kernel" "kernel_module=$NVIDIA_KERNEL_MODULE" "source=$NVIDIA_DRIVER_SOURCE"
