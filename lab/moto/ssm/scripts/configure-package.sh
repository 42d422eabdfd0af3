#!/bin/sh
# What aws:configurePackage does in the lab for the CloudWatch agent: install or remove a build of
# its package. `action`, `way`, `name` and `version` ("" is the newest) are set before.
set -u
: "${action:=Install}" "${way:=}" "${name:=}" "${version:=}"
home=/opt/aws/amazon-cloudwatch-agent
package="arn:aws:ssm:::package/AmazonCloudWatchAgent"
case $name in
    AmazonCloudWatchAgent | "$package") ;;
    *)
        echo "failed to find platform: no manifest found for package $name" >&2
        exit 1
        ;;
esac
# shellcheck source=/dev/null
. /etc/os-release
case $ID in
    amzn) os=amazon_linux kind=rpm ;;
    debian | ubuntu) os=$ID kind=deb ;;
    *)
        echo "no manifest found for platform: $ID, version $VERSION_ID" >&2
        exit 1
        ;;
esac
case $(uname -m) in
    aarch64) machine=arm64 ;;
    *) machine=amd64 ;;
esac
installed=$(cat "$home/bin/CWAGENT_VERSION" 2> /dev/null)

remove() {
    [ -n "$installed" ] || return 0
    "$home/bin/amazon-cloudwatch-agent-ctl" -a stop > /dev/null 2>&1
    if [ "$kind" = rpm ]; then
        rpm -e amazon-cloudwatch-agent
    else
        dpkg --remove amazon-cloudwatch-agent
    fi
}

if [ "$action" = Uninstall ]; then
    if [ -z "$installed" ]; then
        echo "$package is not installed"
        exit 0
    fi
    remove || exit 1
    echo "Successfully uninstalled $package $installed"
    exit 0
fi
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
url="https://amazoncloudwatch-agent.s3.amazonaws.com/$os/$machine/${version:-latest}/amazon-cloudwatch-agent.$kind"
if ! curl -sSf -o "$folder/agent.$kind" "$url"; then
    echo "failed to download installation package reliably, $package ${version:-latest}" >&2
    exit 1
fi
was_running=
! systemctl is-active -q amazon-cloudwatch-agent || was_running=yes
if [ "$way" != "In-place update" ]; then
    remove > /dev/null || exit 1
fi
if [ "$kind" = rpm ]; then
    rpm -U --oldpackage --replacepkgs "$folder/agent.rpm" || exit 1
else
    dpkg -i "$folder/agent.deb" > /dev/null || exit 1
fi
[ -z "$was_running" ] || systemctl restart amazon-cloudwatch-agent
echo "Successfully installed $package $(cat "$home/bin/CWAGENT_VERSION")"
