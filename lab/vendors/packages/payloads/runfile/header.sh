#!/bin/sh
# AMI Kiln lab stand-in for NVIDIA-Linux-@arch@-@version@.run. It contains no NVIDIA software.
# Self-extracting: a tar.gz follows the line __PAYLOAD__. Like the real file it handles makeself's
# options and passes all others to nvidia-installer.
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
# shellcheck disable=SC2317 # the archive begins after this line
__PAYLOAD__
