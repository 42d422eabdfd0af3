# shellcheck shell=bash
# The kernel that will boot, and modules for it. Part of kiln.sh.
set -euo pipefail

# kiln_find_kernel: prints the kernel that the boot loader takes, whichever runs now: the one that kernel.sh
# pinned, or the newest installed. Prints nothing when none is installed.
kiln_find_kernel() {
    local kernel='' file
    if [[ -s $KILN_ETC/kernel ]]; then
        kernel=$(<"$KILN_ETC/kernel") || kiln_die "$KILN_ETC/kernel cannot be read"
    elif command -v grubby >/dev/null; then
        # It fails where there is no boot loader, as in a container. Elsewhere the newest kernel need not be
        # the one that boots.
        kernel=$(grubby --default-kernel 2>/dev/null) || kiln_in_container \
            || kiln_die "grubby does not name the kernel that boots"
        kernel=${kernel##*/vmlinuz-}
    fi
    if [[ -z $kernel ]]; then
        for file in "${KILN_ROOT:-}"/boot/vmlinuz-[0-9]*; do
            [[ ! -e $file ]] || kernel+=${file##*/vmlinuz-}$'\n'
        done
        kernel=$(sort -V <<<"${kernel%$'\n'}") || kiln_die "the installed kernels cannot be sorted"
        kernel=${kernel##*$'\n'}
    fi
    printf '%s\n' "$kernel"
}

# kiln_boot_kernel: prints the kernel that will boot.
kiln_boot_kernel() {
    local kernel
    kernel=$(kiln_find_kernel) || exit 1
    [[ -n $kernel ]] || kiln_die "no kernel is installed" "kernel.sh must run first"
    printf '%s\n' "$kernel"
}

# kiln_kernel_package KERNEL: prints the name of the package that brings it, on Amazon Linux: kernel6.12.
kiln_kernel_package() {
    local package
    # No package may own the file, as in the lab.
    if ! package=$(rpm -qf --qf '%{NAME}' "${KILN_ROOT:-}/boot/vmlinuz-$1" 2>/dev/null); then
        kiln_in_container || kiln_die "rpm does not know which package brings the kernel $1"
        package=kernel
    fi
    printf '%s\n' "${package%-core}"
}

# kiln_kernel_module KERNEL MODULE: the module is there for that kernel, from the package with the kernel's
# further modules if need be, which is then held like the kernel.
kiln_kernel_module() {
    local package machine
    if modinfo -k "$1" -F filename "$2" >/dev/null 2>&1; then return 0; fi
    if [[ $KILN_FAMILY == debian ]]; then
        package=linux-modules-extra-$1
        kiln_install "$package"
    else
        machine=$(uname -m) || kiln_die "uname does not print the architecture"
        package=$(kiln_kernel_package "$1") || exit 1
        package+=-modules-extra
        kiln_install "$package=${1%."$machine"}"
    fi
    kiln_hold "$package"
    depmod "$1" || kiln_die "depmod failed for $1"
    modinfo -k "$1" -F filename "$2" >/dev/null 2>&1 || kiln_die "the kernel $1 has no module $2" \
        "$package does not bring it either"
}

# kiln_assert_kernel: prints the kernel that will boot. Modules are built for it, so it must be the one that
# runs, and its headers must be installed.
kiln_assert_kernel() {
    local boots runs
    boots=$(kiln_boot_kernel) || exit 1
    runs=$(uname -r) || kiln_die "uname does not print the running kernel"
    kiln_in_container || [[ $runs == "$boots" ]] \
        || kiln_die "$runs runs, but $boots will boot" "the reboot after kernel.sh did not happen"
    [[ -e ${KILN_ROOT:-}/lib/modules/$boots/build || -e ${KILN_ROOT:-}/usr/src/kernels/$boots ]] \
        || kiln_die "there are no headers for $boots" "kernel.sh installs them"
    printf '%s\n' "$boots"
}

# kiln_compiler KERNEL: prints the command that built it, as the kernel's own configuration says; gcc where
# there is no configuration.
kiln_compiler() {
    local root=${KILN_ROOT:-} config text
    for config in "$root/boot/config-$1" "$root/lib/modules/$1/build/.config" "$root/usr/src/kernels/$1/.config"; do
        [[ -e $config ]] || continue
        # 1: no such line.
        text=$(grep '^CONFIG_CC_VERSION_TEXT="' "$config") || (($? == 1)) || kiln_die "$config cannot be read"
        [[ -n $text ]] || continue
        text=${text#*\"}
        text=${text%%[ \"]*}
        text=${text#x86_64-linux-gnu-}
        printf '%s\n' "${text#aarch64-linux-gnu-}"
        return 0
    done
    printf 'gcc\n'
}

# kiln_dkms_version KERNEL MODULE: prints the version of the module that DKMS has installed for that kernel;
# nothing when it has none.
kiln_dkms_version() {
    local listed line
    listed=$(dkms status -m "$2") || kiln_die "dkms does not list its modules"
    while read -r line; do
        # 3.x: efa/3.3.1, 6.1.170-210.320.amzn2023.x86_64, x86_64: installed; before: efa, 3.3.1, …
        [[ $line == *", $1, "*": installed"* ]] || continue
        line=${line%%", $1, "*}
        line=${line#"$2"[/,]}
        printf '%s\n' "${line# }"
    done <<<"$listed"
}

# kiln_dkms_compiler KERNEL MODULE…: where a command other than gcc built the kernel, DKMS must use it for
# these modules, now and for any rebuild. DKMS drops CC from its environment, and 3.x takes no `export CC`
# from a configuration file. 2.x and 3.x both read /etc/dkms/MODULE.conf after the module's dkms.conf, so
# the compiler is appended to whatever make command the module has, or to DKMS's default.
# (A make command written anew would lose NVIDIA's quotes around 'make': they keep DKMS from adding
# KERNELRELEASE, which NVIDIA's Makefile takes for a call by the kernel's own build.)
kiln_dkms_compiler() {
    local kernel=$1 compiler module conf
    shift
    compiler=$(kiln_compiler "$kernel") || exit 1
    for module in "$@"; do
        conf=${KILN_ROOT:-}/etc/dkms/$module.conf
        if [[ $compiler == gcc ]]; then
            rm -f "$conf" || kiln_die "$conf cannot be removed"
            continue
        fi
        mkdir -p "${conf%/*}" || kiln_die "the folder ${conf%/*} cannot be made"
        # DKMS fills in what is between the quotes.
        # shellcheck disable=SC2016
        printf 'MAKE[0]="${MAKE[0]:-make -C $kernel_source_dir M=$dkms_tree/$module/$module_version/build} CC=%s"\n' \
            "$compiler" >"$conf" || kiln_die "$conf cannot be written"
    done
}
