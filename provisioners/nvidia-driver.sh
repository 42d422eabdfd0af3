#!/usr/bin/env bash
# The NVIDIA driver at exactly the recipe's version, its kernel module built by DKMS now, for the kernel
# that will boot: a build at boot would cost every instance a minute.
#
#@ env      NVIDIA_DRIVER_VERSION   required  the driver's version
#@ env      NVIDIA_DRIVER_SOURCE    required  runfile, repo or distro
#@ env      NVIDIA_KERNEL_MODULE    required  proprietary, open or both
#@ env      NVIDIA_DRIVER_PACKAGES  optional  name=version …; empty for a runfile
#@ env      NVIDIA_DRIVER_STREAM    optional  module stream of dnf, where the repository has streams
#@ env      NVIDIA_OTHER_PACKAGES   optional  both: packages of the proprietary module alone; empty for a runfile
#@ env      NVIDIA_OTHER_STREAM     optional  both: module stream of the proprietary module
#@ download NVIDIA_DRIVER           optional  the runfile
# shellcheck source=provisioners/lib/kiln.sh
source "${KILN_DIR:?}/lib/kiln.sh"

kernel=$(kiln_assert_kernel) || exit 1
archive=/opt/kiln/modules/$kernel
# With both kinds of kernel module, the open one stays in /lib/modules: a GPU newer than this image needs it.
stays=$NVIDIA_KERNEL_MODULE
[[ $NVIDIA_KERNEL_MODULE != both ]] || stays=open

# nouveau must not take the GPU first.
printf 'blacklist nouveau\noptions nouveau modeset=0\n' >/etc/modprobe.d/kiln-nouveau.conf

# The module's DKMS name differs between branches and packagers.
kiln_dkms_compiler "$kernel" nvidia nvidia-open nvidia-current nvidia-current-open

# module_field FIELD: prints nothing when there is no module. Debian calls the file nvidia-current.ko and
# makes nvidia an alias.
module_field() {
    local name text status
    for name in nvidia nvidia-current; do
        status=0
        text=$(modinfo -k "$kernel" -F "$1" "$name" 2>/dev/null) || status=$?
        if ((status == 0)); then
            printf '%s\n' "$text"
            return 0
        fi
        # 1: there is no such module.
        ((status == 1)) || kiln_die "modinfo failed with status $status: the module's $1 is unknown"
    done
}

kind_of() { # LICENSE
    case $1 in
        NVIDIA) echo proprietary ;;
        *GPL*) echo open ;;
        *) echo unknown ;;
    esac
}

# ---------------------------------------------------------------- the runfile

install_runfile() { # KIND
    local run version license kind compiler flags=(--silent --dkms --no-questions --ui=none --no-x-check --no-nouveau-check --no-backup
        --kernel-name="$kernel" --tmpdir="$KILN_DIR")
    version=$(module_field version) || exit 1
    license=$(module_field license) || exit 1
    kind=$(kind_of "$license") || exit 1
    if [[ -x /usr/bin/nvidia-smi && $version == "$NVIDIA_DRIVER_VERSION" && $kind == "$1" ]]; then
        kiln_say "driver $NVIDIA_DRIVER_VERSION is installed already"
        return 0
    fi
    # The flag that chooses the kind of kernel module changed its name in branch 560.
    if ! kiln_version_lt "$NVIDIA_DRIVER_VERSION" 560; then
        flags+=(--kernel-module-type="$1")
    elif [[ $1 == open ]]; then
        flags+=(-m=kernel-open)
    fi
    # The other kind, installed before, has brought the rest of the driver.
    [[ $NVIDIA_KERNEL_MODULE != both || $1 != "$stays" ]] || flags+=(-K)
    [[ ! -d /usr/src/kernels/$kernel ]] || flags+=(--kernel-source-path="/usr/src/kernels/$kernel")
    run=$(kiln_download NVIDIA_DRIVER) || exit 1
    compiler=$(kiln_compiler "$kernel") || exit 1
    # The installer's own check of the compiler goes by CC.
    if ! CC=$compiler sh "$run" "${flags[@]}" >&2; then
        tail -n 40 /var/log/nvidia-installer.log "/var/lib/dkms/nvidia/$NVIDIA_DRIVER_VERSION/build/make.log" >&2 2>/dev/null || true
        kiln_die "the driver installer failed for kernel $kernel" "its log is above"
    fi
    kiln_record "runfile=${run##*/}"
}

# ---------------------------------------------------------------- packages

