# shellcheck shell=bash
# The time limit of a script. Part of kiln.sh.
#
# bash runs a trap only when the command before it has ended. So another process beside the script waits;
# when the time is up it writes down what runs, signals the script, and ends what runs below the script.
# A process that not even KILL ends is Packer's to leave: its own limit is five minutes longer.
# shellcheck disable=SC2154  # kiln.sh sets the variables
set -euo pipefail

# Starts that process. Without output: as long as somebody has the script's output open, SSH waits. In $(…),
# so that it is no child of the script, whose `wait` would wait for it.
_kiln_limit_time() {
    [[ -n $KILN_TIME_LIMIT ]] || return 0
    _kiln_watcher=$(_kiln_watch </dev/null >/dev/null 2>&1 & printf '%s\n' "$!") || true
    # Later than the fork: until bash has reset it there, the signal would be lost.
    trap '_kiln_time_is_up "$BASH_COMMAND"' TERM
}

# The process's own end, with the script's.
_kiln_forget_limit() {
    [[ -z ${_kiln_watcher:-} ]] || kill "$_kiln_watcher" 2>/dev/null || true
    trap '' TERM
}

_kiln_watch() {
    trap - ERR
    set +eu
    local below=() deepest='' word text='' script now
    read -ra script <"/proc/$$/stat"
    # The script may end at once: before there is a child, or while bash in it still has this trap.
    trap '[[ -z $! ]] || kill -KILL "$!"; exit' TERM
    sleep "$KILN_TIME_LIMIT" &
    wait "$!" || exit
    # By its start: a script that was killed is gone, and another process may have its number.
    read -ra now <"/proc/$$/stat"
    [[ -n ${now[21]} && ${now[21]} == "${script[21]}" ]] || exit
    _kiln_find_below "$$"
    [[ -z $deepest ]] || while IFS= read -r -d '' word; do text+="$word "; done <"/proc/$deepest/cmdline"
    printf '%s\n' "${text% }" >"$_kiln_overtime"
    kill "$$" "${below[@]}"
    sleep 10
    kill -KILL "${below[@]}"
}

# Sets `below` of the caller: the processes below PID, each after its parent; and `deepest`, for which the
# others wait: of several (a pipe) the first.
_kiln_find_below() { # PID
    local status key value parent=() level=("$1") next pid child
    for status in /proc/[0-9]*/status; do
        while read -r key value; do
            [[ $key != PPid: ]] || parent[${status//[!0-9]/}]=$value
        done <"$status"
    done
    while ((${#level[@]})); do
        next=()
        for pid in "${level[@]}"; do
            for child in "${!parent[@]}"; do
                ((parent[child] != pid)) || next+=("$child")
            done
        done
        level=("${next[@]}")
        below+=("${level[@]}")
        deepest=${level[0]:-$deepest}
    done
}

# When the script is over: what it started and left behind may have its output open, and SSH waits for that, so
# Packer too. It gets half a minute, then it is ended; after a script that succeeded that is an error.
_kiln_release_output() { # STATUS
    local holders=() waited=0 word text=''
    _kiln_find_holders
    while ((${#holders[@]} && $1 == 0 && waited < 30)); do
        sleep 1 || true
        ((++waited))
        _kiln_find_holders
    done
    ((${#holders[@]})) || return 0
    { while IFS= read -r -d '' word; do text+="$word "; done <"/proc/${holders[0]}/cmdline"; } 2>/dev/null || true
    kill -KILL "${holders[@]}" 2>/dev/null || true
    (($1 == 0)) || return 0
    kiln_say "ERROR: it ended, but a process that it started still has its output open, so SSH would wait"
    text=${text% }
    kiln_say "  what ran then: ${text//$'\n'/; }"
    kiln_say "  make it a unit, or start it with </dev/null >/dev/null 2>&1"
    exit 1
}

# Sets `holders` of the caller: processes that have the script's output open, but for those that run the
# script, and those that read a pipe of it and so end with it (tee). No forks: each would be one.
_kiln_find_holders() {
    local own=/proc/$$/fd above=" $$ " pid=$$ key value status output file input
    holders=()
    while ((pid > 1)); do
        while read -r key value; do
            [[ $key != PPid: ]] || pid=$value
        done <"/proc/$pid/status" || break
        above+="$pid "
    done
    for status in /proc/[0-9]*; do
        pid=${status#/proc/}
        [[ $above != *" $pid "* ]] || continue
        for output in 1 2; do
            # A file or /dev/null makes nobody wait.
            [[ -p $own/$output || -S $own/$output ]] || continue
            for file in 1 2; do
                [[ $status/fd/$file -ef $own/$output ]] || continue
                for input in "$own"/*; do
                    [[ $input == */0 || ! -p $input || ! $status/fd/0 -ef $input ]] || continue 4
                done
                holders+=("$pid")
                continue 3
            done
        done
    done
}

# Ends the script with the message. This trap does not know the line of a command in a function: it is the
# only one with that command, or else that of the call.
_kiln_time_is_up() { # COMMAND
    # Somebody else's signal, as at a shutdown.
    [[ -e $_kiln_overtime ]] || exit 143
    local running number=0 text lines=() amount=${KILN_TIME_LIMIT%[smh]}
    trap '' TERM
    # bash 4.2 gives the trap's own command.
    [[ $1 != _kiln_time_is_up* ]] || set -- 'bash itself'
    # It stays, for what TERM does not end.
    _kiln_watcher=''
    running=$(<"$_kiln_overtime") || true
    rm -f "$_kiln_overtime" || true
    kiln_say "ERROR: it did not end within its time limit, $KILN_TIME_LIMIT"
    running=${running:-$1}
    kiln_say "  what ran then: ${running//$'\n'/; }"
    if [[ -n $_kiln_failure_place ]]; then
        printf '%s\n' "$_kiln_failure_place" >&2
    elif [[ ${FUNCNAME[1]} == main || ${FUNCNAME[1]} == _kiln_finish ]]; then
        kiln_say "  at: $KILN_COMPONENT.sh line $_kiln_line"
    else
        while IFS= read -r text; do
            ((++number))
            [[ $text != *"$1"* ]] || lines+=("$number")
        done <"${BASH_SOURCE[1]}"
        if ((${#lines[@]} == 1)); then _kiln_place 1 "${lines[0]}"; else _kiln_place 2; fi
    fi
    text=$((2 * amount))${KILN_TIME_LIMIT#"$amount"}
    kiln_say "  if it only needs longer: --time-limits $KILN_COMPONENT=$text, or in amis.yaml" \
        "aws: {time_limits: {$KILN_COMPONENT: $text}}"
    : >"$_kiln_reported" || true
    exit 1
}
