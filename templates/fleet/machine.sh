#!/bin/bash
# What AMIKiln-InstallTelemetry does on a machine. `./invoke fleet.install` puts this text into the
# document; it is run as root by bash, from its standard input.
#
# What it needs to take everything back is in /var/lib/kiln/fleet:
#   bundle.sh       the installer that is in force
#   unconfirmed     an installation began, and its reports have not been seen in CloudWatch
#   former.sh       the installer that was in force when it began, where there was one
#   aside-now       the agent's files that it put aside
#   agent-before/   the agent's configuration that --replace put aside
#   agent-was       whether the agent ran before: active or inactive
#   agent-package   the version of the agent that came with us
set -uo pipefail
export LC_ALL=C PATH=/usr/sbin:/usr/bin:/sbin:/bin

umask 022

home=/var/lib/kiln/fleet
incoming=$home/incoming/kiln-telemetry.sh
agent=/opt/aws/amazon-cloudwatch-agent
unit=amazon-cloudwatch-agent.service

say() { printf 'kiln-fleet: %s\n' "$*"; }

die() {
    printf 'kiln-fleet: ERROR: %s\n' "$*" >&2
    exit 1
}

checksum() {
    local sum
    sum=$(sha256sum <"$1") || die "$1 cannot be read"
    printf '%s\n' "${sum%% *}"
}

# The agent's configuration that is not ours, a file a line.
not_ours() {
    local file
    for file in "$agent"/etc/amazon-cloudwatch-agent.json "$agent"/etc/amazon-cloudwatch-agent.d/*; do
        [[ -f $file && ${file##*/} != kiln-* && $file != *.tmp ]] && printf '%s\n' "$file"
    done
    return 0
}

# ------------------------------------------------------------------ look: what is there

look() {
    local driver='' version='' baked='' installed='' files
    driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null </dev/null | head -n 1) || driver=
    [[ $driver =~ ^[0-9]+(\.[0-9]+)+$ ]] || driver=
    version=$(grep -oE '[0-9]+(\.[0-9]+)+(b[0-9]+)?' "$agent/bin/CWAGENT_VERSION" 2>/dev/null | head -n 1) || version=
    [[ ! -e $home/bundle.sh ]] || installed=$(checksum "$home/bundle.sh")
    if [[ -e /etc/systemd/system/kiln-xid.service && ! -d /var/lib/kiln/telemetry ]]; then
        [[ ! -d /opt/kiln/lib/gpu_xid ]] || baked=yes
    fi
    files=$(not_ours | sed 's|.*/||' | head -n 20 | paste -sd,)
    printf 'driver=%s\nagent=%s\nbundle=%s\nimage=%s\nfiles=%s\n' \
        "$driver" "$version" "$installed" "$baked" "$files"
    printf 'bundle_by_hand=%s\n' "$([[ ! -d /var/lib/kiln/telemetry || -e $home/bundle.sh ]] || echo yes)"
    printf 'unconfirmed=%s\n' "$([[ ! -e $home/unconfirmed ]] || echo yes)"
    printf 'agent_package=%s\n' "$(cat "$home/agent-package" 2>/dev/null)"
    printf 'agent_runs=%s\n' "$(systemctl is-active "$unit" 2>/dev/null)"
}

# ------------------------------------------------------------------ install

# prepare SHA256 AGENT: is the bundle the right one, and may it be installed? Notes what comes with us.
prepare() {
    local sum was
    [[ -f $incoming ]] || die "the bundle was not downloaded"
    sum=$(checksum "$incoming") || exit 1
    if [[ $sum != "$1" ]]; then
        rm -f "$incoming"
        die "the bundle's SHA-256 is $sum and not $1: nothing was changed"
    fi
    [[ ! -d /var/lib/kiln/telemetry || -e $home/bundle.sh ]] \
        || die "a bundle was installed here by hand: run it with --uninstall first"
    if [[ $2 == Install ]]; then
        printf '%s\n' "$3" >"$home/agent-package" || die "$home cannot be written"
    fi
    [[ ! -s $home/agent-was ]] || return 0
    # Its exit status is not 0 for a unit that does not run.
    was=$(systemctl is-active "$unit" 2>/dev/null)
    printf '%s\n' "${was:-unknown}" >"$home/agent-was" || die "$home cannot be written"
}

# put_aside: the agent's own configuration goes to where it can be brought back from.
put_aside() {
    local file
    while IFS= read -r file; do
        printf '%s\n' "$file" >>"$home/aside-now" || die "$home cannot be written"
        mkdir -p "$home/agent-before${file%/*}" || die "$home cannot be written"
        cp -a "$file" "$home/agent-before$file" || die "$home cannot be written"
        rm -f "$file"
        say "put $file aside"
    done < <(not_ours)
}

