"""The calls of Logs Insights, in place of moto's.

https://docs.aws.amazon.com/AmazonCloudWatchLogs/latest/APIReference/API_StartQuery.html
https://docs.aws.amazon.com/AmazonCloudWatchLogs/latest/APIReference/API_GetQueryResults.html
A query runs for a moment, as on AWS: who does not wait for Complete gets no rows.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from moto.logs.exceptions import (
    InvalidParameterException,
    LimitExceededException,
    LogsClientError,
    ResourceNotFoundException,
)
from moto.logs.responses import LogsResponse

from lab.cloudwatch.logs_insights import parse, run
from lab.cloudwatch.logs_insights.query import MOST_ROWS, ROWS, QueryError

# Seconds that a query runs; the lab's choice.
RUNS = 0.3
# https://docs.aws.amazon.com/AmazonCloudWatch/latest/logs/cloudwatch_limits_cwl.html
MOST_AT_ONCE, MOST_GROUPS, MOST_CHARACTERS = 100, 50, 10_000
NAMES = ("StartQuery", "GetQueryResults", "StopQuery", "DescribeQueries")


def malformed(error: QueryError) -> Exception:
    """MalformedQueryException with the place of what is wrong, which the message ends with:
    https://docs.aws.amazon.com/AmazonCloudWatchLogs/latest/APIReference/API_MalformedQueryException.html
    """
    message = f"{error} ([{error.start},{error.end}])"
    place = {"startCharOffset": error.start, "endCharOffset": error.end}
    raised = LogsClientError("MalformedQueryException", message)
    raised.description = json.dumps(
        {
            "__type": "MalformedQueryException",
            "message": message,
            "queryCompileError": {"location": place, "message": message},
        }
    )
    made: Exception = raised
    return made


@dataclass
class _Run:
    """A query that was started."""

    text: str
    groups: tuple[str, ...]
    results: run.Results
    id: str = field(default_factory=lambda: str(uuid.uuid4()))
    created: float = field(default_factory=time.time)
    cancelled: bool = False

    @property
    def status(self) -> str:
        if self.cancelled:
            return "Cancelled"
        return "Running" if time.time() < self.created + RUNS else "Complete"

    def shown(self) -> dict[str, Any]:
        """As DescribeQueries has it."""
        name = {"logGroupName": self.groups[0]} if self.groups else {}
        return {
            "queryLanguage": "CWLI",
            "queryId": self.id,
            "queryString": self.text,
            "status": self.status,
            "createTime": int(self.created * 1000),
            **name,
        }


def install(class_of: Callable[[Any], str]) -> None:
    """Put these calls in moto's place; `class_of` says a log group's class."""
    LogsResponse.start_query = lambda response: start(response, class_of)
    LogsResponse.get_query_results = results
    LogsResponse.stop_query = stop
    LogsResponse.describe_queries = described


def _queries(response: Any) -> dict[str, _Run]:
    queries: dict[str, _Run] = response.logs_backend.__dict__.setdefault("kiln_queries", {})
    return queries


def start(response: Any, class_of: Callable[[Any], str]) -> str:
    """StartQuery."""
    text = response._get_param("queryString") or ""
    language = response._get_param("queryLanguage") or "CWLI"
    first, last = (int(response._get_param(name)) for name in ("startTime", "endTime"))
    limit = response._get_param("limit")
    if language != "CWLI":
        raise InvalidParameterException(msg=f"The lab does not have the query language {language}")
    if len(text) > MOST_CHARACTERS:
        raise InvalidParameterException(msg=f"queryString is over {MOST_CHARACTERS} characters")
    if limit is not None and not 1 <= int(limit) <= MOST_ROWS:
        raise InvalidParameterException(msg=f"limit is not from 1 to {MOST_ROWS}")
    try:
        query = parse.parse(text)
        groups = _groups(response, query.source, class_of)
        _refuse_what_is_too_early(groups, first, last, len(text))
    except QueryError as error:
        raise malformed(_of_class(response, error, class_of)) from None
    if sum(other.status == "Running" for other in _queries(response).values()) >= MOST_AT_ONCE:
        raise LimitExceededException()
    events = [event for group in groups for event in _events(group, first * 1000, last * 1000)]
    rows = run.run(query, events, None if limit is None else int(limit))
    started = _Run(text, tuple(group.name for group in groups), rows)
    _queries(response)[started.id] = started
    return json.dumps({"queryId": started.id})


def _of_class(response: Any, error: QueryError, class_of: Callable[[Any], str]) -> QueryError:
    """Of a command that a log group's class lacks: that; the words are the lab's."""
    if error.lacks in parse.NOT_INFREQUENT:
        for group in _groups(response, None, class_of):
            if class_of(group) == "INFREQUENT_ACCESS":
                message = f"{error.lacks} is not supported by the log class of {group.name}"
                return QueryError(message, error.start, error.end)
    return error


def _groups(
    response: Any, source: Mapping[str, Sequence[str]] | None, class_of: Callable[[Any], str]
) -> list[Any]:
    """The log groups to look at: the request's, or those that SOURCE chooses."""
    there: dict[str, Any] = response.logs_backend.groups
    parameters = [
        names
        for names in (
            [response._get_param("logGroupName")] if response._get_param("logGroupName") else None,
            response._get_param("logGroupNames"),
            response._get_param("logGroupIdentifiers"),
        )
        if names
    ]
    if source is not None:
        if parameters:
            raise InvalidParameterException(msg="Log groups are given by SOURCE and by parameter")
        prefixes = tuple(source.get("namePrefix", ("",)))
        classes = source.get("class", ("STANDARD",))
        return [
            group
            for name, group in there.items()
            if name.startswith(prefixes) and class_of(group) in classes
        ]
    if len(parameters) != 1:
        raise InvalidParameterException(
            msg="Exactly one of logGroupName, logGroupNames, logGroupIdentifiers is needed"
        )
    names = [str(name).split(":log-group:")[-1].removesuffix(":*") for name in parameters[0]]
    if len(names) > MOST_GROUPS:
        raise InvalidParameterException(msg=f"A query looks at up to {MOST_GROUPS} log groups")
    missing = [name for name in names if name not in there]
    if missing:
        raise ResourceNotFoundException(f"Log group '{missing[0]}' does not exist.")
    return [there[name] for name in dict.fromkeys(names)]


