#!/usr/bin/env bash
# The EFA installer. Its archive's signature is checked by fingerprint before anything in it runs.
#
#@ env      EFA_INSTALLER_VERSION  required  the installer's version
#@ env      EFA_SKIP_PLUGIN        optional  yes: leave out the installer's own aws-ofi-nccl
#@ env      EFA_KEY_FINGERPRINT    required  of the key that signs the installer
#@ download EFA_INSTALLER          required  archive of that version
#@ download EFA_SIGNATURE          required  its detached signature
#@ download EFA_KEY                required  key file, accepted by fingerprint only
# shellcheck source=provisioners/lib/kiln.sh
source "${KILN_DIR:?}/lib/kiln.sh"

# The installer leaves a list of what it installed, its own version on the first line.
list=/opt/amazon/efa_installed_packages
installed_version() {
    [[ -e $list ]] || return 0
    sed -n 's/^# EFA installer version: *//p' "$list" || kiln_die "$list cannot be read"
}

origin=installer
version=$(installed_version) || exit 1
# A parent's installer may have run with --minimal, as in EKS's: same version, no libfabric.
if [[ $version == "$EFA_INSTALLER_VERSION" && -x /opt/amazon/efa/bin/fi_info ]]; then
    kiln_say "EFA installer $EFA_INSTALLER_VERSION has run already"
    # On the parent, if this bake has no record of its archive.
    if [[ ! -e $KILN_ETC/downloads.json ]] || ! grep -q "$EFA_INSTALLER_URL" "$KILN_ETC/downloads.json"; then origin=parent; fi
else
    archive=$(kiln_download EFA_INSTALLER) || exit 1
    signature=$(kiln_download EFA_SIGNATURE) || exit 1
    key=$(kiln_download EFA_KEY) || exit 1
    kiln_check_signature "$archive" "$signature" "$key" "$EFA_KEY_FINGERPRINT"
    tree=$(kiln_unpack "$archive" --strip-components=1) || exit 1
    flags=(-y)
    [[ -z $EFA_SKIP_PLUGIN ]] || flags+=(--skip-plugin)
    (cd "$tree" && kiln_retry ./efa_installer.sh "${flags[@]}") || kiln_die "efa_installer.sh failed" "its own message is above"
    rm -rf "$tree"
    version=$(installed_version) || exit 1
fi
[[ $version == "$EFA_INSTALLER_VERSION" ]] \
    || kiln_die "the EFA installer left version ${version:-unknown} in $list, the recipe asks for $EFA_INSTALLER_VERSION"
libfabric=$(/opt/amazon/efa/bin/fi_info --version) || kiln_die "libfabric's fi_info does not run"
kiln_say "$libfabric"
libfabric=$(sed -n 's/^libfabric: *//p' <<<"$libfabric")
# The parent's module was built for the parent's kernel. The efa that the distribution's kernel has does not count: it is
# older, and where an rpm's script cannot build the installer's, the installer succeeds all the same:
# github:amzn/amzn-drivers kernel/linux/efa/rpm/efa.spec @0264ebb863f809a6b592e23e7ec9d903f52837f2
kernel=$(kiln_boot_kernel) || exit 1
built=$(kiln_dkms_version "$kernel" efa) || exit 1
if [[ -z $built ]]; then
    # What it does not build is missing below.
    dkms autoinstall -k "$kernel" >&2 || true
    built=$(kiln_dkms_version "$kernel" efa) || exit 1
    [[ -n $built ]] || kiln_die "there is no efa module of the installer's for $kernel" \
        "DKMS built none; /var/lib/dkms/efa has its log"
fi
kiln_record "version=$version" "libfabric=$libfabric" "origin=$origin"
