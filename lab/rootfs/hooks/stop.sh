#!/bin/sh
# stop.sh ROOT: ends decompress.sh and removes what it has made.
set -eu
cd "$1/var/cache/apt/archives"
[ -d unpacked ] || exit 0
touch unpacked/stop
flock unpacked/ahead true
rm -r unpacked
