"""CloudWatch Logs Insights of the lab: StartQuery, GetQueryResults, StopQuery, DescribeQueries.

`parse` makes a `query` of a text, `check` refuses what CloudWatch refuses, `values` says what
fields and functions give, `run` takes a query over events, `calls` answers for it in moto's place:
moto 5.2.5 knows fields, sort and limit, and ignores every other command.
"""