# begin: what is there now is what put_back brings back. An installation that did not end is not begun
# again: what it left half-made is not what was there. Links, because they need no space on a full disk.
begin() {
    rm -f "$home/former.sh" "$home/aside-now"
    if [[ -e $home/bundle.sh ]]; then
        ln -f "$home/bundle.sh" "$home/former.sh" || die "$home cannot be written"
    fi
    : >"$home/unconfirmed" || die "$home cannot be written"
}

# confirm: metrics and the test event are in CloudWatch, so the installation has ended.
confirm() {
    rm -f "$home/unconfirmed" "$home/former.sh" "$home/aside-now" || die "$home cannot be written"
}

# install_bundle REPLACE MARK
install_bundle() {
    [[ -e $home/unconfirmed ]] || begin
    mv -f "$incoming" "$home/bundle.sh" || die "$home cannot be written"
    rmdir "$home/incoming"
    [[ $1 != yes ]] || put_aside
    bash "$home/bundle.sh" </dev/null || exit 1
    test_event "$2"
}

instance_id() {
    local file=/var/lib/cloud/data/instance-id token
    if [[ -s $file ]]; then
        cat "$file"
        return
    fi
    token=$(curl -sf -m 2 -X PUT -H 'X-aws-ec2-metadata-token-ttl-seconds: 60' \
        http://169.254.169.254/latest/api/token) &&
        curl -sf -m 2 -H "X-aws-ec2-metadata-token: $token" \
            http://169.254.169.254/latest/meta-data/instance-id
}

# test_event MARK: a line as the driver writes it, by the way of the real ones. Xid 14 is the driver's
# own test error; a line from user space is marked `injected`, and hooks do not run on it. The agent keeps
# the last line of a file for five seconds, as it may go on: a second event lets it send the first.
test_event() {
    local id line
    id=$(instance_id) || die "the instance's id is not known"
    for line in "0): 14, pid=1, name=$1-$id, test of the way to CloudWatch" "1): 14, pid=1, name=$1, end of the test"; do
        printf 'NVRM: Xid (PCI:0000:00:0%s\n' "$line" >>/dev/kmsg \
            || die "/dev/kmsg cannot be written: no test event"
    done
}

# ------------------------------------------------------------------ the way back

bring_back_configuration() {
    local file
    [[ -d $home/agent-before ]] || return 0
    # File by file: a copy of the folders would change the modes of / and /opt.
    while IFS= read -r file; do
        mkdir -p "${file%/*}"
        cp -a "$home/agent-before$file" "$file" || die "$file cannot be brought back"
    done < <(find "$home/agent-before" -type f | sed "s|^$home/agent-before||")
    rm -rf "$home/agent-before"
    say "brought back the agent's former configuration"
}

uninstall() {
    local was=
    rm -rf "$home/incoming"
    if [[ -e $home/bundle.sh ]]; then
        bash "$home/bundle.sh" --uninstall </dev/null || die "the bundle does not uninstall: see above"
    fi
    bring_back_configuration
    [[ ! -e $home/agent-was ]] || was=$(<"$home/agent-was")
    # Without that note nothing was changed yet.
    if [[ -n $was && -e $agent/bin/CWAGENT_VERSION ]]; then
        if [[ $was == active ]]; then
            systemctl restart "$unit" || die "$unit does not start: see journalctl -u $unit"
        else
            systemctl stop "$unit" || die "$unit does not stop: see journalctl -u $unit"
        fi
    fi
    rm -rf "$home"
    rmdir /var/lib/kiln 2>/dev/null
    say "everything is as it was before"
}

# put_back: what this installation changed; an earlier bundle is in force again. Exit status 168 ends the
# document there, so that the agent's package stays.
put_back() {
    local file
    rm -rf "$home/incoming"
    if [[ -e $home/bundle.sh && ! -e $home/unconfirmed ]]; then
        say "nothing was changed: the bundle from before is in force"
        exit 168
    fi
    if [[ ! -e $home/former.sh ]]; then
        uninstall
        return
    fi
    if [[ -e $home/aside-now ]]; then
        while IFS= read -r file; do
            [[ -e $home/agent-before$file ]] || continue
            mv -f "$home/agent-before$file" "$file" || die "$file cannot be brought back"
        done <"$home/aside-now"
    fi
    ln -f "$home/former.sh" "$home/bundle.sh" || die "$home cannot be written"
    bash "$home/bundle.sh" </dev/null || die "the bundle from before does not install: see above"
    confirm
    say "the bundle from before is in force again"
    exit 168
}

main() {
    local action=$1
    shift
    case $action in
        look) look ;;
        prepare) prepare "$@" ;;
        install) install_bundle "$@" ;;
        confirm) confirm ;;
        put-back) put_back ;;
        uninstall) uninstall ;;
        *) die "unknown action $action" ;;
    esac
}

main "$@" </dev/null
