#!/usr/bin/env bash
# The CloudWatch agent at a pinned build, its signature checked, with the recipe's configuration. It is
# enabled and never started here: its offsets and its copy of the configuration must not be baked.
#
#@ env      CLOUDWATCH_AGENT_VERSION          required  version without the build number
#@ env      CLOUDWATCH_AGENT_KEY_FINGERPRINT  required  of the key that signs the package
#@ download CLOUDWATCH_AGENT                  required  package of that version
#@ download CLOUDWATCH_AGENT_SIGNATURE        required  its detached signature
#@ download CLOUDWATCH_AGENT_KEY              required  key file, accepted by fingerprint only
# shellcheck source=provisioners/lib/kiln.sh
source "${KILN_DIR:?}/lib/kiln.sh"

etc=opt/aws/amazon-cloudwatch-agent/etc
installed=$(kiln_package_version amazon-cloudwatch-agent) || exit 1
# The package's version carries a build number (1.300071.0b1720), Amazon Linux's own does not.
if [[ $installed != "$CLOUDWATCH_AGENT_VERSION"[b-]* ]]; then
    package=$(kiln_download CLOUDWATCH_AGENT) || exit 1
    signature=$(kiln_download CLOUDWATCH_AGENT_SIGNATURE) || exit 1
    key=$(kiln_download CLOUDWATCH_AGENT_KEY) || exit 1
    kiln_check_signature "$package" "$signature" "$key" "$CLOUDWATCH_AGENT_KEY_FINGERPRINT"
    kiln_unhold amazon-cloudwatch-agent
    # The signature proves the file; the package tool is there for dependencies and its database.
    if [[ $KILN_FAMILY == debian ]]; then
        kiln_pm install -y --allow-downgrades "$package"
    else
        kiln_pm --nogpgcheck install "$package"
    fi || kiln_die "the CloudWatch agent's package cannot be installed"
    installed=$(kiln_package_version amazon-cloudwatch-agent) || exit 1
fi
[[ $installed == "$CLOUDWATCH_AGENT_VERSION"[b-]* ]] \
    || kiln_die "the CloudWatch agent is ${installed:-missing}, the recipe asks for $CLOUDWATCH_AGENT_VERSION"
kiln_hold amazon-cloudwatch-agent

kiln_install_files "$etc"
kiln_install_runtime etc/systemd/system/amazon-cloudwatch-agent.service.d opt/kiln/lib/kiln-agent-sources
kiln_enable amazon-cloudwatch-agent.service
kiln_record "version=$installed"
