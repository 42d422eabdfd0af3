# shellcheck shell=bash
# What all provisioners share. Source it with: source "$KILN_DIR/lib/kiln.sh"
#
#   kiln_install name[=version[@build]]…   packages at exactly that upstream version
#   kiln_hold name…                        keep an unattended upgrade from moving them
#   kiln_lock_held                         the end of it where the package tool takes a second a call
#   kiln_download X                        fetch X_URL, check X_SHA256; prints the file's path
#   kiln_check_key FILE FINGERPRINT        a key file holds that key and no other
#   kiln_check_signature FILE SIG KEY FPR  a detached signature by exactly that key
#   kiln_repo_key FILE FPR NAME            hand a checked key to the package manager
#   kiln_dkms_compiler KERNEL MODULE…      DKMS builds these modules with that kernel's compiler
#   kiln_boot_kernel                       the kernel that will boot, as in `uname -r`
#   kiln_install_runtime path…             files that ship on the AMI, from runtime/
#   kiln_install_files path…               files rendered for this recipe, from files/
#   kiln_record key=value…                 what this component put on the image
set -euo pipefail

: "${KILN_DIR:?}" "${KILN_DISTRO:?}" "${KILN_FAMILY:?}" "${KILN_PACKAGE_MANAGER:?}" "${KILN_ARCH:?}" "${KILN_COMPONENT:?}"
KILN_ETC=${KILN_ETC:-/etc/kiln}
export DEBIAN_FRONTEND=noninteractive NEEDRESTART_MODE=a LC_ALL=C
mkdir -p "$KILN_ETC/components"

kiln_say() { printf 'kiln: %s: %s\n' "$KILN_COMPONENT" "$*" >&2; }

# kiln_die MESSAGE [HINT]: stop the bake with one clear message.
kiln_die() {
    printf 'kiln: %s: ERROR: %s\n' "$KILN_COMPONENT" "$1" >&2
    [[ -z ${2:-} ]] || printf 'kiln: %s:   %s\n' "$KILN_COMPONENT" "$2" >&2
    exit 1
}

# In a container (the lab) the kernel is the host's: it says nothing about the one that will boot.
kiln_in_container() { systemd-detect-virt --quiet --container; }

# kiln_systemd_version: the major version, 219 on Amazon Linux 2.
kiln_systemd_version() { systemctl --version | awk 'NR == 1 { print $2 + 0 }'; }

# kiln_version_lt A B: is A an older version than B? Numeric, field by field.
kiln_version_lt() { [[ $1 != "$2" && $(printf '%s\n%s\n' "$1" "$2" | sort -V | head -n 1) == "$1" ]]; }

# ---------------------------------------------------------------- packages

# One run of the package tool, tried again when a mirror hiccups or another process holds its lock.
_kiln_pm() {
    local try
    for try in 1 2 3; do
        case $KILN_PACKAGE_MANAGER in
            # A sync per file is for machines that must survive a power cut; cleanup.sh syncs once.
            apt) apt-get -qq -o DPkg::Lock::Timeout=300 -o Dpkg::Use-Pty=0 -o Dpkg::Options::=--force-confold \
                     -o Dpkg::Options::=--force-unsafe-io "$@" >&2 && return ;;
            *) "$KILN_PACKAGE_MANAGER" -q -y "$@" >&2 && return ;;
        esac
        [[ $try == 3 ]] || { kiln_say "$KILN_PACKAGE_MANAGER $1 failed, trying again"; sleep $((try * 2)); }
    done
    return 1
}

# kiln_refresh: fetch the package lists. yum and dnf do so by themselves, for a new repository too.
kiln_refresh() {
    [[ $KILN_FAMILY == debian ]] || return 0
    _kiln_pm update || kiln_die "the package lists cannot be fetched" "is the repository reachable from the build instance?"
}

# kiln_package_version NAME: upstream version and revision as installed, empty when it is not.
kiln_package_version() {
    case $KILN_FAMILY in
        debian) dpkg-query -W -f '${db:Status-Abbrev}${Version}\n' "$1" 2>/dev/null | sed -n 's/^[hi]i *//p' ;;
        *) rpm -q --qf '%{VERSION}-%{RELEASE}\n' "$1" 2>/dev/null | grep -v 'not installed' | sort -V | tail -n 1 ;;
    esac || true
}

