# shellcheck shell=bash
# Packages at exact versions, and holds. Part of kiln.sh.
set -euo pipefail

# kiln_retry COMMAND…: repeat a command that fetches packages when a mirror fails for a moment or another process
# holds a lock. Returns its status when it failed three times: the caller says what failed. Its output is in
# $KILN_DIR/package-tool.log.
kiln_retry() {
    local try=0 locked=0 status log=$KILN_DIR/package-tool.log
    kiln_use_mirrors
    while true; do
        status=0
        "$@" 2>&1 | tee "$log" >&2 || status=$?
        ((status)) || return 0
        # Neither tool waits for these by itself. apt-get update for the lock of the package lists, which
        # DPkg::Lock::Timeout does not cover, with this message of apt 1 to 3: github:Debian/apt
        # apt-pkg/contrib/fileutl.cc @6b128124271e94bdb0f4e7850d9286170d712b04. dnf and yum for rpm, which the SSM
        # agent calls to update itself at the first boot: https://github.com/amazonlinux/amazon-linux-2023/issues/397
        if ((locked < 60)) && grep -Eq "Could not get lock|can't create transaction lock" "$log"; then
            ((locked++)) || kiln_say "another process holds a lock that $KILN_PACKAGE_MANAGER needs; waiting for it, up to five minutes"
            sleep 5
            continue
        fi
        # No mirror has what does not exist.
        ! grep -Eq 'Unable to locate package|Unable to find a match|No matching Modules to list' "$log" || return "$status"
        ((++try < 3)) || return "$status"
        kiln_say "$1 failed, trying again"
        # A mirror that is being updated needs a while, and then other metadata.
        sleep $((try * 20))
        _kiln_renew_metadata
    done
}

