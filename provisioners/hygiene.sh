#!/usr/bin/env bash
# Right before the snapshot: is anything of the build instance left? Each finding is named and stops the
# bake. Needs nothing of the upload, which is removed by now, so it has no library; leaves
# /etc/kiln/hygiene.json.
#
#@ env KILN_ROOT     optional  prefix of the paths that are checked, empty on a machine; tests set it
#@ env KILN_PROXY    optional  proxy of the bake
#@ env KILN_MIRRORS  optional  mirrors of the bake: URL=URL …
set -euo pipefail
export LC_ALL=C
root=${KILN_ROOT:-}
report=$root/etc/kiln/hygiene.json
results=() failed=0

# check WHAT COMMAND…: the command prints what must not be there, one per line. A command that fails is a
# finding too: what was not looked at is not proven clean.
check() {
    local what=$1 leftovers status=0
    shift
    leftovers=$("$@") || status=$?
    leftovers=${leftovers//$'\n'/ }
    leftovers=${leftovers//[\\\"]/}
    leftovers=${leftovers:0:300}
    ((status == 0)) || leftovers="cannot be checked: \`$1\` ended with status $status"
    if [[ -n $leftovers ]]; then
        failed=$((failed + 1))
        printf 'kiln: hygiene: ERROR: %s: %s\n' "$what" "$leftovers" >&2
        results+=("{\"check\": \"$what\", \"ok\": false, \"found\": \"$leftovers\"}")
    else
        results+=("{\"check\": \"$what\", \"ok\": true}")
    fi
}

# Sets paths to those of the given paths that exist, below $root.
existing() {
    local path
    paths=()
    for path in "$@"; do
        [[ ! -e $root$path ]] || paths+=("$root$path")
    done
}

# under PATH… -- FIND-EXPRESSION: what find prints.
under() {
    local given=() paths
    while [[ $1 != -- ]]; do given+=("$1"); shift; done
    shift
    existing "${given[@]}"
    # Services that still run create and remove files meanwhile.
    ((${#paths[@]} == 0)) || find "${paths[@]}" -ignore_readdir_race "$@"
}

# containing REGEX PATH…: text files with a line that matches.
containing() {
    local regex=$1 paths
    shift
    existing "$@"
    # 1: no file matches.
    ((${#paths[@]} == 0)) || grep -rlIsE -e "$regex" "${paths[@]}" || (($? == 1))
}

machine_id() { [[ ! -e $root/etc/machine-id ]] || grep -E '^[0-9a-f]{32}$' "$root/etc/machine-id" || (($? == 1)); }

dbus_id() { [[ -L $root/var/lib/dbus/machine-id ]] || under /var/lib/dbus/machine-id -- -type f; }

passwords() {
    [[ ! -e $root/etc/shadow ]] || awk -F: '$2 ~ /^[$_]/ || $2 ~ /^[a-zA-Z0-9.\/]{13}$/ { print $1 }' "$root/etc/shadow"
}

# Sets traces to the proxy's host and port and the mirrors' URLs, as one regular expression.
of_the_bake() {
    local proxy=${KILN_PROXY:-} pair words=()
    proxy=${proxy#*://}
    [[ -z $proxy ]] || words+=("${proxy%/}")
    for pair in ${KILN_MIRRORS:-}; do words+=("${pair#*=}"); done
    ((${#words[@]})) || return 0
    words=("${words[@]//./\\.}")
    local IFS='|'
    traces=${words[*]}
}

homes=$(awk -F: '$6 ~ "^/" && $6 != "/" { print $6 }' "$root/etc/passwd" | sort -u)
mapfile -t homes <<<"$homes"

check "SSH host keys" under /etc/ssh -- -name 'ssh_host_*'
check "SSH keys of users" under "${homes[@]/%//.ssh}" -- -type f
check "shell and tool histories" under "${homes[@]}" -- -maxdepth 1 -type f \( -name '.*_history' -o -name .lesshst -o -name .viminfo -o -name .wget-hsts \)
check "credentials of users" under "${homes[@]}" -- -maxdepth 1 \( -name .aws -o -name .docker -o -name .kube -o -name .netrc -o -name .git-credentials \)
# Key blocks, not key names: the pattern must not match itself in this script's own upload.
check "private keys" containing '-----BEGIN [A-Z ]*PRIVATE KEY-----' /root /home /etc/ssh /etc/kiln /opt/kiln /var/lib/cloud /var/lib/dkms /var/lib/shim-signed
check "AWS access keys" containing '(^|[^A-Z0-9])(AKIA|ASIA)[A-Z0-9]{16}([^A-Z0-9]|$)' /root /home /etc /opt/kiln /var/log
check "machine id" machine_id
check "D-Bus machine id" dbus_id
check "host name" under /etc/hostname -- -type f -size +0
check "package history" under /var/lib/dnf /var/lib/yum/history -- -name 'history*' -type f
check "cloud-init state" under /var/lib/cloud/instances /var/lib/cloud/sem /var/lib/cloud/data -- -mindepth 1
check "random seed and credential secret" under /var/lib/systemd/random-seed /var/lib/systemd/credential.secret -- -type f
# A login that Packer repeats after cleanup.sh may write lastlog.
check "logs with content" under /var/log -- -type f -size +0 ! -path '*/journal/*' ! -name lastlog
check "session logs" under /var/log/wtmp /var/log/btmp -- -type f
check "journals of the build instance" under /var/log/journal -- -mindepth 1 -maxdepth 1 -type d
check "GPU events" under /var/log -- -name 'gpuevent.log*' -size +0
check "CloudWatch agent state" under /opt/aws/amazon-cloudwatch-agent/logs /opt/aws/amazon-cloudwatch-agent/var -- -type f
check "ECS agent registration" under /var/lib/ecs/data /var/lib/ecs/gpu -- -type f
check "ECS agent logs" under /var/log/ecs -- -type f
check "SSM agent registration" under /var/lib/amazon/ssm -- -type f
check "package caches" under /var/cache/apt/archives /var/cache/yum /var/cache/dnf -- -type f \( -name '*.deb' -o -name '*.rpm' \)
check "package sources of a snapshot" under /etc/apt/sources.list.d -- -name kiln-package-snapshot.list
check "build files" under /var/tmp/kiln -- -maxdepth 0
check "temporary files" under /tmp /var/tmp -- -mindepth 1 -maxdepth 1 ! -name 'systemd-private-*' ! -name '.*-unix' ! -path "$0"
check "passwords" passwords
traces=''
of_the_bake
[[ -z $traces ]] || check "proxy and mirrors of the bake" containing "$traces" /etc /root /home /usr/local/etc /opt/kiln /var/lib/cloud /var/lib/dkms /var/log

mkdir -p "${report%/*}"
now=$(date -u +%FT%TZ)
{
    printf '{\n "schema": 1,\n "checked_at": "%s",\n "failed": %d,\n "checks": [\n  %s' "$now" "$failed" "${results[0]}"
    printf ',\n  %s' "${results[@]:1}"
    printf '\n ]\n}\n'
} >"$report"
chmod 0644 "$report"
if ((failed)); then
    printf 'kiln: hygiene: %d of %d checks failed: no snapshot is taken\n' "$failed" "${#results[@]}" >&2
    exit 1
fi
printf 'kiln: hygiene: %d checks passed\n' "${#results[@]}" >&2