# Metapackages name only a minimum for what they pull in: hold all of the driver to one version.
pin_apt() {
    printf 'Package: *nvidia* libcuda1* cuda-drivers* libcudadebugger1 libnvcuvid1 libnvoptix1\nPin: version %s-*\nPin-Priority: 1001\n' \
        "$NVIDIA_DRIVER_VERSION" >/etc/apt/preferences.d/kiln-nvidia-driver || kiln_die "apt's preferences cannot be written"
}

# Debian's own driver is in non-free.
enable_non_free() {
    local file
    for file in /etc/apt/sources.list /etc/apt/sources.list.d/*; do
        [[ -f $file && $file != */nvidia-* ]] || continue
        case $file in
            *.sources) sed -i -E '/^Components:/{/non-free( |$)/!s/$/ contrib non-free non-free-firmware/}' "$file" ;;
            *) sed -i -E '/^deb .* main/{/ non-free( |$)/!s/$/ contrib non-free non-free-firmware/}' "$file" ;;
        esac || kiln_die "non-free cannot be enabled in $file"
    done
    kiln_refresh
}

choose_stream() { # STREAM
    # apt and Amazon Linux 2's yum know no streams.
    [[ $KILN_PACKAGE_MANAGER == dnf ]] || return 0
    if ! kiln_pm module list nvidia-driver; then
        # dnf's answer where no repository has streams of it. Any other failure hides them.
        grep -q "No matching Modules to list" "$KILN_DIR/package-tool.log" \
            || kiln_die "dnf cannot list the streams of nvidia-driver" "its own message is above"
        return 0
    fi
    kiln_pm module reset nvidia-driver || kiln_die "dnf cannot reset the module nvidia-driver"
    kiln_pm module enable "nvidia-driver:$1" || kiln_die "NVIDIA's repository has no module stream $1"
}

