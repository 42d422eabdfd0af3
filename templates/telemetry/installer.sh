# shellcheck shell=bash enable=check-extra-masked-returns
# What the bundle does on a machine: bundle.sh.j2 puts it between BUNDLE_SHA256 and `payload`, which writes
# the files.
#
# bash ignores `set -e` inside substitutions, if and ||: what is called there handles its failure itself.
set -euo pipefail
export LC_ALL=C PATH=/usr/sbin:/usr/bin:/sbin:/bin

umask 022

usage() {
    cat <<'EOF'
usage: bash kiln-telemetry.sh [options]

  --uninstall            take everything out again; the event log stays
  --agent-package FILE   install the CloudWatch agent from this .rpm or .deb, fetch nothing
  --without-agent        the Xid event monitor alone, with its log on this machine
  --no-start             install and enable, start nothing
  --root DIR             install into the system image mounted at DIR; implies --no-start,
                         runs nothing of it, and needs the agent to be there already
  --help                 this text

Exit status: 0 done or nothing to do, 1 the machine got in the way, 2 a wrong call or a system that
this bundle does not know.
EOF
}

root=
uninstall=
agent_package=
with_agent=yes
start=yes
work=

say() { printf 'kiln-telemetry: %s\n' "$*"; }

# die STATUS MESSAGE [HINT]
die() {
    printf 'kiln-telemetry: ERROR: %s\n' "$2" >&2
    [[ -z ${3:-} ]] || printf 'kiln-telemetry:   %s\n' "$3" >&2
    exit "$1"
}

parse() {
    while (($#)); do
        case $1 in
            --uninstall) uninstall=yes ;;
            --without-agent) with_agent= ;;
            --no-start) start= ;;
            --agent-package | --root)
                [[ -n ${2:-} ]] || die 2 "$1 needs a value" "see --help"
                if [[ $1 == --root ]]; then
                    [[ -d $2 ]] || die 2 "--root $2: no such folder"
                    root=$(cd "$2" && pwd)
                    [[ $root != / ]] || root=
                    start=
                else
                    [[ -f $2 ]] || die 2 "--agent-package $2: no such file"
                    agent_package=$2
                fi
                shift
                ;;
            --help)
                usage
                exit 0
                ;;
            *) die 2 "unknown option $1" "see --help" ;;
        esac
        shift
    done
    [[ $EUID == 0 ]] || die 2 "this must run as root" "try: sudo bash $0"
    state=$root/var/lib/kiln/telemetry
    agent_home=$root/opt/aws/amazon-cloudwatch-agent
    agent_etc=/opt/aws/amazon-cloudwatch-agent/etc
}

unpack() {
    local sum
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    payload >"$work/payload.tar.gz"
    sum=$(checksum "$work/payload.tar.gz") || exit 1
    [[ $sum == "$BUNDLE_SHA256" ]] \
        || die 1 "this file is damaged: its payload does not match its checksum" "copy it here again"
    tar -xzf "$work/payload.tar.gz" -C "$work"
    : >"$work/plan"
}

# ------------------------------------------------------------------ is this a machine we know?

check_distro() {
    local id='' version='' kind known
    [[ -r $root/etc/os-release ]] || die 2 "$root/etc/os-release is missing: not a system we know"
    # shellcheck disable=SC1091
    id=$(. "$root/etc/os-release" && echo "${ID:-}")
    # shellcheck disable=SC1091
    version=$(. "$root/etc/os-release" && echo "${VERSION_ID:-}")
    package_kind=
    while IFS=$'\t' read -r known_id known_version kind; do
        [[ $id == "$known_id" && $version == "$known_version" ]] && package_kind=$kind
    done <"$work/distros.tsv"
    known=$(cut -f 1,2 <"$work/distros.tsv" | tr '\t' ' ' | paste -sd, | sed 's/,/, /g') || known=
    [[ -n $package_kind ]] || die 2 "no support for ${id:-an unknown system} ${version:-}" "known: $known"
    distro="$id $version"
}

check_python() {
    local minor
    if [[ -z $root ]]; then
        python3 -c 'import sys; sys.exit(sys.version_info < (3, 7))' 2>/dev/null && return
    else
        for ((minor = 7; minor < 30; minor++)); do
            [[ -e $root/usr/bin/python3 && -e $root/usr/bin/python3.$minor ]] && return
        done
    fi
    die 1 "the event monitor needs Python 3.7 or newer as /usr/bin/python3" \
        "install it first: yum install python3, or apt-get install python3"
}

