#!/bin/sh
# dpkg-deb in a tree that mmdebstrap makes: a package's files are read from where fetch.sh has
# decompressed them. apt gives dpkg links to its archives.
if [ "$1" = --fsys-tarfile ]; then
    archive=$(readlink -f "$2")
    files=${archive%/*}/unpacked/${archive##*/}
    if [ -e "$files" ]; then
        exec cat "$files"
    fi
fi
exec /usr/lib/kiln-lab-dpkg-deb "$@"
