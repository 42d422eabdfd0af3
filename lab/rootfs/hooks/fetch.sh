#!/bin/sh
# fetch.sh ROOT PACKAGE...: a setup hook of mmdebstrap. Downloads and decompresses the packages of its
# variant minbase and the named ones, several at a time: apt asks for one file after the other, and
# dpkg decompresses one after the other. mmdebstrap finds these, and downloads itself what is missing.
set -eu
export APT_CONFIG="$MMDEBSTRAP_APT_CONFIG"
apt-get -qq update --error-on=any
archives=$1/var/cache/apt/archives
shift
mkdir -p "$archives/partial" "$archives/unpacked"
cd "$archives/partial"
# Each file's URI, its name, and the hash in Debian's signed index, which apt-helper compares.
# shellcheck disable=SC2016  # the inner shell expands it
apt-get -qq --print-uris -o Debug::NoLocking=1 -o Acquire::ForceHash=SHA256 \
    install '?essential' '?priority(required)' "$@" |
    sed -n "s/^'\([^']*\)' \([^ ]*\) [0-9]* \(SHA256:[0-9a-f]*\)$/\1 \2 \3/p" |
    xargs -P 4 -n 24 sh -euc '
        /usr/lib/apt/apt-helper -qq -o APT::Sandbox::User=root download-file "$@"
        while [ $# -gt 0 ]; do
            dpkg-deb --fsys-tarfile "$2" >"$2.tar"
            mv "$2.tar" "../unpacked/$2"
            mv "$2" ..
            shift 3
        done' fetch