# Its failure shows when the command is repeated.
_kiln_renew_metadata() {
    if [[ $KILN_PACKAGE_MANAGER == apt ]]; then
        rm -rf "${KILN_ROOT:-}"/var/lib/apt/lists/* || true
        apt-get -qq update >&2 || true
    else
        "$KILN_PACKAGE_MANAGER" -q clean expire-cache >&2 || true
    fi
}

# kiln_pm ARGUMENT…: one run of the package tool, with retries.
kiln_pm() {
    case $KILN_PACKAGE_MANAGER in
        # A sync per file is for machines that must survive a power cut; cleanup.sh syncs once.
        apt) kiln_retry apt-get -qq -o DPkg::Lock::Timeout=300 -o Dpkg::Use-Pty=0 \
                 -o Dpkg::Options::=--force-confold -o Dpkg::Options::=--force-unsafe-io "$@" ;;
        *) kiln_retry "$KILN_PACKAGE_MANAGER" -q -y "$@" ;;
    esac
}

# kiln_stop_daily_updates: Ubuntu's and Debian's daily update starts soon after the first boot, and takes
# apt's locks. It is stopped until the next boot, not disabled. An upgrade that runs already is not
# interrupted: kiln_pm waits for it.
kiln_stop_daily_updates() {
    [[ $KILN_FAMILY == debian ]] || return 0
    local unit
    for unit in apt-daily.timer apt-daily-upgrade.timer apt-daily.service; do
        ! kiln_unit_exists "$unit" || systemctl stop "$unit" || kiln_die "systemd cannot stop $unit"
    done
}

# kiln_refresh: fetch the package lists. yum and dnf do so by themselves, for a new repository too.
kiln_refresh() {
    [[ $KILN_FAMILY == debian ]] || return 0
    kiln_stop_daily_updates
    kiln_pm update || kiln_die "the package lists cannot be fetched" "is the repository reachable from the build instance?"
}

# kiln_wait_for_cloud_init: at the first boot it may still be writing package sources.
kiln_wait_for_cloud_init() {
    command -v cloud-init >/dev/null || return 0
    timeout 300 cloud-init status --wait >/dev/null || kiln_say "cloud-init did not end well; going on"
}

# kiln_set_sources_aside: apt has no package sources any more; those of the parent image wait in the upload's
# folder. Does nothing when they wait there already.
kiln_set_sources_aside() {
    local apt=${KILN_ROOT:-}/etc/apt aside=$KILN_DIR/parent-sources
    [[ ! -d $aside ]] || return 0
    rm -rf "$aside.new" || kiln_die "$aside.new cannot be removed"
    mkdir -p "$aside.new/sources.list.d" "$apt/sources.list.d" || kiln_die "$aside.new cannot be made"
    cp -a "$apt/sources.list.d/." "$aside.new/sources.list.d/" || kiln_die "the parent's package sources cannot be kept"
    [[ ! -e $apt/sources.list ]] || cp -a "$apt/sources.list" "$aside.new/" \
        || kiln_die "the parent's sources.list cannot be kept"
    find "$apt/sources.list.d" -mindepth 1 -delete || kiln_die "the parent's package sources cannot be set aside"
    rm -f "$apt/sources.list" || kiln_die "the parent's sources.list cannot be set aside"
    # Whole, or not there: a second run must not take a half for the whole.
    mv "$aside.new" "$aside" || kiln_die "$aside cannot be made"
}

# kiln_restore_sources: the parent's package sources again, beside those that components added since. Does
# nothing when none were set aside.
kiln_restore_sources() {
    local apt=${KILN_ROOT:-}/etc/apt aside=$KILN_DIR/parent-sources
    [[ -d $aside ]] || return 0
    rm -f "$apt/sources.list.d/kiln-package-snapshot.list" || kiln_die "the snapshot's package sources cannot be removed"
    cp -a "$aside/." "$apt/" || kiln_die "the parent's package sources cannot be put back"
    rm -rf "$aside" || kiln_die "$aside cannot be removed"
}

# kiln_mirrored URL: the same URL at a mirror of KILN_MIRRORS, whose longest beginning that fits counts; else
# the URL itself. Hashes, keys and records are those of the vendor's URL.
kiln_mirrored() {
    local pair from best='' to=''
    for pair in $KILN_MIRRORS; do
        from=${pair%%=*}
        if [[ $1/ == "$from"/* && ${#from} -gt ${#best} ]]; then best=$from to=${pair#*=}; fi
    done
    printf '%s\n' "$to${1#"$best"}"
}

# kiln_use_mirrors: the package sources name the mirrors, also those that components have added since.
kiln_use_mirrors() {
    local pair
    for pair in $KILN_MIRRORS; do _kiln_replace_in_sources "${pair%%=*}" "${pair#*=}"; done
}

# kiln_forget_mirrors: the package sources name the vendors again.
kiln_forget_mirrors() {
    local pair
    for pair in $KILN_MIRRORS; do _kiln_replace_in_sources "${pair#*=}" "${pair%%=*}"; done
}

# kiln_skip_unavailable: yum and dnf go on without a repository that the bake added, when they cannot reach it. At the
# bake they stop; an instance in a subnet without a way to the vendors installs from its distribution all the same.
kiln_skip_unavailable() {
    local file
    for file in "${KILN_ROOT:-}"/etc/yum.repos.d/{nvidia-*,epel}.repo; do
        [[ -f $file ]] || continue
        sed -i -e '/^skip_if_unavailable *=/d' -e '/^\[/a skip_if_unavailable=1' "$file" || kiln_die "$file cannot be changed"
    done
}

# The matrix lets no mirror's URL begin with another one's, so that this can be undone.
_kiln_replace_in_sources() { # URL URL
    local etc=${KILN_ROOT:-}/etc file
    # Debian's AMIs name their archive in apt/mirrors: mirror+file:///etc/apt/mirrors/debian.list
    for file in "$etc"/apt/sources.list "$etc"/apt/sources.list.d/*.{list,sources} "$etc"/apt/mirrors/* "$etc"/yum.repos.d/*.repo; do
        [[ -f $file ]] || continue
        sed -E -i "s#${1//./\\.}(/|[[:space:]]|\$)#$2\1#g" "$file" || kiln_die "$file cannot name $2"
    done
}

# kiln_package_version NAME: prints upstream version and revision as installed, nothing when it is not.
kiln_package_version() {
    local text line
    if [[ $KILN_FAMILY == debian ]]; then
        # 1: dpkg does not know the package.
        text=$(dpkg-query -W -f '${db:Status-Abbrev}${Version}\n' "$1" 2>/dev/null) || (($? == 1)) \
            || kiln_die "dpkg-query cannot look up $1"
        while read -r line; do
            # ii: installed, hi: installed and on hold; other states are not.
            [[ $line != [hi]i* ]] || printf '%s\n' "${line##* }"
        done <<<"$text"
    elif text=$(rpm -q --qf '%{VERSION}-%{RELEASE}\n' "$1" 2>/dev/null); then
        # Several versions of a kernel are installed side by side.
        [[ $text != *$'\n'* ]] || text=$(sort -V <<<"$text") || kiln_die "the versions of $1 cannot be sorted"
        printf '%s\n' "${text##*$'\n'}"
    else
        # rpm 4: "package NAME is not installed": github:rpm-software-management/rpm lib/query.c
        # @81ac89f4e6f176f9095e73b34d94d4ccf12da237
        [[ $text == *'not installed'* ]] || kiln_die "rpm cannot look up $1"
    fi
}

# Sets name, version and build of the caller from NAME[=VERSION[@BUILD]].
_kiln_split() {
    name=${1%%=*} version='' build=''
    [[ $1 != *=* ]] || version=${1#*=}
    [[ $version != *@* ]] || build=${version#*@} version=${version%%@*}
}

# kiln_matches INSTALLED WANTED BUILD: is it that upstream version, built for BUILD? A revision says the
# latter as +cuda11.6 or .cuda11.7; @cuda11 means any CUDA 11.
kiln_matches() {
    local version=${1#*:}
    [[ $version == "$2" || $version == "$2"[-+~]* ]] || return 1
    [[ -z $3 || $version =~ [+.]"$3"([.~-]|$) ]]
}

# Prints the newest revision of exactly that upstream version that apt can get.
_kiln_apt_revision() { # NAME VERSION BUILD
    local offers candidate
    offers=$(apt-cache madison "$1" | awk -F' *[|] *' '{ print $2 }' | sort -ruV) || kiln_die "apt-cache cannot list the versions of $1"
    while read -r candidate; do
        if kiln_matches "$candidate" "$2" "$3"; then
            printf '%s\n' "$candidate"
            return 0
        fi
    done <<<"$offers"
    [[ -n $offers ]] || _kiln_missing "$1"
    offers=${offers//$'\n'/ }
    kiln_die "no repository has $1 $2${3:+ built for $3}" "it offers: ${offers:0:400}"
}

# kiln_install name[=version[@build]]…: does nothing for what is installed already.
kiln_install() {
    local spec name version build installed wanted=()
    for spec in "$@"; do
        _kiln_split "$spec"
        installed=$(kiln_package_version "$name") || exit 1
        if [[ -n $installed ]] && { [[ -z $version ]] || kiln_matches "$installed" "$version" "$build"; }; then
            continue
        elif [[ -z $version ]]; then
            wanted+=("$name")
        elif [[ $KILN_FAMILY == debian ]]; then
            version=$(_kiln_apt_revision "$name" "$version" "$build") || exit 1
            wanted+=("$name=$version")
        elif [[ -n $build ]]; then
            wanted+=("$name-$version-*cuda${build#cuda}*")
        else
            wanted+=("$name-$version")
        fi
    done
    ((${#wanted[@]})) || return 0
    kiln_say "installing ${wanted[*]}"
    if [[ $KILN_FAMILY == debian ]]; then
        kiln_pm install -y --no-install-recommends --allow-downgrades "${wanted[@]}"
    else
        kiln_pm install "${wanted[@]}"
    fi || _kiln_not_installed "$@"
    _kiln_assert_installed "$@"
}

# The package tool rejects the whole transaction if one name is unknown: name those that no repository has.
_kiln_not_installed() { # name[=version[@build]]…
    local spec name version build missing=()
    for spec in "$@"; do
        _kiln_split "$spec"
        _kiln_can_be_had "$name" || missing+=("$name")
    done
    ((${#missing[@]} == 0)) || _kiln_missing "${missing[@]}"
    kiln_die "$KILN_PACKAGE_MANAGER could not install $*" \
        "its own message is above; does the repository still carry exactly these versions?"
}

# Is there a package of that name, installed or in a repository? A tool that fails gives no answer, which counts as yes.
_kiln_can_be_had() {
    local text
    if [[ $KILN_FAMILY == debian ]]; then
        text=$(apt-cache madison "$1" 2>/dev/null) || return 0
        [[ -n $text ]]
    else
        # Only its message tells "no such package" from a repository that does not answer. yum 3:
        # github:rpm-software-management/yum yumcommands.py @4ed25525ee4781907bd204018c27f44948ed83fe; dnf 4:
        # github:rpm-software-management/dnf dnf/cli/cli.py @5ad76abc97a6b82a70ddc828d2286a47567eff7f
        text=$("$KILN_PACKAGE_MANAGER" -q list "$1" 2>&1) || [[ $text != *'No matching Packages'* ]]
    fi
}

# The pipeline reads the names in the message (kiln/pipeline/bake.py).
_kiln_missing() { # NAME…
    kiln_die "no repository has a package named ${*// / or }" "the repositories of this instance were asked for each name alone"
}

