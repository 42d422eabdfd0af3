#!/usr/bin/env bash
# Right before the snapshot: is anything of the build instance left? Every finding is named and stops the
# bake. Needs nothing from the upload, which is gone by now; leaves /etc/kiln/hygiene.json.
set -euo pipefail
export LC_ALL=C
root=${KILN_ROOT:-}
report=$root/etc/kiln/hygiene.json
results=() failed=0

# check WHAT FOUND: FOUND is what should not be there, one per line.
check() {
    local found
    found=$(head -n 5 <<<"$2" | tr '\n' ' ' | tr -d '\\"' | cut -c1-300)
    found=${found%"${found##*[! ]}"}
    if [[ -n $found ]]; then
        failed=$((failed + 1))
        printf 'kiln: hygiene: ERROR: %s: %s\n' "$1" "$found" >&2
        results+=("$(printf '{"check": "%s", "ok": false, "found": "%s"}' "$1" "$found")")
    else
        results+=("$(printf '{"check": "%s", "ok": true}' "$1")")
    fi
}

# under PATH… -- FIND-EXPRESSION: what find sees, quietly when a path is missing.
under() {
    local paths=()
    while [[ $1 != -- ]]; do paths+=("$root$1"); shift; done
    shift
    find "${paths[@]}" "$@" 2>/dev/null || true
}

mapfile -t homes < <(awk -F: -v root="$root" '$6 ~ "^/" && $6 != "/" { print $6 }' "$root/etc/passwd" | sort -u)

check "SSH host keys" "$(under /etc/ssh -- -name 'ssh_host_*')"
check "SSH keys of users" "$(under "${homes[@]/%//.ssh}" -- -type f)"
check "shell and tool histories" "$(under "${homes[@]}" -- -maxdepth 1 -type f \( -name '.*_history' -o -name .lesshst -o -name .viminfo -o -name .wget-hsts \))"
check "credentials of users" "$(under "${homes[@]}" -- -maxdepth 1 \( -name .aws -o -name .docker -o -name .kube -o -name .netrc -o -name .git-credentials \))"
# Key blocks, not key names: the pattern must not find itself in this script's own upload.
check "private keys" "$(grep -rlIs --include='*' -e '-----BEGIN [A-Z ]*PRIVATE KEY-----' "$root"/root "$root"/home "$root"/etc/ssh "$root"/etc/kiln "$root"/opt/kiln "$root"/var/lib/cloud || true)"
check "AWS access keys" "$(grep -rlIsE '(^|[^A-Z0-9])(AKIA|ASIA)[A-Z0-9]{16}([^A-Z0-9]|$)' "$root"/root "$root"/home "$root"/etc "$root"/opt/kiln "$root"/var/log || true)"
check "machine id" "$(grep -sE '^[0-9a-f]{32}$' "$root/etc/machine-id" || true)"
check "D-Bus machine id" "$([[ -L $root/var/lib/dbus/machine-id ]] || under /var/lib/dbus/machine-id -- -type f)"
check "cloud-init state" "$(under /var/lib/cloud/instances /var/lib/cloud/sem /var/lib/cloud/data -- -mindepth 1)"
check "random seed and credential secret" "$(under /var/lib/systemd/random-seed /var/lib/systemd/credential.secret -- -type f)"
check "logs with content" "$(under /var/log -- -type f -size +0 ! -path '*/journal/*' ! -name wtmp ! -name lastlog ! -name btmp)"
check "journals of the build instance" "$(under /var/log/journal -- -mindepth 1 -maxdepth 1 -type d)"
check "GPU events" "$(under /var/log -- -name 'gpuevent.log*' -size +0)"
check "CloudWatch agent state" "$(under /opt/aws/amazon-cloudwatch-agent/logs /opt/aws/amazon-cloudwatch-agent/var -- -type f)"
check "SSM agent registration" "$(under /var/lib/amazon/ssm -- -type f)"
check "package caches" "$(under /var/cache/apt/archives /var/cache/yum /var/cache/dnf -- -type f \( -name '*.deb' -o -name '*.rpm' \))"
check "build files" "$(under /var/tmp/kiln -- -maxdepth 0)"
check "temporary files" "$(under /tmp /var/tmp -- -mindepth 1 -maxdepth 1 ! -name 'systemd-private-*' ! -name '.*-unix' ! -path "$0")"
check "passwords" "$(awk -F: '$2 ~ /^[$_]/ || $2 ~ /^[a-zA-Z0-9.\/]{13}$/ { print $1 }' "$root/etc/shadow" 2>/dev/null || true)"

mkdir -p "${report%/*}"
{
    printf '{\n "schema": 1,\n "checked_at": "%s",\n "failed": %d,\n "checks": [\n' "$(date -u +%FT%TZ)" "$failed"
    for index in "${!results[@]}"; do
        printf '  %s%s\n' "${results[index]}" "$([[ $index == $((${#results[@]} - 1)) ]] || echo ,)"
    done
    printf ' ]\n}\n'
} >"$report"
chmod 0644 "$report"
if ((failed)); then
    printf 'kiln: hygiene: %d of %d checks failed: no snapshot is taken\n' "$failed" "${#results[@]}" >&2
    exit 1
fi
printf 'kiln: hygiene: %d checks passed\n' "${#results[@]}" >&2
