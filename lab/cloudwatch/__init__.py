"""CloudWatch and CloudWatch Logs of the lab, over moto: what arrives is counted and acted on.

Metrics: `series` keeps them, `reading` answers for them, `queries`, `functions` and `search` are
metric math. Logs: `patterns` says which events match, `metric_filters` makes metrics of them.
Alarms: `alarms` has the rules, `composite` those over other alarms, `watch` looks at all of them
and acts, `notices` words it, `alarm_calls` are their calls. `layer` puts all of it in moto's place.
"""