# yum succeeds for a name that it does not know.
_kiln_assert_installed() { # name[=version[@build]]…
    local spec name version build installed
    for spec in "$@"; do
        _kiln_split "$spec"
        installed=$(kiln_package_version "$name") || exit 1
        if [[ -z $installed ]]; then
            _kiln_can_be_had "$name" || _kiln_missing "$name"
            kiln_die "$name${version:+ $version} is not installed" "the repositories have a package of that name, but not this one"
        fi
        [[ -z $version ]] || kiln_matches "$installed" "$version" "$build" \
            || kiln_die "$name is $installed, but the recipe asks for $version${build:+ built for $build}"
    done
}

# kiln_install_held "name=version[@build] …": install exactly these versions, over a hold of an earlier run
# too; hold them; record their names as the component's packages. Sets `names` to the names.
kiln_install_held() {
    local specs
    read -ra specs <<<"${*//$'\n'/ }"
    ((${#specs[@]})) || kiln_die "no packages were given to install"
    names=("${specs[@]%%=*}")
    kiln_unhold "${names[@]}"
    kiln_install "${specs[@]}"
    kiln_hold "${names[@]}"
    kiln_record "packages+=${names[*]}"
}

# kiln_hold name…: an upgrade of half a GPU stack is an API mismatch at the next boot. A lock takes yum and
# dnf a second a call: names are collected here, and kiln_lock_held locks them in one call.
kiln_hold() {
    local name version
    if [[ $KILN_FAMILY == debian ]]; then
        apt-mark hold "$@" >/dev/null || kiln_die "apt-mark cannot hold $*"
    else
        for name in "$@"; do
            version=$(kiln_package_version "$name") || exit 1
            [[ -n $version ]] || kiln_die "$name cannot be held: it is not installed"
            mkdir -p "$KILN_DIR/to-lock" || kiln_die "$KILN_DIR/to-lock cannot be made"
            printf '%s %s\n' "$name" "$version" >>"$KILN_DIR/to-lock/$KILN_COMPONENT" \
                || kiln_die "$KILN_DIR/to-lock/$KILN_COMPONENT cannot be written"
        done
    fi
    kiln_record "held+=$*"
}

# kiln_lock_held PLUGIN…: after the last install; PLUGIN are the packages of the tool's versionlock. A package
# that a later component moved off its version stops the bake.
kiln_lock_held() {
    local name version held collected installed files names=() missing=()
    local -A now=()
    files=("$KILN_DIR"/to-lock/*)
    [[ -e ${files[0]} ]] || return 0
    if [[ ! -e ${KILN_ROOT:-}/etc/yum/pluginconf.d/versionlock.conf && ! -e ${KILN_ROOT:-}/etc/dnf/plugins/versionlock.conf ]]; then
        kiln_install "$@"
    fi
    held=$(kiln_held) || exit 1
    collected=$(sort -u "${files[@]}") || kiln_die "$KILN_DIR/to-lock cannot be read"
    while read -r name _; do names+=("$name"); done <<<"$collected"
    # A name that is not installed gives a line without a version, and a status that is not 0.
    installed=$(rpm -q --qf '%{NAME} %{VERSION}-%{RELEASE}\n' "${names[@]}") \
        || [[ $installed == *'not installed'* ]] || kiln_die "rpm cannot look up ${names[*]}"
    # Several versions of a kernel are installed side by side: the newest counts.
    installed=$(sort -V <<<"$installed") || kiln_die "the versions of ${names[*]} cannot be sorted"
    while read -r name version; do now[$name]=$version; done <<<"$installed"
    while read -r name version; do
        [[ ${now[$name]:-} == "$version" ]] || kiln_die "$name was $version when it was installed, now it is ${now[$name]:-removed}" \
            "a component after it moved it"
        [[ $'\n'$held$'\n' == *$'\n'"$name-$version"$'\n'* ]] || missing+=("$name")
    done <<<"$collected"
    ((${#missing[@]} == 0)) || kiln_pm versionlock add "${missing[@]}" \
        || kiln_die "$KILN_PACKAGE_MANAGER versionlock cannot hold ${missing[*]}"
}

# kiln_held: prints what is held: names on Debian, name-version-release elsewhere. The latter from the files
# of yum 3 and dnf 4, which take a second to list it. yum writes 0:name-1.2-3.*, dnf name-0:1.2-3.*.
kiln_held() {
    local file files=()
    if [[ $KILN_FAMILY == debian ]]; then
        apt-mark showhold || kiln_die "apt-mark cannot list what is held"
        return 0
    fi
    for file in "${KILN_ROOT:-}"/etc/{yum/pluginconf.d,dnf/plugins}/versionlock.list; do
        [[ ! -e $file ]] || files+=("$file")
    done
    ((${#files[@]})) || return 0
    sed -E 's/^[0-9]+://; s/-[0-9]+:/-/; s/\.\*$//' "${files[@]}" || kiln_die "${files[*]} cannot be read"
}

# kiln_unhold name…: a second run must be able to move what the first run held. One call for all of them, as
# kiln_lock_held.
kiln_unhold() {
    local name held names=()
    held=$(kiln_held) || exit 1
    for name in "$@"; do
        if [[ $KILN_FAMILY == debian ]]; then
            [[ $'\n'$held$'\n' != *$'\n'"$name"$'\n'* ]] || names+=("$name")
        else
            [[ $'\n'$held != *$'\n'"$name"-[0-9]* ]] || names+=("$name")
        fi
    done
    ((${#names[@]})) || return 0
    if [[ $KILN_FAMILY == debian ]]; then
        apt-mark unhold "${names[@]}" >/dev/null || kiln_die "apt-mark cannot release the hold on ${names[*]}"
    else
        kiln_pm versionlock delete "${names[@]}" \
            || kiln_die "$KILN_PACKAGE_MANAGER versionlock cannot release the hold on ${names[*]}"
    fi
}