systemd_version() {
    local library
    if [[ -z $root ]]; then
        systemctl --version | awk 'NR == 1 { print $2 + 0 }'
        return
    fi
    # systemd 219 has no shared library of its own; later ones carry the version in its name.
    for library in "$root"/{usr/,}lib/systemd/libsystemd-shared-*.so "$root"/usr/lib/*-linux-gnu/systemd/libsystemd-shared-*.so; do
        [[ -e $library ]] || continue
        library=${library##*shared-}
        echo "${library%%[!0-9]*}"
        return
    done
    echo 219
}

# ------------------------------------------------------------------ the plan: what goes where

# Every regular file below FOLDER goes to the same place below /.
plan_folder() {
    local folder=$1 prefix=$2 file files
    files=$(find "$folder" -type f | sort) || die 1 "$folder cannot be listed"
    while IFS= read -r file; do
        [[ -n $file ]] || continue
        printf '%s\t%s\n' "$file" "$prefix/${file#"$folder"/}" || die 1 "the plan in $work cannot be written"
    done <<<"$files" >>"$work/plan"
}

make_plan() {
    local version
    plan_folder "$work/files" ''
    version=$(systemd_version)
    if ((version < 240)); then
        # Drop-ins with settings that it does not know.
        awk -F '\t' '$2 !~ /system\/kiln-[^\/]*[.]service[.]d\//' "$work/plan" >"$work/plan.new"
        mv "$work/plan.new" "$work/plan"
    fi
    if [[ -n $with_agent ]]; then
        plan_folder "$agent_config" "$agent_etc"
    else
        awk -F '\t' '$2 !~ /amazon-cloudwatch-agent|dcgm|agent-sources/' \
            "$work/plan" >"$work/plan.new"
        mv "$work/plan.new" "$work/plan"
    fi
    # What was planned later for a place wins.
    awk -F '\t' 'NR == FNR { last[$2] = FNR; next } last[$2] == FNR' "$work/plan" "$work/plan" \
        >"$work/plan.new"
    mv "$work/plan.new" "$work/plan"
}

# The configuration for the agent that is installed: an old one stops at keys it does not know.
choose_agent_config() {
    local have folder folders
    [[ -n $with_agent ]] || return 0
    have=$(agent_version)
    folders=$(find "$work/agent" -mindepth 1 -maxdepth 1 -type d -printf '%f\n' | sort -V) || die 1 "$work/agent cannot be listed"
    mapfile -t folders <<<"$folders"
    agent_config=
    for folder in "${folders[@]}"; do
        version_at_least "$have" "$folder" && agent_config=$work/agent/$folder
    done
    [[ -n $agent_config ]] || die 1 "the CloudWatch agent here (${have:-of an unknown version}) is too old" \
        "it must be ${folders[0]} or newer: upgrade it, or use --without-agent"
}

agent_version() { grep -oE '[0-9]+(\.[0-9]+)+' "$agent_home/bin/CWAGENT_VERSION" 2>/dev/null | head -n 1 || true; }

version_at_least() {
    local sorted
    [[ -n $1 ]] || return 1
    sorted=$(printf '%s\n%s\n' "$1" "$2" | sort -V) || die 1 "the versions $1 and $2 cannot be compared"
    [[ ${sorted%%$'\n'*} == "$2" ]]
}

# ------------------------------------------------------------------ the agent's package

install_agent() {
    local arch url sum seen file version
    [[ -z $with_agent || -e $agent_home/bin/CWAGENT_VERSION ]] && return
    [[ -z $root ]] || die 1 "the CloudWatch agent is not in $root" \
        "install its package there first, or use --without-agent"
    file=$agent_package
    if [[ -z $file ]]; then
        arch=$(uname -m)
        url=$(awk -F '\t' -v d="$distro" -v a="$arch" '$1 == d && $2 == a { print $3 }' "$work/packages.tsv")
        sum=$(awk -F '\t' -v d="$distro" -v a="$arch" '$1 == d && $2 == a { print $4 }' "$work/packages.tsv")
        [[ -n $url ]] || die 1 "the CloudWatch agent is not installed, and this bundle knows no package of it for $distro on $arch" \
            "install amazon-cloudwatch-agent, or use --agent-package FILE or --without-agent"
        file=$work/${url##*/}
        say "fetching $url"
        python3 - "$url" "$file" <<'EOF' || die 1 "$url cannot be fetched" "download it elsewhere and use --agent-package FILE"
