#!/usr/bin/env bash
# The Lustre client. Amazon Linux's kernels have its modules. For Ubuntu, FSx's repository has them: one
# package for each kernel, and not for every kernel.
#
#@ env      LUSTRE_TOPIC            optional  topic of amazon-linux-extras, on Amazon Linux 2 only
#@ env      LUSTRE_SUITE            optional  suite of FSx's repository, on Ubuntu only
#@ env      LUSTRE_REPO_URL         optional  FSx's repository, on Ubuntu only
#@ env      LUSTRE_OS_PACKAGES      optional  the distribution's package of the client, on Amazon Linux only
#@ env      LUSTRE_KEY_FINGERPRINT  required  of the key that signs FSx's repository
#@ download LUSTRE_KEY              optional  key file, accepted by fingerprint only; on Ubuntu only
# shellcheck source=provisioners/lib/kiln.sh
source "${KILN_DIR:?}/lib/kiln.sh"

kernel=$(kiln_boot_kernel) || exit 1
module=lustre-client-modules-$kernel

if [[ $KILN_FAMILY == debian ]]; then
    key=$(kiln_download LUSTRE_KEY) || exit 1
    signed_by=$(kiln_repo_key "$key" "$LUSTRE_KEY_FINGERPRINT" fsx-lustre) || exit 1
    printf 'deb [signed-by=%s] %s %s main\n' "$signed_by" "$LUSTRE_REPO_URL" "$LUSTRE_SUITE" \
        >/etc/apt/sources.list.d/fsx-lustre.list
    kiln_refresh
    offers=$(apt-cache madison "$module") || kiln_die "apt-cache cannot list the versions of $module"
    if [[ -z $offers ]]; then
        # Only for the hint.
        newest=$(apt-cache pkgnames lustre-client-modules- | sed -n 's/^lustre-client-modules-\([0-9]\)/\1/p' | sort -V | tail -n 5 | paste -sd' ') \
            || newest=
        kiln_die "FSx's repository has no Lustre modules for kernel $kernel" \
            "its newest are for ${newest:-none}: pin one with the row's \`kernel\`, or leave it out: \`without: [lustre-client]\`"
    fi
    packages=("$module" lustre-client-utils)
else
    # Only Amazon Linux 2 has it in a topic of its extras.
    [[ -z $LUSTRE_TOPIC ]] || kiln_retry amazon-linux-extras enable "$LUSTRE_TOPIC" \
        || kiln_die "amazon-linux-extras has no topic $LUSTRE_TOPIC"
    read -ra packages <<<"$LUSTRE_OS_PACKAGES"
    ((${#packages[@]})) || kiln_die "LUSTRE_OS_PACKAGES is empty" "Amazon Linux has the client in a package"
fi
kiln_install_held "${packages[*]}"
depmod "$kernel"

vermagic=$(modinfo -k "$kernel" -F vermagic lustre 2>/dev/null) || true
[[ ${vermagic%% *} == "$kernel" ]] || kiln_die "kernel $kernel has no lustre module" \
    "${vermagic:+modinfo finds one for ${vermagic%% *}; }a mount would fail"
command -v mount.lustre >/dev/null || kiln_die "there is no mount.lustre: a mount would fail"
version=$(kiln_package_version "${packages[-1]}") || exit 1
kiln_record "version=$version" "kernel=$kernel"
