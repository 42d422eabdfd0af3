"""The tables of a dashboard, asked for as CloudWatch's console does."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping
from typing import Any


def asked(logs: Any, query: str, groups: Iterable[str], hours: float = 6) -> list[dict[str, str]]:
    """The rows of a query of the last hours, without their pointers."""
    now = int(time.time())
    started = logs.start_query(
        logGroupNames=list(groups),
        startTime=now - int(hours * 3600),
        endTime=now + 60,
        queryString=query,
    )
    deadline = time.monotonic() + 120
    while (found := logs.get_query_results(queryId=started["queryId"]))["status"] != "Complete":
        assert time.monotonic() < deadline, found["status"]
        time.sleep(0.1)
    rows = [{cell["field"]: cell["value"] for cell in row} for row in found["results"]]
    return [{name: text for name, text in row.items() if name != "@ptr"} for row in rows]


def table(logs: Any, body: Mapping[str, Any], title: str, hours: float = 6) -> list[dict[str, str]]:
    """The rows of the dashboard's table whose title begins so.

    A log widget names its log groups in the query, before it; StartQuery takes them by parameter.
    https://docs.aws.amazon.com/AmazonCloudWatch/latest/APIReference/CloudWatch-Dashboard-Body-Structure.html
    """
    (widget,) = [
        widget["properties"]
        for widget in body["widgets"]
        if widget["type"] == "log" and widget["properties"]["title"].startswith(title)
    ]
    query = widget["query"]
    groups = []
    while source := re.match(r"SOURCE '([^']+)' \| ", query):
        groups.append(source[1])
        query = query[source.end() :]
    return asked(logs, query, groups, hours)