import shutil, sys, urllib.request
try:
    with urllib.request.urlopen(sys.argv[1], timeout=60) as source, open(sys.argv[2], "wb") as target:
        shutil.copyfileobj(source, target)
except OSError as error:
    sys.exit(str(error))
EOF
        seen=$(checksum "$file") || exit 1
        [[ $seen == "$sum" ]] || die 1 "$url is not the file this bundle was made for" \
            "its SHA-256 should be $sum"
    fi
    case $package_kind in
        rpm) rpm -U "$file" >&2 ;;
        deb) dpkg -i "$file" >&2 ;;
    esac || die 1 "the package of the CloudWatch agent does not install" "the message is above"
    mkdir -p "$state"
    : >"$state/agent-installed"
    version=$(agent_version)
    say "installed the CloudWatch agent $version"
}

# The agent merges all its files, and a clash with a file that was here before would stop it: so its
# own translator has to accept them together before anything is changed.
check_agent_accepts() {
    local stage=$work/stage file translator=$agent_home/bin/config-translator
    [[ -n $with_agent && -z $root && -x $translator ]] || return 0
    mkdir -p "$stage" "$work/translated"
    for file in "$agent_home/etc/amazon-cloudwatch-agent.d"/*; do
        [[ -f $file && ${file##*/} != kiln-* ]] && cp "$file" "$stage/"
    done
    # The second is what kiln-agent-sources falls back to: it leaves the log group's retention to others.
    for file in "$agent_config"/amazon-cloudwatch-agent.d/kiln-events.json "$agent_config"/kiln.d/events-plain.json; do
        cp "$file" "$stage/kiln-events.json"
        "$translator" --input "$agent_home/etc/amazon-cloudwatch-agent.json" --input-dir "$stage" \
            --output "$work/translated/agent.toml" --mode auto --multi-config remove \
            >"$work/translator.log" 2>&1 && return
    done
    cat "$work/translator.log" >&2
    die 1 "the CloudWatch agent would not start with its configuration and ours together" \
        "its messages are above; the files on this instance are unchanged"
}

# ------------------------------------------------------------------ files, and the way back

checksum() {
    local sum
    sum=$(sha256sum <"$1") || die 1 "$1 cannot be read"
    printf '%s\n' "${sum%% *}"
}

# The checksum under which we put PATH here last time, empty when we did not.
ours() {
    [[ -e $state/manifest ]] || return 0
    awk -v path="$1" '$2 == path { print $1 }' "$state/manifest" || die 1 "$state/manifest cannot be read"
}

