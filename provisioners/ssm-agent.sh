#!/usr/bin/env bash
# The Systems Manager agent, as the distribution has it. Not held: it updates itself when Systems Manager
# says so, and no part of the GPU stack depends on it.
export KILN_COMPONENT=ssm-agent
# shellcheck source=provisioners/lib/kiln.sh
source "${KILN_DIR:?}/lib/kiln.sh"

unit=amazon-ssm-agent.service
case $KILN_DISTRO in
    ubuntu*)
        # Canonical's AMIs come with the snap. With the package beside it two agents would answer.
        command -v snap >/dev/null || kiln_die "there is no snapd, and Ubuntu has the SSM agent as a snap" \
            "install snapd on the parent AMI, or leave it out: \`without: [ssm-agent]\`"
        if ! snap list amazon-ssm-agent >/dev/null 2>&1; then
            snap install --classic amazon-ssm-agent >&2 || kiln_die "snap cannot install amazon-ssm-agent"
        fi
        read -r _ version revision _ < <(snap list amazon-ssm-agent | tail -n 1)
        unit=snap.amazon-ssm-agent.$unit
        kiln_record "snap=amazon-ssm-agent" "revision=$revision"
        ;;
    debian*)
        if [[ $(kiln_package_version amazon-ssm-agent) != "$SSM_AGENT_VERSION"* ]]; then
            package=$(kiln_download SSM_AGENT)
            _kiln_pm install -y --allow-downgrades "$package" || kiln_die "the SSM agent's package cannot be installed"
        fi
        version=$(kiln_package_version amazon-ssm-agent)
        [[ $version == "$SSM_AGENT_VERSION"* ]] \
            || kiln_die "the SSM agent is ${version:-missing}, components.yaml asks for $SSM_AGENT_VERSION"
        kiln_record "package=amazon-ssm-agent"
        ;;
    *)
        kiln_install amazon-ssm-agent
        version=$(kiln_package_version amazon-ssm-agent)
        kiln_record "package=amazon-ssm-agent"
        ;;
esac
kiln_enable "$unit"
kiln_record "version=$version"
