#!/usr/bin/env bash
# The EFA installer, its archive's signature checked by fingerprint before anything in it is run.
export KILN_COMPONENT=efa
# shellcheck source=provisioners/lib/kiln.sh
source "${KILN_DIR:?}/lib/kiln.sh"

# The installer leaves a list of what it installed, its own version on the first line.
list=/opt/amazon/efa_installed_packages
installed_version() { sed -n 's/^# EFA installer version: *//p' "$list" 2>/dev/null || true; }

if [[ $(installed_version) == "$EFA_INSTALLER_VERSION" ]]; then
    kiln_say "EFA installer $EFA_INSTALLER_VERSION has run already"
else
    archive=$(kiln_download EFA_INSTALLER)
    signature=$(kiln_download EFA_SIGNATURE)
    key=$(kiln_download EFA_KEY)
    kiln_check_signature "$archive" "$signature" "$key" "$EFA_KEY_FINGERPRINT"
    tree=$(mktemp -d "$KILN_DIR/efa.XXXXXX")
    tar -xf "$archive" -C "$tree" --strip-components=1
    flags=(-y)
    [[ -z $EFA_SKIP_PLUGIN ]] || flags+=(--skip-plugin)
    (cd "$tree" && ./efa_installer.sh "${flags[@]}" >&2) || kiln_die "efa_installer.sh failed" "its own message is above"
    rm -rf "$tree"
fi
version=$(installed_version)
[[ $version == "$EFA_INSTALLER_VERSION" ]] \
    || kiln_die "the EFA installer left version ${version:-unknown} in $list, the recipe asks for $EFA_INSTALLER_VERSION"
/opt/amazon/efa/bin/fi_info --version >&2 || kiln_die "libfabric's fi_info does not run"
kiln_record "version=$version" "libfabric=$(/opt/amazon/efa/bin/fi_info --version | sed -n 's/^libfabric: *//p')"
