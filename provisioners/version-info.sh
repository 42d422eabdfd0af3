#!/usr/bin/env bash
# /etc/kiln/version-info.json: what is really on the image, read off it after the last install.
#
#@ env HOLD_OS_PACKAGES  optional  the package tool's plugin that holds packages
export KILN_COMPONENT=version-info
# shellcheck source=provisioners/lib/kiln.sh
source "${KILN_DIR:?}/lib/kiln.sh"

# shellcheck disable=SC2086  # a list of names
kiln_lock_held $HOLD_OS_PACKAGES
kiln_install_files etc/kiln
kernel=$(kiln_boot_kernel) || exit 1
python3 "$KILN_DIR/lib/version_info.py" --kernel "$kernel" --etc "$KILN_ETC" >"$KILN_ETC/version-info.json.new" \
    || kiln_die "version_info.py failed"
chmod 0644 "$KILN_ETC/version-info.json.new"
mv "$KILN_ETC/version-info.json.new" "$KILN_ETC/version-info.json"
kiln_say "wrote $KILN_ETC/version-info.json"
