#!/usr/bin/env bash
# Current packages, the kernel that will boot with its headers, and the compiler that built it. Kernel
# modules are built against it later, so the instance reboots into it first.
export KILN_COMPONENT=kernel
# shellcheck source=provisioners/lib/kiln.sh
source "${KILN_DIR:?}/lib/kiln.sh"

# cloud-init may still be writing package sources.
if command -v cloud-init >/dev/null; then
    timeout 300 cloud-init status --wait >/dev/null || kiln_say "cloud-init did not end well; going on"
fi

before=$(kiln_boot_kernel 2>/dev/null) || before=
kiln_refresh
if [[ $KILN_FAMILY == debian ]]; then
    _kiln_pm dist-upgrade -y || kiln_die "the parent image cannot be brought up to date"
    tools=(python3 gnupg ca-certificates curl xz-utils bzip2 pciutils kmod gcc make patch dkms libc6-dev)
else
    _kiln_pm upgrade || kiln_die "the parent image cannot be brought up to date"
    tools=(python3 xz bzip2 tar gzip pciutils kmod gcc make patch elfutils-libelf-devel dkms)
    # Amazon Linux 2023 ships a GnuPG that cannot verify a detached signature by a key file.
    if [[ -n $(kiln_package_version gnupg2-minimal) ]]; then
        _kiln_pm swap gnupg2-minimal gnupg2-full || kiln_die "gnupg2-full cannot take gnupg2-minimal's place"
    fi
    # Amazon Linux 2 has DKMS in EPEL only.
    if [[ -z $(kiln_package_version dkms) ]] && command -v amazon-linux-extras >/dev/null; then
        amazon-linux-extras install -y epel >&2
    fi
fi
[[ -z $KERNEL_COMPILER_PACKAGE ]] || tools+=("$KERNEL_COMPILER_PACKAGE")

if [[ -n $KERNEL_PACKAGE ]]; then
    # shellcheck disable=SC2086  # may be several packages
    kiln_install $KERNEL_PACKAGE
elif [[ -z $before ]]; then
    kiln_install "$KERNEL_DEFAULT_PACKAGE"
fi

# A pinned series may be older than a kernel the parent image has: name it, the newest would boot else.
pin_kernel() {
    local name=${KERNEL_PACKAGE%%[ =]*} pinned
    if [[ $KILN_FAMILY == debian ]]; then
        pinned=$(apt-cache depends --installed --recurse --no-recommends --no-suggests --no-conflicts \
            --no-breaks --no-replaces --no-enhances "$name" | sed -n 's/^linux-image-\([0-9].*\)$/\1/p' | sort -V | tail -n 1)
    else
        pinned=$(rpm -q --qf '%{VERSION}-%{RELEASE}.%{ARCH}\n' "$name" | sort -V | tail -n 1)
    fi
    [[ -e /boot/vmlinuz-$pinned ]] || kiln_die "$KERNEL_PACKAGE brings no kernel" "name the package that does"
    printf '%s\n' "$pinned" >"$KILN_ETC/kernel"
    if command -v grubby >/dev/null; then
        grubby --set-default "/boot/vmlinuz-$pinned"
    elif command -v update-grub >/dev/null; then
        printf 'GRUB_DEFAULT="gnulinux-advanced-%s>gnulinux-%s-advanced-%s"\n' \
            "$(findmnt -no UUID /)" "$pinned" "$(findmnt -no UUID /)" >/etc/default/grub.d/99-kiln.cfg
        update-grub >&2
    fi
}
rm -f "$KILN_ETC/kernel"
[[ -z $KERNEL_PACKAGE ]] || pin_kernel

boots=$(kiln_boot_kernel)
if [[ $KILN_FAMILY == debian ]]; then
    kiln_install "${tools[@]}" "linux-headers-$boots"
    mapfile -t held < <(dpkg-query -W -f '${db:Status-Abbrev}${Package}\n' 'linux-image*' 'linux-headers*' 'linux-aws*' \
        2>/dev/null | sed -n 's/^[hi]i *//p' | grep -Ev -- '-dbg|-common$' || true)
else
    package=$(rpm -qf --qf '%{NAME}' "/boot/vmlinuz-$boots" 2>/dev/null) || package=kernel
    package=${package%-core}
    kiln_install "${tools[@]}" "$package-devel=${boots%."$(uname -m)"}" "$package-headers"
    mapfile -t held < <(rpm -qa --qf '%{NAME}\n' "$package" "$package-devel" "$package-headers" | sort -u)
fi
((${#held[@]})) || kiln_die "the package tool does not know where $boots comes from"
kiln_hold "${held[@]}"

compiler=$(kiln_compiler "$boots")
if [[ -z $KERNEL_COMPILER_PACKAGE && $compiler != gcc ]]; then
    # Debian names the package as the command (gcc-12); Amazon Linux has gcc14-gcc in gcc14.
    kiln_install "${compiler%-gcc}"
fi
kiln_record "version=$boots" "compiler=$compiler"

# A module built for a kernel that does not run cannot be tried: boot it now. New logins are refused at
# once, so that the next provisioner cannot slip in before the shutdown.
if [[ $boots != "$before" ]] || { ! kiln_in_container && [[ $(uname -r) != "$boots" ]]; }; then
    kiln_say "rebooting from ${before:-no kernel} into $boots"
    touch /run/nologin
    setsid bash -c 'sleep 0.5; systemctl reboot' </dev/null >/dev/null 2>&1 &
else
    kiln_say "$boots is the newest kernel and boots already; no reboot needed"
fi
