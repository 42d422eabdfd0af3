#!/bin/sh
# What AmazonCloudWatch-ManageAgent does on Linux: it calls the agent's own program. `action`, `mode`,
# `source`, `location` and `restart` are set before.
set -u
: "${action:=}" "${mode:=ec2}" "${source:=ssm}" "${location:=}" "${restart:=yes}"
ctl=/opt/aws/amazon-cloudwatch-agent/bin/amazon-cloudwatch-agent-ctl
if [ ! -x "$ctl" ]; then
    echo "$ctl: not found: install the package AmazonCloudWatchAgent first" >&2
    exit 1
fi
case $action in
    start | stop | status) exec "$ctl" -a "$action" -m "$mode" ;;
    configure) verb=fetch-config ;;
    "configure (append)") verb=append-config ;;
    "configure (remove)") verb=remove-config ;;
    *)
        echo "unknown action $action" >&2
        exit 1
        ;;
esac
case $source in
    ssm)
        if [ -z "$location" ]; then
            echo "the name of a parameter is missing: optionalConfigurationLocation" >&2
            exit 1
        fi
        place=ssm:$location
        ;;
    *) place=$source ;;
esac
set -- -a "$verb" -m "$mode" -c "$place"
[ "$restart" != yes ] || set -- "$@" -s
exec "$ctl" "$@"
