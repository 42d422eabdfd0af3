#!/usr/bin/env bash
# Sourced by ./invoke when .venv must be made: finds a Python, makes the venv, installs the lock.
# uv takes seconds; where it cannot be used, pip takes about a minute.
set -euo pipefail

# make_venv CHECKOUT VENV STAMP
make_venv() {
    local here=$1 venv=$2 stamp=$3 python
    python=$(find_python) || exit
    # Of two calls at the same time, the second waits and then finds the work done.
    if ! { : >>"$here/.venv.lock"; } 2>/dev/null; then
        stop "$here cannot be written, and .venv must be made in it" \
            "run it with sudo, or work in a checkout of your own"
    fi
    # macOS has bash 3.2, which chooses no descriptor itself, and no flock program.
    exec 9>"$here/.venv.lock"
    "$python" -c 'import fcntl; fcntl.flock(9, fcntl.LOCK_EX)'
    if [[ -x $venv/bin/python ]] && cmp -s "$here/requirements.lock" "$stamp"; then
        exec 9>&-
        return
    fi
    printf 'ami-kiln: making .venv from requirements.lock with %s (once)\n' "$("$python" -V 2>&1)" >&2
    SCRATCH=$(mktemp -d)
    trap 'rm -rf -- "$SCRATCH"' EXIT
    if ! install_with_uv "$here" "$venv" "$python"; then
        printf 'ami-kiln: uv cannot be used here; pip makes .venv, in about a minute\n' >&2
        install_with_pip "$here" "$venv" "$python"
    fi
    rm -rf -- "$SCRATCH" "$here/.venv.log"
    trap - EXIT
    cp "$here/requirements.lock" "$stamp"
    exec 9>&-
}

# The distribution's Python comes before PATH's: it needs less CPU time than one that pyenv has built
# (an eighth less at a start, a quarter where it computes), and a shim differs from folder to folder.
find_python() {
    local candidate
    if [[ -n ${KILN_PYTHON-} ]]; then
        require_new_enough "$KILN_PYTHON"
        command -v "$KILN_PYTHON"
        return
    fi
    if is_new_enough /usr/bin/python3 && /usr/bin/python3 -c 'import pip' >/dev/null 2>&1; then
        with_its_version /usr/bin/python3
        return
    fi
    for candidate in python3 python3.13 python3.12 python3.11 python3.10; do
        if is_new_enough "$candidate"; then
            with_its_version "$(command -v "$candidate")"
            return
        fi
    done
    stop "no Python of version 3.10 or newer was found" "install python3, then try again"
}

# with_its_version PYTHON: /usr/bin/python3 as the /usr/bin/python3.11 that it is. An upgrade of the
# system makes another version of it, in which .venv has no packages; this name goes then, and .venv
# is made anew.
with_its_version() {
    case $1 in
    /usr/bin/python3 | /bin/python3) readlink -f "$1" ;;
    *) printf '%s\n' "$1" ;;
    esac
}

is_new_enough() {
    command -v "$1" >/dev/null 2>&1 && "$1" -c 'import sys; sys.exit(sys.version_info < (3, 10))'
}

# require_new_enough PYTHON: ends the program when what KILN_PYTHON names cannot be used.
require_new_enough() {
    local hint="set it to a Python of version 3.10 or newer, or unset it"
    if ! command -v "$1" >/dev/null 2>&1; then
        stop "KILN_PYTHON is $1, but there is no such program" "$hint" 2
    fi
    if ! is_new_enough "$1" >/dev/null 2>&1; then
        stop "KILN_PYTHON is $1, but it is not Python 3.10 or newer" "$hint" 2
    fi
}

