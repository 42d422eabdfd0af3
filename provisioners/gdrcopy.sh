#!/usr/bin/env bash
# GDRCopy from its release: the library for users, the gdrdrv module through DKMS.
#
#@ env      GDRCOPY_VERSION  required  release, without the v of its tag
#@ download GDRCOPY          required  source archive of that release
# shellcheck source=provisioners/lib/kiln.sh
source "${KILN_DIR:?}/lib/kiln.sh"

kernel=$(kiln_assert_kernel) || exit 1
source_dir=/usr/src/gdrdrv-$GDRCOPY_VERSION

# A parent such as ParallelCluster's has GDRCopy in packages: of another version, DKMS would build both modules.
# Before the library is installed, whose files they own too.
remove_parents() {
    local name installed names=()
    for name in gdrcopy-kmod gdrcopy gdrcopy-devel gdrdrv-dkms libgdrapi gdrcopy-tests; do
        installed=$(kiln_package_version "$name") || exit 1
        [[ -z $installed || $installed == "$GDRCOPY_VERSION"-* ]] || names+=("$name")
    done
    ((${#names[@]})) || return 0
    kiln_say "removing the parent's ${names[*]}"
    kiln_pm remove -y "${names[@]}" || kiln_die "$KILN_PACKAGE_MANAGER cannot remove ${names[*]}"
}

# The module itself knows only MAJOR.MINOR: https://github.com/NVIDIA/gdrcopy/blob/v2.5.1/src/gdrdrv/gdrdrv.h
version=$(kiln_dkms_version "$kernel" gdrdrv) || exit 1
if [[ $version != "$GDRCOPY_VERSION" || ! -e /usr/include/gdrapi.h ]]; then
    archive=$(kiln_download GDRCOPY) || exit 1
    tree=$(kiln_unpack "$archive" --strip-components=1) || exit 1
    jobs=$(nproc) || kiln_die "nproc cannot count the CPU cores"
    remove_parents
    make -C "$tree" -j"$jobs" prefix=/usr CUDA=/usr/local/cuda lib lib_install >"$tree.log" 2>&1 \
        || kiln_die_with_log "$tree.log" "GDRCopy $GDRCOPY_VERSION does not build"
    rm -rf "$source_dir"
    mkdir -p "$source_dir"
    cp -a "$tree"/src/gdrdrv/. "$source_dir/"
    # Newer releases probe the kernel with scripts that their DKMS configuration looks for here.
    [[ ! -d $tree/scripts ]] || cp -a "$tree/scripts" "$source_dir/"
    sed "s/@FULL_VERSION@/$GDRCOPY_VERSION/; s/@VERSION@/$GDRCOPY_VERSION/; s|@MODULE_LOCATION@|/updates/dkms|" \
        "$tree/packages/dkms.conf" >"$source_dir/dkms.conf"
    rm -rf "$tree" "$tree.log"
    kiln_dkms_compiler "$kernel" gdrdrv
    dkms install --force -m gdrdrv -v "$GDRCOPY_VERSION" -k "$kernel" >&2 \
        || kiln_die_with_log "/var/lib/dkms/gdrdrv/$GDRCOPY_VERSION/build/make.log" "gdrdrv does not build for $kernel"
    depmod "$kernel"
    ldconfig
    version=$(kiln_dkms_version "$kernel" gdrdrv) || exit 1
fi
[[ $version == "$GDRCOPY_VERSION" ]] || kiln_die "the gdrdrv module for $kernel is ${version:-missing}, not $GDRCOPY_VERSION"
kiln_record "version=$GDRCOPY_VERSION" "kernel=$kernel"
