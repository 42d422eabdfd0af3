#!/usr/bin/env bash
# Sourced by ./invoke when .venv has to be made: finds a Python, makes the venv, installs the lock.
set -euo pipefail

# make_venv CHECKOUT VENV STAMP
make_venv() {
    local here=$1 venv=$2 stamp=$3 python lock
    python=$(find_python)
    # Two first calls at the same time: the second waits, then finds the work done.
    exec {lock}>"$here/.venv.lock"
    flock "$lock"
    if [[ -x $venv/bin/python ]] && cmp -s "$here/requirements.lock" "$stamp"; then
        exec {lock}>&-
        return
    fi
    printf 'ami-kiln: making .venv from requirements.lock with %s (once)\n' "$("$python" -V 2>&1)" >&2
    # A venv that only has to be brought up to date is not taken from under what runs in it.
    if [[ ! -x $venv/bin/pip ]]; then
        make_empty_venv "$python" "$venv"
    fi
    if ! "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --require-hashes \
        --only-binary :all: --requirement "$here/requirements.lock" >"$here/.venv.log" 2>&1; then
        tail -n 15 "$here/.venv.log" >&2
        stop "pip could not install requirements.lock" \
            "is the package index reachable? It is taken from pip's own configuration."
    fi
    rm -f "$here/.venv.log"
    cp "$here/requirements.lock" "$stamp"
    exec {lock}>&-
}

find_python() {
    local candidate
    for candidate in python3 python3.13 python3.12 python3.11 python3.10; do
        if command -v "$candidate" >/dev/null 2>&1 &&
            "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 10))'; then
            command -v "$candidate"
            return
        fi
    done
    stop "no Python of version 3.10 or newer was found" "install python3, then try again"
}

# Debian and Ubuntu split the venv module off: `python3 -m venv` fails without python3-venv.
make_empty_venv() {
    local python=$1 venv=$2
    rm -rf "$venv"
    if "$python" -m venv "$venv" >/dev/null 2>&1; then
        return
    fi
    rm -rf "$venv"
    if ! command -v apt-get >/dev/null 2>&1; then
        stop "$python cannot make a virtual environment" "install its venv module"
    fi
    case " ${ARGUMENTS-} " in
    *" --no-install "*)
        stop "python3-venv is missing, and --no-install was given" \
            "run: sudo apt-get update && sudo apt-get install -y python3-venv"
        ;;
    esac
    printf 'ami-kiln: installing python3-venv with apt-get: Python cannot make .venv without it\n' >&2
    if ! as_root apt-get -q update >/dev/null 2>&1 ||
        ! as_root env DEBIAN_FRONTEND=noninteractive apt-get -q install -y \
            --no-install-recommends python3-venv >/dev/null 2>&1; then
        stop "python3-venv could not be installed" "run: sudo apt-get install -y python3-venv"
    fi
    "$python" -m venv "$venv"
}

as_root() {
    if [[ $(id -u) -eq 0 ]]; then "$@"; else sudo "$@"; fi
}

stop() {
    printf 'ami-kiln: %s\n  %s\n' "$1" "$2" >&2
    exit 1
}
