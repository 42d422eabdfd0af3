#!/bin/sh
# decompress.sh ARCHIVES: decompresses the packages of fetch.sh's list, which is its input, before
# dpkg asks for them, and ends early when there is a file unpacked/stop.
set -eu
cd "$1"
while read -r _ name _; do
    [ -e unpacked/stop ] && exit
    sh "$(dirname "$0")/dpkg-deb.sh" --ahead "$name"
done
