# shellcheck shell=bash
# The library of all provisioners: source "${KILN_DIR:?}/lib/kiln.sh"
#
# packages.sh
#   kiln_install_held "name=version[@build] …"   install exactly these versions, hold them, record them
#   kiln_install name[=version[@build]]…         install; does nothing for what is installed already
#   kiln_hold name…, kiln_unhold name…           keep upgrades from moving packages; allow it again
#   kiln_pm ARGUMENT…                            one run of the package tool, with retries
#   kiln_retry COMMAND…                          the same for a command that fetches packages itself
#   kiln_yum_repo NAME URL KEY [SETTING…]        a repository for yum and dnf
#   kiln_mirrored URL                            the same URL at a mirror of KILN_MIRRORS
# downloads.sh
#   kiln_download X                              fetch X_URL, enforce X_SHA256; prints the file's path
#   kiln_unpack ARCHIVE                          unpack into a new folder; prints the folder's path
#   kiln_check_signature FILE SIG KEY FPR        a detached signature by exactly that key
#   kiln_repo_key FILE FPR NAME                  hand a checked key to the package manager; prints its place
# dkms.sh
#   kiln_boot_kernel, kiln_assert_kernel         print the kernel that will boot, as in `uname -r`
#   kiln_kernel_module KERNEL MODULE             the module is there, from the kernel's further packages if need be
#   kiln_dkms_compiler KERNEL MODULE…            DKMS builds these modules with that kernel's compiler
# image.sh
#   kiln_install_runtime path…                   install files that ship on the AMI, from runtime/
#   kiln_install_units unit…                     install units and their drop-ins, from runtime/
#   kiln_install_files path…                     install files rendered for this recipe, from files/
#   kiln_enable unit…                            enable units; none is started at bake time
#
# bash ignores `set -e` inside `$(…)`, `if`, `||`, `&&` and `<(…)`. So every function here handles the
# failure of each of its steps itself: it prints one message and exits (kiln_die). Inside `$(…)` exit ends
# only the subshell, so a caller writes `name=$(function …) || exit 1`; a script that goes on after an error
# fails at its end. tests/unit/provisioners/test_failing_commands.py runs every function with failing commands.
# bash 4.2 (Amazon Linux 2) has no inherit_errexit and calls an empty "${array[@]}" unbound.
#
# What every script gets. `#@` lines are read by kiln_env below and by the pipeline before a launch.
#@ env KILN_DIR              required  the upload: lib/, runtime/, files/
#@ env KILN_DISTRO           required  distribution, as in amis.yaml: al2, ubuntu2204
#@ env KILN_FAMILY           required  al or debian
#@ env KILN_PACKAGE_MANAGER  required  yum, dnf or apt
#@ env KILN_COMPONENT        required  the script's component
#@ env KILN_MIRRORS          optional  beginning of a URL=what takes its place during the bake, separated by spaces
#@ env KILN_TIME_LIMIT        optional  when the script is ended: 90m, 2h; never when empty
#@ env KILN_PROXY            optional  proxy of the bake, which curl and the package tools have as https_proxy too
#@ env KILN_ETC              optional  where records go, /etc/kiln when empty; tests set it
#@ env KILN_ROOT             optional  prefix of the paths that are installed to, empty on a machine; tests set it
set -euo pipefail
export DEBIAN_FRONTEND=noninteractive NEEDRESTART_MODE=a LC_ALL=C

# ---------------------------------------------------------------- messages

kiln_say() { printf 'kiln: %s: %s\n' "${KILN_COMPONENT:-provisioner}" "$*" >&2; }

# kiln_die MESSAGE [HINT]: stop the bake with one message. In a subshell only the subshell ends: its
# caller must check the status.
kiln_die() {
    local status=$?
    kiln_say "ERROR: $1"
    [[ -z ${2:-} ]] || kiln_say "  $2"
    ((status <= 1)) || kiln_say "  status: $status"
    _kiln_place "${BASH_LINENO[0]}"
    # Tells _kiln_finish that the message has been printed.
    : >"$_kiln_reported" || true
    exit 1
}

