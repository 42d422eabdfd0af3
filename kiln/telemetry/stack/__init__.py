"""The CloudFormation stack around GPU machines: role, agent configuration, alarms, dashboard."""
