#!/bin/sh
# AMI Kiln lab stand-in for NVIDIA-Linux-@arch@-@version@.run. No NVIDIA software is in it.
# Self-extracting: a tar.gz follows the line __PAYLOAD__. Takes makeself's own options as the real
# file does; everything else goes to nvidia-installer.
label="NVIDIA Accelerated Graphics Driver for Linux-@arch@ @version@ (AMI Kiln lab stand-in)"
extract=
target=
tmp=${TMPDIR:-/tmp}
count=$#
while [ "$count" -gt 0 ]; do
    argument=$1
    shift
    count=$((count - 1))
    case $argument in
        --info) echo "$label"; exit 0 ;;
        --lsm) exit 0 ;;
        --check) echo "Verifying archive integrity... OK"; exit 0 ;;
        -x | --extract-only) extract=yes ;;
        --target) target=$1; shift; count=$((count - 1)) ;;
        --tmpdir=*) tmp=${argument#--tmpdir=}; set -- "$@" "$argument" ;;
        --tmpdir) tmp=$1; shift; count=$((count - 1)) ;;
        *) set -- "$@" "$argument" ;;
    esac
done
line=$(awk '/^__PAYLOAD__$/ { print NR + 1; exit }' "$0")
if [ -n "$extract" ]; then
    home=${target:-./NVIDIA-Linux-@arch@-@version@}
    mkdir "$home" || exit 1
    tail -n "+$line" "$0" | tar -xz -C "$home"
    exit $?
fi
home=$(mktemp -d "$tmp/kiln-lab-nvidia.XXXXXX") || exit 1
trap 'rm -rf "$home"' EXIT
echo "Verifying archive integrity... OK"
echo "Uncompressing $label"
tail -n "+$line" "$0" | tar -xz -C "$home" || exit 1
cd "$home" || exit 1
./nvidia-installer "$@"
exit $?
# shellcheck disable=SC2317 # the line that the archive begins after
__PAYLOAD__
