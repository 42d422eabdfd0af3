"""CloudWatch and CloudWatch Logs of the lab, over moto: what arrives is counted and acted on.

Metrics: `series` keeps them, `reading` answers for them, `queries`, `functions` and `search` are
metric math, `insights` is Metrics Insights.

Logs: `patterns` says which events match, `metric_filters` makes metrics of them. Alarms: `alarms` has the rules, `composite` those over other alarms,
`watch` looks at all of them and acts, `fleet` judges those of many series, `notices` words it,
`alarm_calls` are their calls. `layer` puts all of it in moto's place.
"""
