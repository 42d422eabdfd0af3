#!/usr/bin/env bash
# The distribution's packages as they were at a time or at a release: for the rest of the bake they come from
# there. cleanup.sh gives Debian and Ubuntu the parent's sources back, so that instances get security updates.
# Amazon Linux 2023 stays at the release, as it does by itself: `dnf upgrade --releasever=…` moves an instance.
#
#@ env PACKAGE_SNAPSHOT  required  a release of Amazon Linux 2023, or a UTC time for Ubuntu and Debian
# shellcheck source=provisioners/lib/kiln.sh
source "${KILN_DIR:?}/lib/kiln.sh"

kiln_wait_for_cloud_init
kiln_stop_daily_updates
if [[ $KILN_FAMILY == debian ]]; then
    kiln_set_sources_aside
    list=etc/apt/sources.list.d/kiln-package-snapshot.list
    [[ -e $KILN_DIR/files/$list ]] || kiln_die "files/$list is missing from the upload"
    # Not kiln_install_files, which records what stays on the image.
    install -D -m 0644 "$KILN_DIR/files/$list" "${KILN_ROOT:-}/$list" || kiln_die "/$list cannot be installed"
    kiln_pm update || kiln_die "the package lists of $PACKAGE_SNAPSHOT cannot be fetched" \
        "is the snapshot service reachable from the build instance, and does it have that time?"
else
    kiln_install_files etc/dnf/vars/releasever
    kiln_pm --refresh makecache || kiln_die "the repository of release $PACKAGE_SNAPSHOT cannot be read" \
        "does Amazon Linux 2023 have that release? https://docs.aws.amazon.com/linux/al2023/release-notes/"
fi
kiln_record "version=$PACKAGE_SNAPSHOT"