# Files under /etc/kiln that somebody edited since we put them there stay as they are.
note_edited() {
    local sum path now
    edited_paths=$'\n'
    [[ -e $state/manifest ]] || return 0
    while read -r sum path; do
        [[ $path == /etc/kiln/* && -e $root$path ]] || continue
        now=$(checksum "$root$path") || exit 1
        [[ $now == "$sum" ]] || edited_paths+=$path$'\n'
    done <"$state/manifest"
}

edited() { [[ $edited_paths == *$'\n'"$1"$'\n'* ]]; }

# A file that others put where ours goes is kept, and --uninstall puts it back.
keep_foreign() {
    local source path placed=''
    [[ ! -e $state/manifest ]] || placed=$(<"$state/manifest")
    while IFS=$'\t' read -r source path; do
        [[ -e $root$path ]] || continue
        [[ $placed$'\n' != *" $path"$'\n'* ]] || continue
        cmp -s "$source" "$root$path" && continue
        mkdir -p "$state/before${path%/*}"
        cp -a "$root$path" "$state/before$path"
        if [[ $path == /etc/systemd/system/* ]] && systemd_unit is-enabled "${path##*/}" >/dev/null 2>&1; then
            echo "${path##*/}" >>"$state/enabled-before"
        fi
        say "kept the $path that was here before"
    done <"$work/plan"
}

# The unit of the original pipeline has the name that ours has as an alias.
set_aside_original() {
    local unit=aws-hw-monitor.service path=/etc/systemd/system/aws-hw-monitor.service before
    [[ -f $root$path && ! -L $root$path ]] || return 0
    before=$(ours "$path") || exit 1
    [[ -z $before ]] || return 0
    mkdir -p "$state/before${path%/*}"
    cp -a "$root$path" "$state/before$path"
    ! systemd_unit is-enabled "$unit" >/dev/null 2>&1 || echo "$unit" >>"$state/enabled-before"
    leave_units "$unit"
    rm -f "$root$path"
    say "kept the $path that was here before"
}

# Written before the files are: a run that is cut off can be taken back.
write_manifest() {
    local path sum sums
    mkdir -p "$state"
    sums=$(cut -f 1 "$work/plan" | tr '\n' '\0' | xargs -0 sha256sum) || die 1 "the files in $work cannot be read"
    while IFS=$'\t' read -r _ path; do
        read -r sum _ <&3 || die 1 "the files in $work cannot be read"
        if edited "$path"; then
            sum=$(ours "$path") || exit 1
        fi
        printf '%s %s\n' "$sum" "$path"
    done <"$work/plan" 3<<<"$sums" >"$work/manifest"
    : >"$work/gone"
    if [[ -e $state/manifest ]]; then
        awk 'NR == FNR { now[$2]; next } !($2 in now) { print $2 }' "$work/manifest" "$state/manifest" >"$work/gone"
    fi
}

put_files() {
    local source path mode now
    changed=
    while IFS=$'\t' read -r source path; do
        if edited "$path"; then
            say "left your own $path as it is"
            continue
        fi
        mode=644
        [[ -x $source ]] && mode=755
        if [[ -e $root$path ]] && cmp -s "$source" "$root$path"; then
            now=$(stat -c %a "$root$path")
            [[ $now != "$mode" ]] || continue
        fi
        install -D -m "$mode" "$source" "$root$path.kiln-new"
        mv -f "$root$path.kiln-new" "$root$path"
        changed=yes
    done <"$work/plan"
    while read -r path; do
        ! grep -qs '^\[Install\]' "$root$path" || leave_units "${path##*/}"
        rm -f "$root$path"
        changed=yes
    done <"$work/gone"
}

# Puts our units that have an [Install] section into the array `units`.
list_units() {
    local path
    units=()
    while read -r _ path; do
        [[ $path == /etc/systemd/system/* && ${path#/etc/systemd/system/} != */* ]] || continue
        ! grep -qs '^\[Install\]' "$root$path" || units+=("${path##*/}")
    done <"$state/manifest"
}

systemd_unit() {
    if [[ -n $root ]]; then systemctl --root="$root" "$@"; else systemctl "$@"; fi
}

leave_units() {
    [[ -n $root ]] || systemctl -q stop "$@" || true
    systemd_unit disable "$@" >/dev/null 2>&1 || true
}

run_systemd() {
    local unit units type all restarted=()
    list_units
    all=(${units[@]+"${units[@]}"})
    if [[ -n $with_agent ]]; then
        systemd_unit is-enabled amazon-cloudwatch-agent.service >/dev/null 2>&1 || : >"$state/agent-enabled"
        all+=(amazon-cloudwatch-agent.service)
    fi
    systemd_unit enable "${all[@]}" >"$work/enable.log" 2>&1 \
        || { cat "$work/enable.log" >&2; die 1 "systemd does not enable ${all[*]}"; }
    [[ -n $start ]] || return 0
    systemctl daemon-reload
    for unit in "${all[@]}"; do
        type=$(systemctl show -p Type "$unit") || die 1 "systemctl does not know $unit"
        if [[ $type == Type=oneshot ]]; then
            # The unit is a check that reports by itself: a GPU that fails it must not fail this script.
            [[ -z $changed ]] || systemctl restart --no-block "$unit" || true
        elif [[ -n $changed ]] || ! systemctl -q is-active "$unit"; then
            systemctl restart "$unit" || die 1 "$unit does not start" "see: journalctl -u $unit"
            restarted+=("$unit")
        fi
    done
    ((${#restarted[@]})) || return 0
    changed=yes
    sleep 2
    for unit in "${restarted[@]}"; do
        ! systemctl -q is-failed "$unit" || die 1 "$unit started and failed" "see: journalctl -u $unit"
    done
}

bundle_install() {
    check_distro
    check_python
    install_agent
    choose_agent_config
    check_agent_accepts
    make_plan
    note_edited
    keep_foreign
    set_aside_original
    write_manifest
    # Old and new until all files are in place, so that a cut between two runs loses no name.
    { cat "$work/manifest"; grep -F -f "$work/gone" "$state/manifest" 2>/dev/null || true; } >"$state/manifest.new"
    mv -f "$state/manifest.new" "$state/manifest"
    put_files
    cp "$work/manifest" "$state/manifest.new"
    mv -f "$state/manifest.new" "$state/manifest"
    run_systemd
    if [[ -z $changed ]]; then
        say "nothing to do: all of it is here and runs"
    elif [[ -n $start ]]; then
        say "installed and running; events go to /var/log/gpuevent.log"
    else
        say "installed; it starts at the next boot"
    fi
}

# Folders that are ours, upwards; never /opt or /usr/local/bin, empty as they may be.
remove_empty() {
    local folder=$1
    while [[ $folder == /opt/kiln* || $folder == /etc/kiln* || $folder == *.service.d || $folder == */kiln.d ]]; do
        # A run that was cut off may have made a folder without the one below it.
        [[ ! -d $root$folder ]] || rmdir "$root$folder" 2>/dev/null || return 0
        folder=${folder%/*}
    done
}

# The package came with us, so it goes with us, and what the agent wrote beside it; not so a
# configuration that somebody gave it since.
remove_agent() {
    case $package_kind in
        rpm) rpm -e amazon-cloudwatch-agent >&2 ;;
        deb) dpkg --purge amazon-cloudwatch-agent >&2 ;;
    esac || die 1 "the package of the CloudWatch agent cannot be removed" "the message is above"
    if compgen -G "$agent_home/etc/amazon-cloudwatch-agent.d/*" >/dev/null \
        || [[ -e $agent_home/etc/amazon-cloudwatch-agent.json ]]; then
        say "left the configuration in $agent_home/etc that is not ours"
        return
    fi
    rm -rf "$agent_home"
    rmdir "${agent_home%/*}" 2>/dev/null || true
}

# File by file: a copy of the folders would change the modes of / and others.
bring_back() {
    local path paths
    paths=$(cd "$state/before" && find . ! -type d) || die 1 "$state/before cannot be listed"
    while IFS= read -r path; do
        [[ -n $path ]] || continue
        mkdir -p "$root/${path%/*}"
        cp -a "$state/before/$path" "$root/$path" || die 1 "$root/$path cannot be brought back"
    done <<<"$paths"
}

bundle_uninstall() {
    local path units all
    if [[ ! -d $state ]]; then
        say "nothing to do: it is not installed here"
        return
    fi
    # A run that was cut off before it placed files has none.
    : >>"$state/manifest"
    note_edited
    list_units
    ((${#units[@]} == 0)) || leave_units "${units[@]}"
    rm -f "$agent_home/etc/kiln.d"/{dcgm-scrape.yaml,kiln-events.full,kiln-events.held}
    while read -r _ path; do
        if edited "$path"; then
            say "left your own $path"
            continue
        fi
        rm -f "$root$path" "$root$path.kiln-new"
        [[ $path != *.py ]] || rm -rf "$root${path%/*}/__pycache__"
        remove_empty "${path%/*}"
    done <"$state/manifest"
    rm -f "$agent_home/etc/amazon-cloudwatch-agent.d"/kiln-{gpu,efa,host,dcgm}.json
    if [[ -d $state/before ]]; then
        bring_back
        say "brought back what was here before"
    fi
    [[ -n $root ]] || systemctl daemon-reload
    if [[ -e $state/enabled-before ]]; then
        mapfile -t all <"$state/enabled-before"
        systemd_unit enable "${all[@]}" >/dev/null 2>&1 || true
        [[ -n $root ]] || systemctl restart "${all[@]}" || say "${all[*]} from before does not start"
    fi
    if [[ -e $state/agent-installed ]]; then
        leave_units amazon-cloudwatch-agent.service
        remove_agent
    elif [[ -e $state/agent-enabled ]]; then
        leave_units amazon-cloudwatch-agent.service
    elif [[ -z $root && -e $agent_home/bin/CWAGENT_VERSION ]]; then
        # Without a file to read it exits, which is not a failure.
        systemctl -q try-restart amazon-cloudwatch-agent.service || true
    fi
    rm -rf "$state"
    rmdir "$root/var/lib/kiln" 2>/dev/null || true
    say "uninstalled; /var/log/gpuevent.log was left"
}

main() {
    parse "$@"
    unpack
    if [[ -n $uninstall ]]; then
        check_distro
        bundle_uninstall
    else
        bundle_install
    fi
}
