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
        # apt-get update ends with 0 when a repository did not answer: github:Debian/apt apt-pkg/update.cc
        # @04a54261afd1c99686109f102afc83346c01c930
        [[ ${!#} != update || $(<"$log") != *'Some index files failed to download'* ]] || status=100
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
    # Patterns, of which systemd stops what is there.
    systemctl stop 'apt-daily*.timer' 'apt-daily.*' || kiln_die "systemd cannot stop apt's daily update"
}

# kiln_refresh: fetch the package lists. yum and dnf do so by themselves, for a new repository too.
kiln_refresh() {
    [[ $KILN_FAMILY == debian ]] || return 0
    kiln_stop_daily_updates
    local first log=$KILN_DIR/package-tool.log
    kiln_pm update && return
    first=$(sed -nE '/^[EW]: (Failed to fetch|The repository) /{s/^...//p;q}' "$log") || true
    kiln_die "the package lists cannot be fetched${first:+: $first}" \
        "can the build instance reach that host? A dead repository of the parent AMI: drop its file in /etc/apt/sources.list.d there"
}

# kiln_yum_repo NAME URL KEY [SETTING…]: a repository for yum and dnf; an error at the bake when it does not answer.
kiln_yum_repo() {
    local file=${KILN_ROOT:-}/etc/yum.repos.d/$1.repo
    printf '%s\n' "[$1]" "name=$1" "baseurl=$2" "gpgkey=$3" enabled=1 skip_if_unavailable=0 "${@:4}" >"$file" \
        || kiln_die "$file cannot be written"
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
    mkdir -p "$aside" "$apt/sources.list.d" || kiln_die "$aside cannot be made"
    mv "$apt/sources.list.d" "$aside/" || kiln_die "the parent's package sources cannot be set aside"
    [[ ! -e $apt/sources.list ]] || mv "$apt/sources.list" "$aside/" || kiln_die "$apt/sources.list cannot be set aside"
    mkdir "$apt/sources.list.d" || kiln_die "$apt/sources.list.d cannot be made"
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
    local spec name version build installed status=0 wanted=()
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
        else
            wanted+=("$name-$version${build:+-*cuda${build#cuda}*}")
        fi
    done
    ((${#wanted[@]})) || return 0
    kiln_say "installing ${wanted[*]}"
    if [[ $KILN_FAMILY == debian ]]; then
        kiln_pm install -y --no-install-recommends --allow-downgrades "${wanted[@]}"
    else
        kiln_pm install "${wanted[@]}"
    fi || status=$?
    _kiln_assert_installed "$@"
    ((status == 0)) || kiln_die "$KILN_PACKAGE_MANAGER failed" "its own message is above"
}

# Stops when one is not installed as asked: yum succeeds for a name that it does not know. The package tool
# rejects the whole transaction if one name is unknown: that one is named.
_kiln_assert_installed() { # name[=version[@build]]…
    local spec name version build installed missing=() absent=()
    for spec in "$@"; do
        _kiln_split "$spec"
        installed=$(kiln_package_version "$name") || exit 1
        if [[ -z $installed ]]; then
            _kiln_can_be_had "$name" || missing+=("$name")
            absent+=("$name${version:+ $version}")
        elif [[ -n $version ]] && ! kiln_matches "$installed" "$version" "$build"; then
            kiln_die "$name is $installed, but the recipe asks for $version${build:+ built for $build}"
        fi
    done
    ((${#missing[@]} == 0)) || _kiln_missing "${missing[@]}"
    ((${#absent[@]} == 0)) || kiln_die "$KILN_PACKAGE_MANAGER did not install: ${absent[*]}" \
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

# kiln_hold name…: an upgrade of half a GPU stack is an API mismatch at the next boot. versionlock's own command
# takes yum and dnf a second a call, so its file is written: epoch:name-version-release.* for yum 3, name-epoch:… for
# dnf 4. github:rpm-software-management/yum-utils plugins/versionlock/versionlock.py
# @119b3e8c44d022a799ee3ba023f467791c86d9b0; github:rpm-software-management/dnf-plugins-core plugins/versionlock.py
# @0030ea94dd261b66cac6f08c9dfa99e3d8ee3648
kiln_hold() {
    local file format='%{NAME}-%{EPOCHNUM}:' locks
    if [[ $KILN_FAMILY == debian ]]; then
        apt-mark hold "$@" >/dev/null || kiln_die "apt-mark cannot hold $*"
    else
        kiln_unhold "$@"
        file=$(_kiln_lock_file) || exit 1
        [[ $file != */yum/* ]] || format='%{EPOCHNUM}:%{NAME}-'
        locks=$(rpm -q --qf "$format%{VERSION}-%{RELEASE}.*\n" "$@") || kiln_die "rpm cannot look up $*: what is held must be installed"
        printf '%s\n' "$locks" >>"$file" || kiln_die "$file cannot be written"
    fi
    kiln_record "held+=$*"
}

# kiln_unhold name…: a second run must be able to move what the first run held.
kiln_unhold() {
    local name file held names=()
    if [[ $KILN_FAMILY == debian ]]; then
        held=$(apt-mark showhold) || kiln_die "apt-mark cannot list what is held"
        for name in "$@"; do
            [[ $'\n'$held$'\n' != *$'\n'"$name"$'\n'* ]] || names+=("$name")
        done
        ((${#names[@]} == 0)) || apt-mark unhold "${names[@]}" >/dev/null || kiln_die "apt-mark cannot release the hold on ${names[*]}"
    else
        file=$(_kiln_lock_file) || exit 1
        # The name is what stands before the version, in either form.
        held=$(awk -v names=" $* " '{ name = $0; sub(/^[0-9]+:/, "", name); sub(/-[^-]+-[^-]+$/, "", name) }
            !index(names, " " name " ")' "$file") || kiln_die "$file cannot be read"
        printf '%s\n' "$held" >"$file" || kiln_die "$file cannot be written"
    fi
}

# Prints the file of the package tool's versionlock, which kernel.sh installs. dnf's first: where dnf stands in for yum,
# /etc/yum/pluginconf.d is a link to its folder.
_kiln_lock_file() {
    local folder
    for folder in "${KILN_ROOT:-}"/etc/{dnf/plugins,yum/pluginconf.d}; do
        [[ ! -e $folder/versionlock.list ]] || { printf '%s\n' "$folder/versionlock.list"; return 0; }
    done
    kiln_die "the package tool's versionlock is not installed" "kernel.sh must run first"
}
