#!/bin/sh
# dpkg-deb while mmdebstrap makes a tree, in it and, by bin/, outside it: a package's files are
# decompressed once, by whoever gets to it first. apt gives dpkg links to its archives.
#
#   dpkg-deb --ahead PACKAGE   decompresses it for later, unless somebody does so
set -eu
itself=/usr/lib/kiln-lab-dpkg-deb
[ -e "$itself" ] || itself=/usr/bin/dpkg-deb
case $1 in
    --fsys-tarfile) wait= ;;
    --ahead) wait=--nonblock ;;
    *) exec "$itself" "$@" ;;
esac
archive=$(readlink -f "$2")
unpacked=${archive%/*}/unpacked
files=$unpacked/${archive##*/}
if [ -d "$unpacked" ] && [ ! -e "$files" ]; then
    # shellcheck disable=SC2016,SC2086  # the inner shell expands it; no option is no word
    flock $wait "$files.lock" sh -euc '
        [ -e "$1" ] && exit
        "$2" --fsys-tarfile "$3" >"$1.tar"
        mv "$1.tar" "$1"' dpkg-deb "$files" "$itself" "$archive" || true
fi
[ "$wait" ] && exit
[ -e "$files" ] && exec cat "$files"
exec "$itself" --fsys-tarfile "$archive"