# install_with_uv CHECKOUT VENV PYTHON: fails when uv is not available or cannot install. A file
# that does not match its hash ends the program, so that pip does not try again.
install_with_uv() {
    local here=$1 venv=$2 python=$3 setting log=$1/.venv.log variables=() options=()
    find_pip "$python"
    if ! PIP_USER=0 PIP_REQUIRE_VIRTUALENV=0 "${PIP[@]}" install --quiet --no-deps \
        --disable-pip-version-check --require-hashes --only-binary :all: \
        --target "$SCRATCH/uv" --requirement "$here/setup/uv.lock.txt" >"$log" 2>&1; then
        refuse_wrong_hash "$log" setup/uv.lock.txt
        return 1
    fi
    while IFS= read -r setting; do
        case $setting in
        --*) options+=("$setting") ;;
        *=*) variables+=("$setting") ;;
        esac
    done < <("${PIP[@]}" config list 2>/dev/null | "$python" "$here/setup/uv_settings.py")
    # An existing venv is updated in place, because programs may be running in it.
    if [[ ! -x $venv/bin/python ]]; then
        rm -rf "$venv"
        "$SCRATCH/uv/bin/uv" venv --quiet --no-project --python "$python" "$venv" \
            >"$log" 2>&1 || return 1
    fi
    if ! env ${variables[@]+"${variables[@]}"} "$SCRATCH/uv/bin/uv" pip install --quiet --python "$venv/bin/python" \
        ${options[@]+"${options[@]}"} --require-hashes --only-binary :all: \
        --requirement "$here/requirements.lock" >"$log" 2>&1; then
        refuse_wrong_hash "$log" requirements.lock
        return 1
    fi
}

# refuse_wrong_hash LOG LOCK: ends the program when the log of pip or uv reports a wrong hash.
refuse_wrong_hash() {
    if grep -qi -e 'do not match the hashes' -e 'hash mismatch' "$1"; then
        tail -n 15 "$1" >&2
        stop "a package does not match its hash in $2" \
            "the package index serves another file than the lock names; pip config list shows which index it is"
    fi
}

# install_with_pip CHECKOUT VENV PYTHON
install_with_pip() {
    local here=$1 venv=$2 python=$3
    if [[ ! -x $venv/bin/pip ]] && ! "$venv/bin/python" -m ensurepip >/dev/null 2>&1; then
        rm -rf "$venv"
        make_empty_venv "$python" "$venv"
    fi
    if ! "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --require-hashes \
        --only-binary :all: --requirement "$here/requirements.lock" >"$here/.venv.log" 2>&1; then
        refuse_wrong_hash "$here/.venv.log" requirements.lock
        tail -n 15 "$here/.venv.log" >&2
        stop "pip could not install requirements.lock" \
            "is the package index reachable? It is taken from pip's own configuration."
    fi
}

# find_pip PYTHON: sets PIP to a pip that can fetch uv: Python's own, or that of an empty venv.
find_pip() {
    PIP=("$1" -m pip)
    if ! "$1" -c 'import pip' >/dev/null 2>&1; then
        make_empty_venv "$1" "$SCRATCH/pip"
        PIP=("$SCRATCH/pip/bin/python" -m pip)
    fi
}

# make_empty_venv PYTHON VENV: makes a venv with pip. On Debian and Ubuntu `python3 -m venv` needs the
# package python3-venv.
make_empty_venv() {
    local python=$1 venv=$2
    if "$python" -m venv "$venv" >/dev/null 2>&1; then
        return
    fi
    rm -rf "$venv"
    if ! command -v apt-get >/dev/null 2>&1; then
        stop "$python has neither pip nor a venv module" "install one of them"
    fi
    case " ${ARGUMENTS-} " in
    *" --no-install "*)
        stop "python3-venv is missing, and --no-install was given" \
            "run: sudo apt-get update && sudo apt-get install -y python3-venv"
        ;;
    esac
    printf 'ami-kiln: installing python3-venv with apt-get: it brings pip, which fetches what .venv needs\n' >&2
    if ! as_root apt-get -q update >/dev/null 2>&1 ||
        ! as_root env DEBIAN_FRONTEND=noninteractive apt-get -q install -y \
            --no-install-recommends python3-venv >/dev/null 2>&1; then
        stop "python3-venv could not be installed" "run: sudo apt-get install -y python3-venv"
    fi
    if ! "$python" -m venv "$venv" >/dev/null 2>&1; then
        stop "$python cannot make a virtual environment" \
            "install the venv module of this Python, for example python3.12-venv"
    fi
}

as_root() {
    if [[ $(id -u) -eq 0 ]]; then "$@"; else sudo "$@"; fi
}

# stop MESSAGE HINT [EXIT-STATUS]
stop() {
    printf 'ami-kiln: %s\n  %s\n' "$1" "$2" >&2
    exit "${3:-1}"
}
