#!/usr/bin/env bash
# The Systems Manager agent, as the distribution has it. It is not held: it updates itself when Systems
# Manager asks for it, and no part of the GPU stack depends on it.
#
#@ env      SSM_AGENT_VERSION      optional  version of Amazon's package, on Debian only
#@ env      SSM_AGENT_OS_PACKAGES  optional  the distribution's package, on Amazon Linux only
#@ download SSM_AGENT              optional  Amazon's package, on Debian only
# shellcheck source=provisioners/lib/kiln.sh
source "${KILN_DIR:?}/lib/kiln.sh"

unit=amazon-ssm-agent.service
case $KILN_DISTRO in
    ubuntu*)
        # Canonical's AMIs come with the snap. With the package beside it two agents would answer.
        command -v snap >/dev/null || kiln_die "there is no snapd, and Ubuntu has the SSM agent as a snap" \
            "install snapd on the parent AMI, or leave it out: \`without: [ssm-agent]\`"
        if ! snap list amazon-ssm-agent >/dev/null 2>&1; then
            kiln_retry snap install --classic amazon-ssm-agent || kiln_die "snap cannot install amazon-ssm-agent"
        fi
        listed=$(snap list amazon-ssm-agent) || kiln_die "snap cannot list amazon-ssm-agent"
        # Name Version Rev …, below a heading.
        read -r _ version revision _ <<<"${listed##*$'\n'}"
        unit=snap.amazon-ssm-agent.$unit
        kiln_record "snap=amazon-ssm-agent" "revision=$revision"
        ;;
    debian*)
        version=$(kiln_package_version amazon-ssm-agent) || exit 1
        if [[ $version != "${SSM_AGENT_VERSION:?}"* ]]; then
            package=$(kiln_download SSM_AGENT) || exit 1
            kiln_pm install -y --allow-downgrades "$package" || kiln_die "the SSM agent's package cannot be installed"
            version=$(kiln_package_version amazon-ssm-agent) || exit 1
        fi
        [[ $version == "$SSM_AGENT_VERSION"* ]] \
            || kiln_die "the SSM agent is ${version:-missing}, the component asks for $SSM_AGENT_VERSION"
        kiln_record "package=amazon-ssm-agent"
        ;;
    *)
        # shellcheck disable=SC2086  # a list of names
        kiln_install ${SSM_AGENT_OS_PACKAGES:?}
        version=$(kiln_package_version amazon-ssm-agent) || exit 1
        kiln_record "package=amazon-ssm-agent"
        ;;
esac
kiln_enable "$unit"
kiln_record "version=$version"