# kiln_die_with_log FILE MESSAGE: the end of a build's log, and then the message.
kiln_die_with_log() {
    tail -n 40 "$1" >&2 || true
    kiln_die "$2" "the end of its log is above"
}

# Prints the script's line that led to the caller's caller, and the library's line where it happened.
# kiln/pipeline/bake.py reads the lines.
_kiln_place() { # LINE
    local index inner='' line=$1
    for ((index = 2; index < ${#FUNCNAME[@]}; index++)); do
        case ${BASH_SOURCE[index]:-} in
            "$KILN_DIR"/lib/*) inner=${inner:-lib/${BASH_SOURCE[index]##*/} line $line, ${FUNCNAME[index]}} ;;
            "$0")
                kiln_say "  at: $KILN_COMPONENT.sh line $line"
                break
                ;;
        esac
        line=${BASH_LINENO[index]}
    done
    [[ -z $inner ]] || kiln_say "  in: $inner"
}

# ---------------------------------------------------------------- environment

# kiln_env SCRIPT…: check the variables that the scripts' headers declare. A required one must be given and
# not be empty; an optional one that is missing becomes empty. The pipeline has checked the headers themselves.
kiln_env() {
    local file mark kind name need names missing=()
    for file in "$@"; do
        while read -r mark kind name need _; do
            [[ $mark == '#'* ]] || break
            [[ $mark == '#@' ]] || continue
            names=("$name")
            [[ $kind == env ]] || names=("${name}_URL" "${name}_SHA256")
            [[ $need == optional || -n ${!names[0]:-} ]] || missing+=("${names[0]}")
            for name in "${names[@]}"; do printf -v "$name" '%s' "${!name:-}"; done
        done <"$file" || kiln_die "$file cannot be read"
    done
    ((${#missing[@]} == 0)) || kiln_die "missing or empty in the environment: ${missing[*]}" \
        "the script's header requires it; the component must give it"
}

# ---------------------------------------------------------------- the record of a component

# kiln_record key=value… | key+=word…: written to /etc/kiln/components/<component>.json when the script
# succeeds; checks read it.
_kiln_recorded=()
kiln_record() { _kiln_recorded+=("$@"); }

# Remembers the command that ends the script. In a subshell the command that started it is the one to name.
_kiln_failure=''
_kiln_failed() { # STATUS LINE COMMAND STATUSES
    ((BASH_SUBSHELL == 0)) || return 0
    local command="a command failed with status $1: ${3//$'\n'/; }"
    # bash names the last command of a pipe, also when another one failed.
    [[ $4 != *' 0' ]] || command="a command in a pipe failed with status $1"
    _kiln_failure=$(
        kiln_say "ERROR: $command" 2>&1
        [[ $4 != *' '* ]] || kiln_say "  statuses of the pipe: $4" 2>&1
        _kiln_place "$2" 2>&1
    ) || true
}

# Runs when the script ends. Packer itself reports only that a script failed.
_kiln_finish() { # STATUS COMMAND
    local status=$1
    if ((status == 0)) && [[ -e $_kiln_reported ]]; then
        kiln_say "ERROR: the script went on after the error above"
        exit 1
    fi
    if ((status == 0 && ${#_kiln_recorded[@]})); then
        python3 "$KILN_DIR/lib/record.py" component "$KILN_ETC/components/$KILN_COMPONENT.json" "${_kiln_recorded[@]}" \
            || { kiln_say "ERROR: the component's record cannot be written"; status=1; }
    elif ((status != 0)) && [[ ! -e $_kiln_reported && -n $_kiln_failure ]]; then
        printf '%s\n' "$_kiln_failure" >&2
    elif ((status != 0)) && [[ ! -e $_kiln_reported ]]; then
        # No failed command: exit, an unbound variable, a syntax error. bash's own message is in the output before.
        kiln_say "ERROR: the script ended with status $status: ${2//$'\n'/; }"
        [[ -z $_kiln_line ]] || kiln_say "  at: $KILN_COMPONENT.sh line $_kiln_line"
    fi
    exit "$status"
}
_kiln_line=''

# Runs the script again below `timeout`: TERM goes to all that it started, and half a minute later KILL.
_kiln_limit_time() {
    local status=0 line=''
    rm -f "$_kiln_ended_at"
    KILN_LIMITED=yes timeout -k 30 "$KILN_TIME_LIMIT" "$BASH" "$0" </dev/null || status=$?
    case $status in
        124) kiln_say "ERROR: it did not end within its time limit, $KILN_TIME_LIMIT" ;;
        137) kiln_say "ERROR: it was killed: by its time limit, $KILN_TIME_LIMIT, or by a kernel without memory" ;;
        *) exit "$status" ;;
    esac
    { line=$(<"$_kiln_ended_at"); } 2>/dev/null || true
    [[ -z $line ]] || kiln_say "  at: $KILN_COMPONENT.sh line $line"
    kiln_say "  if it only needs longer: --time-limits $KILN_COMPONENT=…, or in amis.yaml" \
        "aws: {time_limits: {$KILN_COMPONENT: …}}"
    exit 1
}

# A trap does not know the line in a function: the script's is noted.
_kiln_note_end() {
    trap - TERM EXIT
    printf '%s\n' "$_kiln_line" >"$_kiln_ended_at" || true
    exit 143
}

# ---------------------------------------------------------------- small questions

# In a container (the lab) the kernel is the host's: it says nothing about the one that will boot.
kiln_in_container() { systemd-detect-virt --quiet --container; }

# kiln_version_lt A B: is A an older version than B? Numeric, field by field.
kiln_version_lt() {
    local a b index
    IFS=. read -ra a <<<"$1"
    IFS=. read -ra b <<<"$2"
    for ((index = 0; index < ${#a[@]} || index < ${#b[@]}; index++)); do
        # 10#: a field such as 08 is not octal.
        ((10#${a[index]:-0} == 10#${b[index]:-0})) || break
    done
    ((10#${a[index]:-0} < 10#${b[index]:-0}))
}

# ---------------------------------------------------------------- start

_kiln_reported=${KILN_DIR:?}/reported-error
rm -f "$_kiln_reported" || kiln_die "$_kiln_reported cannot be removed"
# Before the trap: what is wrong with the environment is one message.
kiln_env "$KILN_DIR/lib/kiln.sh"
# A shell that was started with -c (tests) has no script and no header.
[[ ! -f $0 ]] || kiln_env "$0"
_kiln_ended_at=$KILN_DIR/ended-at
[[ -z $KILN_TIME_LIMIT || ! -f $0 || -n ${KILN_LIMITED:-} ]] || _kiln_limit_time
KILN_ETC=${KILN_ETC:-/etc/kiln}
mkdir -p "$KILN_ETC/components" || kiln_die "$KILN_ETC/components cannot be made"
# ERR: in functions too (-E). DEBUG: the script's own commands only, not those in functions; an EXIT trap
# does not know the line.
set -E
trap '_kiln_failed "$?" "$LINENO" "$BASH_COMMAND" "${PIPESTATUS[*]}"' ERR
trap '_kiln_finish "$?" "$BASH_COMMAND"' EXIT
trap _kiln_note_end TERM

# /dev/null: the linter checks these files alone, not again for each script that has this library.
# shellcheck source=/dev/null
source "$KILN_DIR/lib/packages.sh"
# shellcheck source=/dev/null
source "$KILN_DIR/lib/downloads.sh"
# shellcheck source=/dev/null
source "$KILN_DIR/lib/dkms.sh"
# shellcheck source=/dev/null
source "$KILN_DIR/lib/image.sh"

# The last: from here on each line is the script's. Line 1 is not a command: an EXIT trap sees it.
trap '((LINENO == 1)) || _kiln_line=$LINENO' DEBUG
