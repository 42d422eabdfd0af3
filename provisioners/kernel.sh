#!/usr/bin/env bash
# Current packages, the kernel that will boot with its headers, and the compiler that built it. Kernel
# modules are built against it later, so the instance reboots into it first.
#
#@ env KERNEL_PACKAGE           optional  package that brings the kernel to pin, name[=version]; empty: the newest
#@ env KERNEL_DEFAULT_PACKAGE   required  kernel for a parent image that has none, as in the lab
#@ env KERNEL_COMPILER_PACKAGE  optional  package of the kernel's compiler, where it is not named after the command
#@ env KERNEL_OS_PACKAGES       required  what the scripts need and DKMS builds with
# shellcheck source=provisioners/lib/kiln.sh
source "${KILN_DIR:?}/lib/kiln.sh"

kiln_wait_for_cloud_init
before=$(kiln_find_kernel) || exit 1
kiln_refresh
# The bake builds the modules, not the boot. From Ubuntu 24.04 and Debian 13 on the unit is before the network and after
# sysinit.target, and cloud-init between the two: systemd breaks that cycle by not starting cloud-init.
# https://github.com/canonical/cloud-init/issues/6487
systemctl mask dkms.service >&2 || kiln_die "systemctl cannot mask dkms.service"
if [[ $KILN_FAMILY == debian ]]; then
    kiln_pm dist-upgrade -y || kiln_die "the parent image cannot be brought up to date"
else
    # A parent such as ParallelCluster's has NVIDIA's repository, whose newest driver would take the place of
    # the parent's: what is NVIDIA's is the other scripts' work.
    kiln_pm upgrade --exclude='*nvidia*' --exclude='cuda*' --exclude='libcudnn*' --exclude='libnccl*' --exclude='nvlsm*' \
        --exclude='datacenter-gpu-manager*' || kiln_die "the parent image cannot be brought up to date"
    # Amazon Linux 2023 ships a GnuPG that cannot verify a detached signature by a key file.
    minimal=$(kiln_package_version gnupg2-minimal) || exit 1
    if [[ -n $minimal ]]; then
        kiln_pm swap gnupg2-minimal gnupg2-full || kiln_die "gnupg2-full cannot take gnupg2-minimal's place"
    fi
    # Amazon Linux 2 has DKMS in EPEL only.
    dkms=$(kiln_package_version dkms) || exit 1
    if [[ -z $dkms ]] && command -v amazon-linux-extras >/dev/null; then
        kiln_retry amazon-linux-extras install -y epel || kiln_die "amazon-linux-extras cannot install epel, which has DKMS"
    fi
fi
read -ra tools <<<"$KERNEL_OS_PACKAGES $KERNEL_COMPILER_PACKAGE"

if [[ -n $KERNEL_PACKAGE ]]; then
    # shellcheck disable=SC2086  # may be several packages
    kiln_install $KERNEL_PACKAGE
elif [[ -z $before ]]; then
    kiln_install "$KERNEL_DEFAULT_PACKAGE"
fi

# A pinned series may be older than a kernel of the parent image, and the boot loader takes the newest.
pin_kernel() {
    local name=${KERNEL_PACKAGE%%[ =]*} pinned disk
    if [[ $KILN_FAMILY == debian ]]; then
        pinned=$(apt-cache depends --installed --recurse --no-recommends --no-suggests --no-conflicts \
            --no-breaks --no-replaces --no-enhances "$name" | sed -n 's/^linux-image-\([0-9].*\)$/\1/p' | sort -V) \
            || kiln_die "apt-cache cannot tell which kernel $name brings"
    else
        pinned=$(rpm -q --qf '%{VERSION}-%{RELEASE}.%{ARCH}\n' "$name" | sort -V) || kiln_die "rpm cannot look up $name"
    fi
    pinned=${pinned##*$'\n'}
    [[ -n $pinned && -e /boot/vmlinuz-$pinned ]] || kiln_die "$KERNEL_PACKAGE brings no kernel" "name the package that does"
    printf '%s\n' "$pinned" >"$KILN_ETC/kernel" || kiln_die "$KILN_ETC/kernel cannot be written"
    if command -v grubby >/dev/null; then
        grubby --set-default "/boot/vmlinuz-$pinned" || kiln_die "grubby cannot make $pinned the default"
    elif command -v update-grub >/dev/null; then
        disk=$(findmnt -no UUID /) || kiln_die "findmnt does not print the UUID of /"
        printf 'GRUB_DEFAULT="gnulinux-advanced-%s>gnulinux-%s-advanced-%s"\n' "$disk" "$pinned" "$disk" \
            >/etc/default/grub.d/99-kiln.cfg || kiln_die "/etc/default/grub.d/99-kiln.cfg cannot be written"
        update-grub >&2 || kiln_die "update-grub failed"
    fi
}
rm -f "$KILN_ETC/kernel"
[[ -z $KERNEL_PACKAGE ]] || pin_kernel

boots=$(kiln_boot_kernel) || exit 1
held=()
if [[ $KILN_FAMILY == debian ]]; then
    kiln_install "${tools[@]}" "linux-headers-$boots"
    # 1: a pattern matches no package.
    listed=$(dpkg-query -W -f '${db:Status-Abbrev} ${Package}\n' 'linux-image*' 'linux-headers*' 'linux-aws*' 2>/dev/null) \
        || (($? == 1)) || kiln_die "dpkg-query cannot list the kernel's packages"
    while read -r state name; do
        [[ $state != [hi]i* || $name == *-dbg* || $name == *-common ]] || held+=("$name")
    done <<<"$listed"
else
    machine=$(uname -m) || kiln_die "uname does not print the architecture"
    package=$(kiln_kernel_package "$boots") || exit 1
    tools+=("$package-devel=${boots%."$machine"}")
    # gcc asks for the headers of any kernel, and dnf may have chosen those of another one for it, which would conflict:
    # https://github.com/amazonlinux/amazon-linux-2023/issues/1042
    rpm -q --quiet --whatprovides kernel-headers || tools+=("$package-headers")
    kiln_install "${tools[@]}"
    listed=$(rpm -qa --qf '%{NAME}\n' "$package" "$package-devel" "$package-headers" | sort -u) \
        || kiln_die "rpm cannot list the kernel's packages"
    read -ra held <<<"${listed//$'\n'/ }"
fi
((${#held[@]})) || kiln_die "the package tool does not know where $boots comes from"
kiln_hold "${held[@]}"

compiler=$(kiln_compiler "$boots") || exit 1
if [[ -z $KERNEL_COMPILER_PACKAGE && $compiler != gcc ]]; then
    # Debian names the package as the command (gcc-12); Amazon Linux has gcc14-gcc in gcc14.
    kiln_install "${compiler%-gcc}"
fi
kiln_record "version=$boots" "compiler=$compiler"

# A module built for a kernel that does not run cannot be tried: boot it now. New logins are refused at
# once, so that the next provisioner cannot slip in before the shutdown.
runs=$(uname -r) || kiln_die "uname does not print the running kernel"
if [[ $boots != "$before" ]] || { [[ $runs != "$boots" ]] && ! kiln_in_container; }; then
    kiln_say "rebooting from ${before:-no kernel} into $boots"
    touch /run/nologin
    # Not before this script has ended: its record is written last.
    setsid bash -c "while kill -0 $$; do sleep 0.1; done; sleep 0.3; systemctl reboot" </dev/null >/dev/null 2>&1 &
else
    kiln_say "$boots is the newest kernel and boots already; no reboot needed"
fi
