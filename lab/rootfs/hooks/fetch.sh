#!/bin/sh
# fetch.sh ROOT PACKAGE...: a setup hook of mmdebstrap. Downloads the packages of its variant minbase
# and the named ones, several at a time, and leaves a process that decompresses them in the order in
# which dpkg asks for them: apt asks for one file after the other, and the core that installs would
# decompress. mmdebstrap finds these packages, and downloads itself what is missing.
set -eu
export APT_CONFIG="$MMDEBSTRAP_APT_CONFIG"
apt-get -qq update --error-on=any
hooks=$(dirname "$0")
archives=$1/var/cache/apt/archives
shift
mkdir -p "$archives/partial" "$archives/unpacked"
cd "$archives/partial"
# Each file's URI, its name, and the hash in Debian's signed index, which apt-helper compares.
apt-get -qq --print-uris -o Debug::NoLocking=1 -o Acquire::ForceHash=SHA256 \
    install '?essential' '?priority(required)' "$@" |
    sed -n "s/^'\([^']*\)' \([^ ]*\) [0-9]* \(SHA256:[0-9a-f]*\)$/\1 \2 \3/p" >../unpacked/order
# shellcheck disable=SC2016  # the inner shell expands it
xargs -P 4 -n 72 sh -euc '
    /usr/lib/apt/apt-helper -qq -o APT::Sandbox::User=root download-file "$@"
    while [ $# -gt 0 ]; do
        mv "$2" ..
        shift 3
    done' fetch <../unpacked/order
cd ..
# The lock is held until decompress.sh, which inherits it, has ended.
exec 9>unpacked/ahead
flock 9
setsid sh "$hooks/decompress.sh" "$PWD" <unpacked/order >/dev/null 2>&1 &