def _refuse_what_is_too_early(groups: Sequence[Any], start: int, end: int, length: int) -> None:
    """In CloudWatch's words, as users report them."""
    if start > end:
        raise InvalidParameterException(msg="endTime is before startTime")
    created = [int(group.to_describe_dict()["creationTime"]) for group in groups]
    kept = [group.retention_in_days for group in groups]
    now = time.time()
    past = [now - int(days) * 86_400 if days else 0 for days in kept]
    if groups and all(
        end < max(made // 1000, gone) for made, gone in zip(created, past, strict=True)
    ):
        raise QueryError(
            "Query's end date and time is either before the log groups creation time or exceeds "
            "the log groups log retention settings",
            0,
            length,
        )


def _events(group: Any, first: int, last: int) -> list[run.Event]:
    return [
        run.Event(
            group.name,
            stream.log_stream_name,
            int(event.timestamp),
            int(event.ingestion_time),
            event.message,
            group.account_id,
            str(event.event_id),
        )
        for stream in list(group.streams.values())
        for event in list(stream.events)
        if first <= int(event.timestamp) <= last
    ]


def _run_of(response: Any) -> _Run:
    query = _queries(response).get(response._get_param("queryId"))
    if query is None:
        raise ResourceNotFoundException("The specified query does not exist.")
    return query


def results(response: Any) -> str:
    """GetQueryResults."""
    query = _run_of(response)
    most = int(response._get_param("maxItems") or ROWS)
    token = response._get_param("nextToken") or "0"
    if most > ROWS or not token.isdecimal():
        raise InvalidParameterException()
    begin, results = int(token), query.results
    rows = results.rows if query.status == "Complete" else []
    page = rows[begin : begin + most]
    answer: dict[str, Any] = {
        "queryLanguage": "CWLI",
        "status": query.status,
        "results": [[{"field": name, "value": text} for name, text in row] for row in page],
        "statistics": {
            "recordsMatched": float(results.matched),
            "recordsScanned": float(results.scanned),
            "bytesScanned": float(results.bytes_scanned),
            "logGroupsScanned": float(len(query.groups)),
            "resultCount": float(len(rows)),
            "estimatedRecordsSkipped": 0.0,
            "estimatedBytesSkipped": 0.0,
        },
    }
    if begin + most < len(rows):
        answer["nextToken"] = str(begin + most)
    return json.dumps(answer)


def stop(response: Any) -> str:
    """StopQuery."""
    query = _run_of(response)
    if query.status != "Running":
        # The documentation says that it is an error; its name and words are assumed.
        raise InvalidParameterException(msg="The specified query is not running.")
    query.cancelled = True
    return json.dumps({"success": True})


def described(response: Any) -> str:
    """DescribeQueries, the newest first."""
    group, status = response._get_param("logGroupName"), response._get_param("status")
    most = int(response._get_param("maxResults") or 1000)
    token = str(response._get_param("nextToken") or "0")
    if not token.isdecimal():
        raise InvalidParameterException()
    begin = int(token)
    listed = [
        query.shown()
        for query in reversed(_queries(response).values())
        if (group is None or group in query.groups) and status in (None, query.status)
    ]
    more = {"nextToken": str(begin + most)} if begin + most < len(listed) else {}
    return json.dumps({"queries": listed[begin : begin + most], **more})
