#!/usr/bin/env bash
# /etc/kiln/version-info.json: what is really on the image, read off it after the last install.
# shellcheck source=provisioners/lib/kiln.sh
source "${KILN_DIR:?}/lib/kiln.sh"

kiln_install_files etc/kiln
kernel=$(kiln_boot_kernel) || exit 1
python3 "$KILN_DIR/lib/version_info.py" --kernel "$kernel" --etc "$KILN_ETC" >"$KILN_ETC/version-info.json.new" \
    || kiln_die "version_info.py failed"
chmod 0644 "$KILN_ETC/version-info.json.new"
mv "$KILN_ETC/version-info.json.new" "$KILN_ETC/version-info.json"
kiln_say "wrote $KILN_ETC/version-info.json"