# The part of NAME=VERSION@BUILD that a revision has to carry: +cuda11.6, .cuda11.7 for @cuda11.
_kiln_matches() { # INSTALLED WANTED BUILD
    local version=${1#*:}
    [[ $version == "$2" || $version == "$2"[-+~]* ]] || return 1
    [[ -z $3 || $version =~ [+.]"$3"([.~-]|$) ]]
}

# The newest revision of exactly that upstream version that apt can get.
_kiln_apt_revision() { # NAME VERSION BUILD
    local candidate
    while read -r candidate; do
        if _kiln_matches "$candidate" "$2" "$3"; then
            printf '%s\n' "$candidate"
            return
        fi
    done < <(apt-cache madison "$1" | awk -F' *[|] *' '{ print $2 }' | sort -rV)
    kiln_die "no repository has $1 $2${3:+ built for $3}" \
        "it offers: $(apt-cache madison "$1" | awk -F' *[|] *' '{ print $2 }' | sort -u | paste -sd' ' | cut -c1-400)"
}

# kiln_install name[=version[@build]]…: nothing is done for what is there already.
kiln_install() {
    local spec name version build installed wanted=()
    for spec in "$@"; do
        name=${spec%%=*} version='' build=''
        [[ $spec == *=* ]] && version=${spec#*=}
        [[ $version == *@* ]] && build=${version#*@} version=${version%%@*}
        installed=$(kiln_package_version "$name")
        if [[ -n $installed ]] && { [[ -z $version ]] || _kiln_matches "$installed" "$version" "$build"; }; then
            continue
        elif [[ -z $version ]]; then
            wanted+=("$name")
        elif [[ $KILN_FAMILY == debian ]]; then
            version=$(_kiln_apt_revision "$name" "$version" "$build")
            wanted+=("$name=$version")
        elif [[ -n $build ]]; then
            wanted+=("$name-$version-*cuda${build#cuda}*")
        else
            wanted+=("$name-$version")
        fi
    done
    ((${#wanted[@]} == 0)) && return
    kiln_say "installing ${wanted[*]}"
    if [[ $KILN_FAMILY == debian ]]; then
        _kiln_pm install -y --no-install-recommends --allow-downgrades "${wanted[@]}"
    else
        _kiln_pm install "${wanted[@]}"
    fi || kiln_die "$KILN_PACKAGE_MANAGER could not install ${wanted[*]}" \
        "its own message is above; does the repository still carry exactly these versions?"
    kiln_assert_installed "$@"
}

# kiln_assert_installed name[=version[@build]]…: yum forgives a name it does not know; we do not.
kiln_assert_installed() {
    local spec name version build installed
    for spec in "$@"; do
        name=${spec%%=*} version='' build=''
        [[ $spec == *=* ]] && version=${spec#*=}
        [[ $version == *@* ]] && build=${version#*@} version=${version%%@*}
        installed=$(kiln_package_version "$name")
        [[ -n $installed ]] || kiln_die "$name is not installed" "the repositories do not have it under this name"
        [[ -z $version ]] || _kiln_matches "$installed" "$version" "$build" \
            || kiln_die "$name is $installed, but the recipe asks for $version${build:+ built for $build}"
    done
}

# kiln_names name[=version]…: the names alone.
kiln_names() { printf '%s\n' "${@%%=*}"; }

# kiln_hold name…: an upgrade of half a GPU stack is an API mismatch at the next boot. yum and dnf take
# a second a call, so that for them these are collected, and locked by kiln_lock_held in one.
kiln_hold() {
    local name
    if [[ $KILN_FAMILY == debian ]]; then
        apt-mark hold "$@" >/dev/null || kiln_die "apt-mark cannot hold $*"
    else
        for name in "$@"; do
            printf '%s %s\n' "$name" "$(kiln_package_version "$name")" >>"$KILN_DIR/to-lock"
        done
    fi
    kiln_record "held+=$*"
}

# kiln_lock_held: after the last install. What a later component moved off its version stops the bake.
kiln_lock_held() {
    local name version held missing=()
    [[ -s $KILN_DIR/to-lock ]] || return 0
    if [[ ! -e ${KILN_ROOT:-}/etc/yum/pluginconf.d/versionlock.conf && ! -e ${KILN_ROOT:-}/etc/dnf/plugins/versionlock.conf ]]; then
        case $KILN_PACKAGE_MANAGER in
            yum) kiln_install yum-plugin-versionlock ;;
            *) _kiln_pm install 'dnf-command(versionlock)' || kiln_die "dnf has no versionlock plugin" ;;
        esac
    fi
    held=$(kiln_held)
    while read -r name version; do
        [[ $(kiln_package_version "$name") == "$version" ]] \
            || kiln_die "$name was $version when it was installed, now it is $(kiln_package_version "$name")" \
                "a component after it moved it"
        grep -qFx "$name-$version" <<<"$held" || missing+=("$name")
    done < <(sort -u "$KILN_DIR/to-lock")
    ((${#missing[@]} == 0)) || "$KILN_PACKAGE_MANAGER" -q versionlock add "${missing[@]}" >/dev/null \
        || kiln_die "$KILN_PACKAGE_MANAGER versionlock cannot hold ${missing[*]}"
}

# kiln_held: what is held; names on Debian, name-version-release elsewhere. From the files of yum 3 and
# dnf 4, which take a second each to say the same: yum writes 0:name-1.2-3.*, dnf name-0:1.2-3.*.
kiln_held() {
    if [[ $KILN_FAMILY == debian ]]; then
        apt-mark showhold
    else
        cat "${KILN_ROOT:-}"/etc/{yum/pluginconf.d,dnf/plugins}/versionlock.list 2>/dev/null \
            | sed -E 's/^[0-9]+://; s/-[0-9]+:/-/; s/\.\*$//' || true
    fi
}

# kiln_unhold name…: a second run has to be able to move what the first one held.
kiln_unhold() {
    local name held
    if [[ $KILN_FAMILY == debian ]]; then
        apt-mark unhold "$@" >/dev/null 2>&1 || true
        return
    fi
    held=$(kiln_held)
    for name in "$@"; do
        ! grep -q "^$name-[0-9]" <<<"$held" || "$KILN_PACKAGE_MANAGER" -q versionlock delete "$name" >/dev/null
    done
}

# ---------------------------------------------------------------- downloads and keys

# kiln_download X: fetch X_URL into the download folder; prints the path. X_SHA256 is enforced when it
# is known; what was seen goes into downloads.json either way, and from there into the lock file.
kiln_download() {
    local url_name=$1_URL sha_name=$1_SHA256 url expected seen file
    url=${!url_name:?} expected=${!sha_name:-} file=$KILN_DIR/downloads/$KILN_COMPONENT/${!url_name##*/}
    mkdir -p "${file%/*}"
    if [[ ! -f $file || -z $expected || $(_kiln_sha256 "$file") != "$expected" ]]; then
        kiln_say "downloading $url"
        rm -f "$file"
        curl --fail --location --silent --show-error --retry 5 --retry-delay 2 --connect-timeout 20 \
            --proto '=https' --tlsv1.2 --output "$file.part" "$url" \
            || kiln_die "cannot download $url" "is the host reachable, and is this version still published?"
        mv "$file.part" "$file"
    fi
    seen=$(_kiln_sha256 "$file")
    if [[ -n $expected && $seen != "$expected" ]]; then
        rm -f "$file"
        kiln_die "$url does not have the sha256 the lock file names: expected $expected, got $seen" \
            "if the vendor published it anew, look at why, then run: ./invoke lock --update"
    fi
    python3 "$KILN_DIR/lib/record.py" download "$KILN_ETC/downloads.json" "$url" "$seen" \
        "$([[ -n $expected ]] && echo locked || echo first-seen)" "$KILN_COMPONENT"
    printf '%s\n' "$file"
}

_kiln_sha256() { sha256sum "$1" | cut -d' ' -f1; }

_kiln_fingerprint() { tr -d ' :' <<<"$1" | tr '[:lower:]' '[:upper:]'; }

# The primary keys' fingerprints in a key file; works with GnuPG 2.0 too.
_kiln_primaries() { # GNUPGHOME
    gpg --homedir "$1" --batch --list-keys --with-colons --fingerprint 2>/dev/null \
        | awk -F: '$1 == "pub" { primary = 1 } $1 == "fpr" && primary { print $10; primary = 0 }'
}

# Runs in a subshell for its trap: a keyring of its own that holds FILE's key, checked.
kiln_check_key() ( # FILE FINGERPRINT
    home=$(mktemp -d)
    trap 'rm -rf "$home"' EXIT
    _kiln_import "$home" "$1" "$2"
)

_kiln_import() { # GNUPGHOME FILE FINGERPRINT
    local want found
    want=$(_kiln_fingerprint "$3")
    [[ -n $want ]] || kiln_die "no fingerprint given for ${2##*/}" "keys.yaml must name it"
    gpg --homedir "$1" --batch --quiet --import "$2" 2>/dev/null \
        || kiln_die "${2##*/} is not an OpenPGP key file"
    found=$(_kiln_primaries "$1" | paste -sd' ')
    [[ $found == "$want" ]] || kiln_die "${2##*/} holds the wrong key: expected $want, got ${found:-none}" \
        "if the vendor rotated its key, prove it, then change kiln/facts/knowledge/keys.yaml"
}

kiln_check_signature() ( # FILE SIGNATURE KEYFILE FINGERPRINT
    home=$(mktemp -d)
    trap 'rm -rf "$home"' EXIT
    _kiln_import "$home" "$3" "$4"
    status=$(gpg --homedir "$home" --batch --trust-model always --status-fd 1 \
        --verify "$2" "$1" 2>/dev/null) || kiln_die "${1##*/} is not what $(_kiln_fingerprint "$4") signed"
    # The last field of VALIDSIG is the primary key, whichever subkey signed.
    grep '^\[GNUPG:\] VALIDSIG ' <<<"$status" | grep -q " $(_kiln_fingerprint "$4")\$" \
        || kiln_die "${1##*/} has a signature, but not by $(_kiln_fingerprint "$4")"
    kiln_say "signature of ${1##*/} is good ($(_kiln_fingerprint "$4"))"
)

# kiln_repo_key FILE FINGERPRINT NAME: prints what the repository definition has to name.
kiln_repo_key() {
    local target
    kiln_check_key "$1" "$2"
    if [[ $KILN_FAMILY == debian ]]; then
        target=/usr/share/keyrings/$3.gpg
        if grep -q 'BEGIN PGP' "$1"; then
            gpg --batch --yes --output "$target" --dearmor "$1" || kiln_die "cannot write $target"
        else
            install -m 0644 "$1" "$target"
        fi
        chmod 0644 "$target"
        printf '%s\n' "$target"
    else
        target=/etc/pki/rpm-gpg/RPM-GPG-KEY-$3
        install -D -m 0644 "$1" "$target"
        rpm --import "$target"
        printf 'file://%s\n' "$target"
    fi
}

# ---------------------------------------------------------------- the image

# What the boot loader takes, whatever runs now: the kernel kernel.sh pinned, or the newest installed.
kiln_boot_kernel() {
    local kernel=''
    if [[ -s $KILN_ETC/kernel ]]; then
        kernel=$(<"$KILN_ETC/kernel")
    elif command -v grubby >/dev/null && kernel=$(grubby --default-kernel 2>/dev/null) && [[ -n $kernel ]]; then
        kernel=${kernel##*/vmlinuz-}
    else
        kernel=$(find /boot -maxdepth 1 -name 'vmlinuz-[0-9]*' -printf '%f\n' 2>/dev/null | sed 's/^vmlinuz-//' | sort -V | tail -n 1)
    fi
    [[ -n $kernel ]] || kiln_die "no kernel is installed" "kernel.sh has to run first"
    printf '%s\n' "$kernel"
}

# kiln_assert_kernel: the module is built for this kernel, so it must be the one that runs.
kiln_assert_kernel() {
    local boots
    boots=$(kiln_boot_kernel)
    kiln_in_container || [[ $(uname -r) == "$boots" ]] \
        || kiln_die "$(uname -r) runs, but $boots will boot" "the reboot after kernel.sh did not happen"
    [[ -e /lib/modules/$boots/build || -e /usr/src/kernels/$boots ]] \
        || kiln_die "there are no headers for $boots" "kernel.sh installs them"
    printf '%s\n' "$boots"
}

# kiln_compiler KERNEL: the command that built it, as the kernel's own configuration says.
kiln_compiler() {
    local config text
    for config in "/boot/config-$1" "/lib/modules/$1/build/.config" "/usr/src/kernels/$1/.config"; do
        [[ -r $config ]] || continue
        text=$(sed -n 's/^CONFIG_CC_VERSION_TEXT="\([^ "]*\).*/\1/p' "$config")
        [[ -z $text ]] || { printf '%s\n' "${text#x86_64-linux-gnu-}" | sed 's/^aarch64-linux-gnu-//'; return; }
    done
    printf 'gcc\n'
}

# kiln_dkms_compiler KERNEL MODULE…: where the kernel was built by another command than gcc, tell DKMS for
# these modules, now and for any rebuild. DKMS drops CC from its environment, 3.x also takes no `export CC`
# from a configuration file. 2.x and 3.x both read /etc/dkms/MODULE.conf after the module's dkms.conf, so
# the compiler goes to the end of whatever make command the module has, DKMS's default if it has none.
# (A make command written anew would lose NVIDIA's quotes around 'make': they keep DKMS from adding
# KERNELRELEASE, which NVIDIA's Makefile takes for a call by the kernel's own build.)
kiln_dkms_compiler() {
    local kernel=$1 compiler module
    shift
    compiler=$(kiln_compiler "$kernel")
    for module in "$@"; do
        if [[ $compiler != gcc ]]; then
            mkdir -p "${KILN_ROOT:-}/etc/dkms"
            # DKMS fills in what is between the quotes.
            # shellcheck disable=SC2016
            printf 'MAKE[0]="${MAKE[0]:-make -C $kernel_source_dir M=$dkms_tree/$module/$module_version/build} CC=%s"\n' \
                "$compiler" >"${KILN_ROOT:-}/etc/dkms/$module.conf"
        else
            rm -f "${KILN_ROOT:-}/etc/dkms/$module.conf"
        fi
    done
}

# kiln_install_runtime path…: files and folders below runtime/, owned by root. Where this systemd is too
# old for a unit, the variant in runtime-variants/systemd-before-240/ takes its place.
kiln_install_runtime() {
    local path file source mode systemd
    systemd=$(kiln_systemd_version)
    for path in "$@"; do
        [[ -e $KILN_DIR/runtime/$path ]] || kiln_die "runtime/$path is missing from the upload"
        while read -r file; do
            source=$KILN_DIR/runtime/$file
            if ((systemd < 240)) && [[ -e $KILN_DIR/runtime-variants/systemd-before-240/$file ]]; then
                source=$KILN_DIR/runtime-variants/systemd-before-240/$file
            fi
            mode=0644
            [[ $(head -c 2 "$source") != '#!' ]] || mode=0755
            install -D -m "$mode" "$source" "${KILN_ROOT:-}/$file"
        done < <(cd "$KILN_DIR/runtime" && find "$path" -type f ! -name '*.pyc')
        kiln_record "files+=/$path"
    done
}

# kiln_install_files path…: what was rendered for this recipe, below files/; on top of what runtime/ has.
kiln_install_files() {
    local path file
    for path in "$@"; do
        [[ -e $KILN_DIR/files/$path ]] || continue
        while read -r file; do
            install -D -m 0644 "$KILN_DIR/files/$file" "${KILN_ROOT:-}/$file"
        done < <(cd "$KILN_DIR/files" && find "$path" -type f)
        kiln_record "files+=/$path"
    done
}

# kiln_enable unit…: at the next boot. Nothing is started on the build instance, so that its systemd need
# not read all units anew each time.
kiln_enable() {
    systemctl --quiet --no-reload enable "$@" || kiln_die "systemd cannot enable $*"
    kiln_record "units+=$*"
}

# kiln_record key=value… | key+=word…: into /etc/kiln/components/<component>.json, when the script has come
# to a good end; checks read it.
_kiln_recorded=()
kiln_record() { _kiln_recorded+=("$@"); }

_kiln_finish() {
    local status=$?
    if ((status == 0 && ${#_kiln_recorded[@]})); then
        python3 "$KILN_DIR/lib/record.py" component "$KILN_ETC/components/$KILN_COMPONENT.json" "${_kiln_recorded[@]}"
    fi
}
trap _kiln_finish EXIT
