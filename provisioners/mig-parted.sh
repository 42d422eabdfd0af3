#!/usr/bin/env bash
# mig-parted's program alone: its own service would fight with kiln-mig over the layout.
#
#@ env      MIG_PARTED_VERSION  required  release, without the v of its tag
#@ download MIG_PARTED          required  archive of that release
export KILN_COMPONENT=mig-parted
# shellcheck source=provisioners/lib/kiln.sh
source "${KILN_DIR:?}/lib/kiln.sh"

program=/usr/bin/nvidia-mig-parted
archive=$(kiln_download MIG_PARTED) || exit 1
tree=$(kiln_unpack "$archive") || exit 1
unpacked=$(find "$tree" -type f -name nvidia-mig-parted -print -quit) || kiln_die "$tree cannot be listed"
[[ -n $unpacked ]] || kiln_die "${archive##*/} holds no nvidia-mig-parted"
install -m 0755 "$unpacked" "$program"
rm -rf "$tree"
answer=$("$program" --version 2>&1) \
    || kiln_die "mig-parted $MIG_PARTED_VERSION does not run here: ${answer##*$'\n'}" \
        "0.14.1 and newer need glibc 2.28; leave mig_parted out of the stack, gpu-mig works without it"
[[ $answer == *"$MIG_PARTED_VERSION"* ]] || kiln_die "nvidia-mig-parted prints ${answer%%$'\n'*}, not $MIG_PARTED_VERSION"
kiln_record "version=$MIG_PARTED_VERSION" "archive=${archive##*/}" "files+=$program"
