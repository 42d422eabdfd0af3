#!/usr/bin/env bash
# mig-parted's program alone: its own service would fight with aws-gpu-mig over the layout.
export KILN_COMPONENT=mig-parted
# shellcheck source=provisioners/lib/kiln.sh
source "${KILN_DIR:?}/lib/kiln.sh"

program=/usr/bin/nvidia-mig-parted
archive=$(kiln_download MIG_PARTED)
tree=$(mktemp -d "$KILN_DIR/mig-parted.XXXXXX")
tar -xf "$archive" -C "$tree"
found=$(find "$tree" -type f -name nvidia-mig-parted)
[[ -n $found ]] || kiln_die "${archive##*/} holds no nvidia-mig-parted"
install -m 0755 "$found" "$program"
rm -rf "$tree"
answer=$("$program" --version 2>&1) \
    || kiln_die "mig-parted $MIG_PARTED_VERSION does not run here: ${answer##*$'\n'}" \
        "it is built for a newer C library: 0.14.1 and newer want glibc 2.28; leave mig_parted out, gpu-mig works without it"
[[ $answer == *"$MIG_PARTED_VERSION"* ]] || kiln_die "nvidia-mig-parted says ${answer%%$'\n'*}, not $MIG_PARTED_VERSION"
kiln_record "version=$MIG_PARTED_VERSION" "archive=${archive##*/}" "files+=$program"