# Prints the names of the installed packages of the driver's version.
packages_of() { # VERSION
    local listed state name version
    if [[ $KILN_FAMILY == debian ]]; then
        listed=$(dpkg-query -W -f '${db:Status-Abbrev} ${Package} ${Version}\n' | sort -u) || kiln_die "dpkg-query cannot list the packages"
    else
        listed=$(rpm -qa --qf 'ii %{NAME} %{VERSION}-\n' | sort -u) || kiln_die "rpm cannot list the packages"
    fi
    while read -r state name version; do
        # Without the epoch.
        [[ $state != [hi]i* || ${version#*:} != "$1"-* ]] || printf '%s\n' "$name"
    done <<<"$listed"
}

# A parent AMI, or an earlier run, may hold a driver of another version: apt refuses to remove what is held, and
# dnf to move it. All of that version is released.
release_packages() {
    local owner version listed
    owner=$(smi_owner) || exit 1
    [[ -n $owner ]] || return 0
    version=$(kiln_package_version "$owner") || exit 1
    version=${version#*:}
    listed=$(packages_of "${version%-*}") || exit 1
    # shellcheck disable=SC2086  # a list of names
    [[ -z $listed ]] || kiln_unhold $listed
}

# ---------------------------------------------------------------- one kind of kernel module, or both

# The bake stops when the module is not built for that kernel, of that version and kind.
assert_module() { # KIND
    local version vermagic license kind
    version=$(module_field version) || exit 1
    # Packages build for the running kernel; in a container that is the host's.
    if [[ -z $version ]] && command -v dkms >/dev/null; then
        # What it did not build is missing below.
        dkms autoinstall -k "$kernel" >&2 || true
    fi
    depmod "$kernel" || kiln_die "depmod failed for $kernel"
    version=$(module_field version) || exit 1
    if [[ $version != "$NVIDIA_DRIVER_VERSION" ]]; then
        find /var/lib/dkms -name make.log -exec tail -n 40 {} + >&2 2>/dev/null || true
        kiln_die "the $1 nvidia module for kernel $kernel is ${version:-missing}, not $NVIDIA_DRIVER_VERSION" \
            "the end of DKMS's log is above; kiln/facts/knowledge/kernel_builds.yaml knows which pairs compile"
    fi
    vermagic=$(module_field vermagic) || exit 1
    [[ ${vermagic%% *} == "$kernel" ]] || kiln_die "the nvidia module was built for ${vermagic%% *}, not for $kernel"
    license=$(module_field license) || exit 1
    kind=$(kind_of "$license") || exit 1
    [[ $kind == "$1" ]] || kiln_die "the nvidia module is $kind, the recipe asks for $1"
}

# The modules of a kind as they lie below /lib/modules/KERNEL: kiln-gpu-boot only copies them back.
keep_modules() { # KIND
    local file files folder
    rm -rf "${archive:?}/$1" || kiln_die "$archive/$1 cannot be removed"
    file=$(module_field filename) || exit 1
    [[ $file == /* ]] || kiln_die "modinfo does not say where the $1 module is"
    folder=${file%/*}
    files=$(find "$folder" -maxdepth 1 -type f -name 'nvidia*.ko*') || kiln_die "$folder cannot be listed"
    while read -r file; do
        install -D -m 0644 "$file" "$archive/$1/${file#"/lib/modules/$kernel/"}" || kiln_die "$file cannot be kept in $archive"
    done <<<"$files"
}

# Prints nothing when the kind is not kept.
kept_version() { # KIND
    local file
    [[ -d $archive/$1 ]] || return 0
    file=$(find "$archive/$1" \( -name 'nvidia.ko*' -o -name 'nvidia-current.ko*' \) -print -quit) || kiln_die "$archive cannot be listed"
    [[ -z $file ]] || modinfo -F version "$file" || kiln_die "modinfo cannot read $file"
}

install_kind() { # KIND PACKAGES STREAM
    if [[ $NVIDIA_DRIVER_SOURCE == runfile ]]; then
        install_runfile "$1"
    else
        choose_stream "$3"
        # shellcheck disable=SC2086  # a list of names
        kiln_install $2
    fi
    assert_module "$1"
}

# The other kind in the same way: built by DKMS, kept, and removed again.
bake_other_kind() { # KIND
    local packages version
    version=$(kept_version "$1") || exit 1
    if [[ $version == "$NVIDIA_DRIVER_VERSION" ]]; then
        kiln_say "the $1 module is kept already"
        return 0
    fi
    kiln_say "building the $1 module, to be kept in $archive"
    install_kind "$1" "$NVIDIA_OTHER_PACKAGES" "$NVIDIA_OTHER_STREAM"
    keep_modules "$1"
    read -ra packages <<<"$NVIDIA_OTHER_PACKAGES"
    if [[ $NVIDIA_DRIVER_SOURCE == runfile ]]; then
        dkms remove "nvidia/$NVIDIA_DRIVER_VERSION" --all >&2 && rm -rf "/usr/src/nvidia-$NVIDIA_DRIVER_VERSION"
    elif [[ $KILN_FAMILY == debian ]]; then
        kiln_pm purge -y "${packages[@]%%=*}"
    else
        kiln_pm remove "${packages[@]%%=*}"
    fi || kiln_die "the $1 module cannot be removed again"
    depmod "$kernel" || kiln_die "depmod failed for $kernel"
    version=$(module_field version) || exit 1
    [[ -z $version ]] || kiln_die "the $1 module is still in /lib/modules/$kernel" \
        "while it is there, modprobe may load it instead of the $stays module"
}

# Ubuntu's persistenced is started without persistence mode: a GPU that nothing uses would be shut down, and
# lose its clocks and its MIG devices. It gets the package's own command but for that.
decide_persistence() {
    local text start drop_in=etc/systemd/system/nvidia-persistenced.service.d/20-kiln-persistence.conf
    rm -f "/$drop_in" || kiln_die "/$drop_in cannot be removed"
    text=$(systemctl cat nvidia-persistenced.service) || kiln_die "systemd does not know nvidia-persistenced.service"
    start=$(sed -n 's/^ExecStart=\(.\)/\1/p' <<<"$text") || kiln_die "sed failed"
    start=${start##*$'\n'}
    [[ $start == *' --no-persistence-mode'* ]] || return 0
    printf '# The package starts it with --no-persistence-mode.\n[Service]\nExecStart=\nExecStart=%s\n' \
        "${start/ --no-persistence-mode/}" >"/$drop_in" || kiln_die "/$drop_in cannot be written"
    kiln_record "files+=/$drop_in"
}

# The initramfs is older than the ban of nouveau, and may have the parent's nvidia module.
rebuild_initramfs() {
    local boot=${KILN_ROOT:-}/boot
    if [[ -e $boot/initrd.img-$kernel ]]; then
        update-initramfs -u -k "$kernel" >&2 || kiln_die "update-initramfs failed for $kernel"
    elif [[ -e $boot/initramfs-$kernel.img ]]; then
        dracut --force --omit-drivers nouveau "$boot/initramfs-$kernel.img" "$kernel" >&2 || kiln_die "dracut failed for $kernel"
    fi
}

# Prints the name of the package that nvidia-smi belongs to; nothing when it belongs to none, or is not there.
smi_owner() {
    local program owner
    [[ -e /usr/bin/nvidia-smi ]] || return 0
    # Debian's is a link of its alternatives.
    program=$(readlink -f /usr/bin/nvidia-smi) || kiln_die "/usr/bin/nvidia-smi is a broken link"
    # 1: no package owns it.
    if [[ $KILN_FAMILY == debian ]]; then
        owner=$(dpkg-query -S "$program" 2>/dev/null) || (($? == 1)) || kiln_die "dpkg-query cannot look up $program"
        owner=${owner%%[:,]*}
    else
        owner=$(rpm -qf --qf '%{NAME}\n' "$program" 2>/dev/null) || (($? == 1)) || kiln_die "rpm cannot look up $program"
        [[ $owner != *'not owned'* ]] || owner=
    fi
    printf '%s\n' "${owner%%$'\n'*}"
}

# Two drivers on one machine: the parent's stays in the loader's way, whatever is installed over it.
refuse_other_kind() {
    local owner
    [[ -e /usr/bin/nvidia-smi ]] || return 0
    owner=$(smi_owner) || exit 1
    if [[ $NVIDIA_DRIVER_SOURCE == runfile && -n $owner ]]; then
        kiln_die "the parent AMI has a driver in packages ($owner)" \
            "a runfile would be laid over it: use driver_source: repo, or a parent AMI without a driver"
    fi
    if [[ $NVIDIA_DRIVER_SOURCE != runfile && -z $owner ]]; then
        [[ -x /usr/bin/nvidia-uninstall ]] || kiln_die "/usr/bin/nvidia-smi belongs to no package, and there is no nvidia-uninstall" \
            "use a parent AMI without a driver"
        kiln_say "removing the parent's driver, which came from a runfile"
        nvidia-uninstall --silent >&2 || kiln_die "nvidia-uninstall failed" "use a parent AMI without a driver"
    fi
}

refuse_other_kind
if [[ $NVIDIA_DRIVER_SOURCE != runfile ]]; then
    [[ $NVIDIA_DRIVER_SOURCE != distro || $KILN_DISTRO != debian* ]] || enable_non_free
    [[ $KILN_FAMILY != debian ]] || pin_apt
    release_packages
fi
[[ $NVIDIA_KERNEL_MODULE != both ]] || bake_other_kind proprietary
install_kind "$stays" "$NVIDIA_DRIVER_PACKAGES" "$NVIDIA_DRIVER_STREAM"
if [[ $NVIDIA_DRIVER_SOURCE != runfile ]]; then
    # Everything of that version, not only what was asked for by name.
    listed=$(packages_of "$NVIDIA_DRIVER_VERSION") || exit 1
    [[ -n $listed ]] || kiln_die "no installed package has the version $NVIDIA_DRIVER_VERSION"
    # shellcheck disable=SC2086  # a list of names
    kiln_hold $listed
    kiln_record "packages+=${listed//$'\n'/ }"
fi

if [[ $NVIDIA_KERNEL_MODULE == both ]]; then
    keep_modules open
    proprietary=$(cd "$archive/proprietary" && find . -type f | sort) || kiln_die "$archive/proprietary cannot be listed"
    open=$(cd "$archive/open" && find . -type f | sort) || kiln_die "$archive/open cannot be listed"
    [[ $proprietary == "$open" ]] || kiln_die "the two kinds have different kernel modules: proprietary $proprietary; open $open" \
        "one could not take the other's place at boot"
    kiln_install_runtime etc/modprobe.d/kiln-gpu-select.conf
    kiln_install_units kiln-gpu-select.service
    kiln_enable kiln-gpu-select.service
    kiln_record "archive=$archive" "kept+=proprietary open"
fi

rebuild_initramfs

# The runfile brings persistenced without a unit.
kiln_unit_exists nvidia-persistenced.service || kiln_install_units nvidia-persistenced.service
kiln_install_runtime opt/kiln/lib/gpu_common opt/kiln/lib/gpu_boot usr/local/bin/kiln-gpu-boot usr/local/bin/kiln-gpu-gate \
    etc/systemd/system/nvidia-persistenced.service.d
kiln_install_units kiln-gpu-boot.service
# What joins a cluster asks the gate first. ParallelCluster writes slurmd's unit at the node's first boot.
kiln_install_runtime etc/systemd/system/kubelet.service.d etc/systemd/system/ecs.service.d etc/systemd/system/slurmd.service.d
decide_persistence
kiln_enable kiln-gpu-boot.service nvidia-persistenced.service
kiln_record "version=$NVIDIA_DRIVER_VERSION" "kernel=$kernel" "kernel_module=$NVIDIA_KERNEL_MODULE" "source=$NVIDIA_DRIVER_SOURCE"
