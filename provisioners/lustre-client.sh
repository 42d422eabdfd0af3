#!/usr/bin/env bash
# The Lustre client. Amazon Linux's kernels have its modules; for Ubuntu FSx's repository has them, one
# package for each kernel, and not for every kernel.
export KILN_COMPONENT=lustre-client
# shellcheck source=provisioners/lib/kiln.sh
source "${KILN_DIR:?}/lib/kiln.sh"

kernel=$(kiln_boot_kernel)
module=lustre-client-modules-$kernel

if [[ $KILN_FAMILY == debian ]]; then
    key=$(kiln_download LUSTRE_KEY)
    signed_by=$(kiln_repo_key "$key" "$LUSTRE_KEY_FINGERPRINT" fsx-lustre)
    printf 'deb [signed-by=%s] %s %s main\n' "$signed_by" "$LUSTRE_REPO_URL" "$LUSTRE_SUITE" \
        >/etc/apt/sources.list.d/fsx-lustre.list
    kiln_refresh
    if [[ -z $(apt-cache madison "$module") ]]; then
        has=$(apt-cache pkgnames lustre-client-modules- | sed -n 's/^lustre-client-modules-\([0-9]\)/\1/p' | sort -V | tail -n 5 | paste -sd' ')
        kiln_die "FSx's repository has no Lustre modules for kernel $kernel" \
            "its newest are for ${has:-none}: pin one with the row's \`kernel\`, or leave it out: \`without: [lustre-client]\`"
    fi
    packages=("$module" lustre-client-utils)
else
    # Only Amazon Linux 2 has it in a topic of its extras.
    [[ -z $LUSTRE_TOPIC ]] || amazon-linux-extras enable "$LUSTRE_TOPIC" >&2 \
        || kiln_die "amazon-linux-extras has no topic $LUSTRE_TOPIC"
    packages=(lustre-client)
fi
kiln_install "${packages[@]}"
kiln_hold "${packages[@]}"
depmod "$kernel"

vermagic=$(modinfo -k "$kernel" -F vermagic lustre 2>/dev/null) || true
[[ ${vermagic%% *} == "$kernel" ]] || kiln_die "kernel $kernel has no lustre module" \
    "${vermagic:+modinfo finds one for ${vermagic%% *}; }a mount would fail"
command -v mount.lustre >/dev/null || kiln_die "there is no mount.lustre: a mount would fail"
kiln_record "version=$(kiln_package_version "${packages[-1]}")" "packages+=${packages[*]}" "kernel=$kernel"
