"""The lab's Logs Insights: queries over log events, what is refused of a query, and the calls.

The dashboard's own queries: tests/unit/test_lab_cloudformation.py, and with guests
tests/lab/test_cloudwatch.py.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from moto.logs.exceptions import LogsClientError
from moto.logs.models import LogsBackend

from lab.cloudwatch.logs_insights import calls, parse, run
from lab.cloudwatch.logs_insights.query import QueryError

START = 1_800_000_000_000  # 2027-01-15 08:00:00


def event(seconds: float, message: Any, stream: str = "i-1", group: str = "/app") -> run.Event:
    text = message if isinstance(message, str) else json.dumps(message)
    moment = START + int(seconds * 1000)
    return run.Event(group, stream, moment, moment + 5, text, "123456789012", f"p{seconds}")


EVENTS = [
    event(0, {"level": "info", "ms": 10, "user": {"name": "ann", "ids": [7, 8]}, "gone": None}),
    event(60, {"level": "error", "ms": "30", "retry": True}, "i-2"),
    event(61, {"level": "error", "ms": 20.5, "x-id": "a"}, group="/other"),
    event(400, "25 May [WARN] {foo=2} The error was: Broken"),
]


def rows(text: str, events: list[run.Event] = EVENTS, limit: int | None = None) -> list[Any]:
    """The results without @ptr."""
    found = run.run(parse.parse(text), events, limit).rows
    return [{name: value for name, value in row if name != "@ptr"} for row in found]


def column(text: str, name: str, events: list[run.Event] = EVENTS) -> list[str | None]:
    return [row.get(name) for row in rows(text, events)]


def test_without_fields_a_query_shows_time_and_message_the_newest_first() -> None:
    found = rows("filter level = 'error'")
    assert [row["@timestamp"] for row in found] == [
        "2027-01-15 08:01:01.000",
        "2027-01-15 08:01:00.000",
    ]
    assert json.loads(found[1]["@message"])["ms"] == "30"


def test_every_row_of_events_has_its_pointer_and_rows_of_stats_have_none() -> None:
    assert [dict(row)["@ptr"] for row in run.run(parse.parse("fields ms"), EVENTS).rows] == [
        "p400", "p61", "p60", "p0",
    ]  # fmt: skip
    (counted,) = run.run(parse.parse("stats count(*)"), EVENTS).rows
    assert counted == [("count(*)", "4")]


def test_cloudwatchs_own_fields_are_there() -> None:
    found = rows("fields @log, @logStream, @ingestionTime | filter @logStream = 'i-2'")
    assert found == [
        {
            "@log": "123456789012:/app",
            "@logStream": "i-2",
            "@ingestionTime": "2027-01-15 08:01:00.005",
        }
    ]


def test_json_is_found_by_its_path_and_what_is_null_is_not_there() -> None:
    assert column("fields user.ids.1 as second", "second") == [None, None, None, "8"]
    assert column("fields `x-id` as id", "id") == [None, "a", None, None]
    assert rows("filter ispresent(gone)") == []
    assert column("filter retry = true | fields retry", "retry") == ["1"]
    assert rows("fields @@at", [event(0, {"@at": 3})]) == [{"@@at": "3"}]


def test_no_more_than_two_hundred_fields_of_an_event_are_found() -> None:
    wide = [event(0, {f"f{number}": number for number in range(300)})]
    assert rows("fields f199, f200", wide) == [{"f199": "199"}]


@pytest.mark.parametrize(
    ("test", "found"),
    [
        ("ms > 15", ["20.5", "30"]),
        ("ms >= 10 and ms <= 20.5", ["20.5", "10"]),
        ("ms = 30", ["30"]),
        ("ms != 30", ["20.5", "10"]),
        ("level in ['error', \"info\"] and not (ms < 15)", ["20.5", "30"]),
        ("ms in [10, 30]", ["30", "10"]),
        ("level not in ['error']", ["10"]),
        ("level like /^ERR/", []),
        ("level like /(?i)^ERR/", ["20.5", "30"]),
        ("level =~ /r+o/", ["20.5", "30"]),
        ("level like 'nf'", ["10"]),
        ("level not like 'nf'", ["20.5", "30"]),
        ("user.name = 'ann' or `x-id` = 'a'", ["20.5", "10"]),
        ("not ispresent(level)", [None]),
        ("ms * 2 - 1 = 19", ["10"]),
        ("ms % 20 = 10 and ms / 10 ^ 1 < 2", ["10"]),
        ("(level = 'info')", ["10"]),
        ("strcontains(@message, 'Broken')", [None]),
        ("toMillis(@timestamp) > 1800000060000 and ispresent(ms)", ["20.5"]),
    ],
)
def test_a_filter_lets_through(test: str, found: list[str | None]) -> None:
    assert column(f"fields ms | filter {test}", "ms") == found
    assert column(f"FIELDS ms | WHERE {test}", "ms") == found


@pytest.mark.parametrize(
    ("stats", "found"),
    [
        ("count(*)", "4"),
        ("count(ms)", "3"),
        ("count_distinct(level)", "2"),
        ("sum(ms)", "60.5"),
        ("avg(ms)", repr(60.5 / 3)),
        ("min(ms)", "10"),
        ("max(ms)", "30"),
        ("max(ms) - min(ms)", "20"),
        ("pct(ms, 50)", "20.5"),
        ("pct(ms, 100)", "30"),
        ("earliest(level)", "info"),
        ("latest(level)", "error"),
        ("sortsFirst(level)", "error"),
        ("latest(@timestamp)", "1800000400000"),
        ("sum(nothing)", None),
    ],
)
def test_a_statistic_over_all_events(stats: str, found: str | None) -> None:
    (row,) = rows(f"stats {stats} as answer")
    assert row.get("answer") == found


def test_statistics_by_field_and_by_time_have_a_row_each() -> None:
    found = rows("stats count(*) as n by level, bin(5m) | sort n desc, level asc")
    assert found == [
        {"level": "error", "bin(5m)": "2027-01-15 08:00:00.000", "n": "2"},
        {"bin(5m)": "2027-01-15 08:05:00.000", "n": "1"},
        {"level": "info", "bin(5m)": "2027-01-15 08:00:00.000", "n": "1"},
    ]


def test_rows_of_stats_are_filtered_counted_again_and_shown() -> None:
    text = "stats count(*) as n by level, bin(1m) as minute | filter n > 1"
    assert rows(text) == [{"level": "error", "minute": "2027-01-15 08:01:00.000", "n": "2"}]
    assert rows(text + " | stats sum(n) as all | display all * 2 as twice") == [{"twice": "4"}]


def test_a_time_of_stats_is_milliseconds_until_it_is_made_a_date() -> None:
    assert rows("stats max(@timestamp) as last") == [{"last": "1800000400000"}]
    shown = rows("stats max(@timestamp) as last | display fromMillis(last) as at")
    assert shown == [{"at": "2027-01-15 08:06:40.000"}]


def test_a_glob_and_a_regular_expression_make_fields() -> None:
    glob = 'parse @message "[*] {*} The error was: *" as level, config, error | display error'
    named = r"parse /\[(?<kind>\S+)\].*was: (?<error>\S+)/ | display kind, error"
    assert rows(glob)[0] == {"error": "Broken"}
    assert rows(named)[0] == {"kind": "WARN", "error": "Broken"}
    assert rows(named)[1] == {}, "an event that does not match stays"


def test_the_query_of_awss_example_dashboard_runs() -> None:
    """Of CloudWatch-Dashboard-Body-Structure.html: no field and no `as` in parse."""
    text = """filter @message like "[ERROR]"
    | parse "Error for [*] [*] due to: *" canaryName1, canaryId1, cause1
    | parse "Executor canary [*] *" canaryName2, cause2
    | fields coalesce(cause1, cause2) as cause
    | fields coalesce(canaryName1, canaryName2) as canaryName
    | fields ispresent(cause) as isP
    | filter isP
    | stats count() as errCount by canaryName, substr(cause, 0, 130)
    | sort errCount DESC"""
    events = [
        event(0, "[ERROR] Error for [a] [7] due to: rain"),
        event(1, "[ERROR] Executor canary [b] snow"),
        event(2, "[ERROR] Executor canary [b] snow"),
        event(3, "[ERROR] else"),
    ]
    assert rows(text, events) == [
        {"canaryName": "b", "substr(cause, 0, 130)": "snow", "errCount": "2"},
        {"canaryName": "a", "substr(cause, 0, 130)": "rain", "errCount": "1"},
    ]


def test_sorting_puts_numbers_after_texts_and_texts_in_natural_order() -> None:
    """The list of CWL_QuerySyntax-Sort.html."""
    listed = ["!", "#", "*%04", "0#", "5A", "111A", "2345_", "@", "@_", "A", "A9876fghj",
              "a12345hfh", "0", "01", "1", "2", "3"]  # fmt: skip
    events = [event(at, {"v": value}) for at, value in enumerate(sorted(listed))]
    assert column("fields v | sort v asc", "v", events) == listed
    assert column("fields v | sort v desc", "v", events) == listed[::-1]


def test_dedup_keeps_the_first_of_each_and_what_has_no_value() -> None:
    events = [*EVENTS, event(500, "another line"), event(-1, {"level": "", "ms": 0})]
    found = rows("fields ms | sort @timestamp asc | dedup level | limit 9", events)
    assert found == [{"ms": "0"}, {"ms": "10"}, {"ms": "30"}, {}, {}]


def test_the_limit_of_the_query_counts_before_that_of_the_request() -> None:
    assert len(rows("fields ms", limit=2)) == 2
    assert len(rows("fields ms | limit 3", limit=2)) == 3
    assert len(rows("fields ms | limit any 1")) == 1


def test_the_last_display_counts_and_comments_do_not() -> None:
    text = "# levels\nfields level # all\n| display ms "
    text += "| display toupper(level) as L, concat('a', ms) as c"
    assert rows(text)[-1] == {"L": "INFO", "c": "a10"}


@pytest.mark.parametrize(
    ("function", "found"),
    [
        ("coalesce(nothing, level)", "info"),
        ("isempty(nothing)", "1"),
        ("strlen(level)", "4"),
        ("substr(level, 1, 2)", "nf"),
        ("replace(level, 'in', 'out')", "outfo"),
        ("trim('xxyxx', 'x')", "y"),
        ("abs(5 - ms)", "5"),
        ("greatest(ms, 12, 3)", "12"),
        ("least(ms, 12, 3)", "3"),
        ("ceil(ms / 3)", "4"),
        ("datefloor(@timestamp, 1h)", "2027-01-15 08:00:00.000"),
        ("dateceil(@timestamp, 2 hours)", "2027-01-15 08:00:00.000"),
        ("isPresent(level)", "1"),
        ("ms / 0", None),
    ],
)
def test_a_function_gives(function: str, found: str | None) -> None:
    assert column(f"sort @timestamp asc | limit 1 | fields {function} as answer", "answer") == [
        found
    ]


@pytest.mark.parametrize(
    ("text", "message", "at"),
    [
        ("fields a,, b", "unexpected symbol found ,", (9, 10)),
        ("fields a | count()", "unexpected symbol found count", (11, 16)),
        ("fields a | ", "unexpected end of the query", (11, 11)),
        ("fields a | dedup a | sort a", "unexpected symbol found sort", (21, 27)),
        ("fields a | pattern @message", "the lab does not have the command pattern", (11, 18)),
        ("fields soundex(a)", "the lab does not have the function soundex", (7, 17)),
        ("fields abs(a, b)", "invalid number of arguments for abs: 2", (7, 16)),
        ("stats count(*) by bin(a)", "invalid argument for bin", (22, 23)),
        ("filter max(a) > 1", "max is allowed in stats only", (7, 13)),
        ("stats max(max(a))", "max is allowed in stats only", (10, 16)),
        (
            "stats count(*) as n by a | sort b",
            "Unknown symbols found in or after stats: b",
            (32, 33),
        ),
        ("stats a by b", "Unknown symbols found in or after stats: a", (6, 7)),
        (
            "fields a, b | fields concat(b) as a | stats count(*) by a",
            "Unknown symbols found in or after stats: a",
            (56, 57),
        ),
        (
            "stats count(*) as n by a | stats max(n) as m by a | stats max(m)",
            "a query has up to 2 stats commands",
            (52, 64),
        ),
        ("parse @message '* *' as a", "the pattern has 2 wildcards and 1 names", (15, 20)),
        ("parse @message /x(y)/", "parse needs a named group: (?<name>…)", (15, 21)),
        ("filter a like /(/", "invalid regular expression", (14, 17)),
        ("fields a | fieldsx b", "unexpected symbol found fieldsx", (11, 18)),
        ("limit 0", "limit takes a number from 1 to 100000", (6, 7)),
        ("SOURCE '/app' | fields a", "unexpected symbol found '", (7, 8)),
        (
            "SOURCE logGroups(tags: ['a']) | fields a",
            "the lab does not have tags in SOURCE",
            (17, 21),
        ),
    ],
)
def test_a_query_is_refused_with_the_place(text: str, message: str, at: tuple[int, int]) -> None:
    with pytest.raises(QueryError) as refused:
        parse.parse(text)
    assert str(refused.value).startswith(message)
    assert (refused.value.start, refused.value.end) == at


class Logs:
    """The calls over moto's log groups /a and /b, with an event in each, and /cold."""

    def __init__(self) -> None:
        self.logs_backend = LogsBackend("us-east-1", "123456789012")
        self.now = int(time.time())
        for name in ("/a", "/b", "/cold"):
            self.logs_backend.create_log_group(name, {})
            self.logs_backend.create_log_stream(name, "s")
            event = {"timestamp": self.now * 1000, "message": json.dumps({"in": name})}
            self.logs_backend.put_log_events(name, "s", [event])

    def __call__(self, answer: Any, *more: Any, **given: Any) -> dict[str, Any]:
        self._given = given
        found: dict[str, Any] = json.loads(answer(self, *more))
        return found

    def _get_param(self, name: str) -> Any:
        return self._given.get(name)

    def start(self, query: str = "fields in | sort in asc", **given: Any) -> str:
        times = {"startTime": self.now - 60, "endTime": self.now + 60}
        asked = times | ({} if query.startswith("SOURCE") else {"logGroupNames": ["/a"]})
        asked |= {"queryString": query} | given
        return str(self(calls.start, self.class_of, **asked)["queryId"])

    def rows(self, query: str = "fields in | sort in asc", **given: Any) -> list[str]:
        answer = self(calls.results, queryId=self.start(query, **given))
        return [row[0]["value"] for row in answer["results"]]

    @staticmethod
    def class_of(group: Any) -> str:
        return "INFREQUENT_ACCESS" if group.name == "/cold" else "STANDARD"


@pytest.fixture
def logs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Logs]:
    monkeypatch.setattr(calls, "RUNS", 0)
    yield Logs()


def test_a_query_runs_for_a_moment_and_has_no_rows_until_it_is_complete(
    logs: Logs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "RUNS", 1000)
    begun = logs.start("fields in | filter in = '/a'", logGroupNames=["/a", "/b"])
    running = logs(calls.results, queryId=begun)
    assert (running["status"], running["results"]) == ("Running", [])
    monkeypatch.setattr(calls, "RUNS", 0)
    complete = logs(calls.results, queryId=begun)
    assert (complete["status"], complete["results"][0][0]["value"]) == ("Complete", "/a")
    scanned = complete["statistics"]
    counted = ("recordsScanned", "recordsMatched", "bytesScanned")
    assert [scanned[name] for name in counted] == [2.0, 1.0, 24.0]


def test_a_query_looks_at_several_groups_by_name_and_by_arn(logs: Logs) -> None:
    assert logs.rows(logGroupNames=["/a", "/b"]) == ["/a", "/b"]
    arns = [f"arn:aws:logs:us-east-1:123456789012:log-group:{name}" for name in ("/a", "/b:*")]
    assert logs.rows(logGroupNames=None, logGroupIdentifiers=arns) == ["/a", "/b"]
    assert logs.rows(logGroupNames=None, logGroupName="/b") == ["/b"]


def test_source_chooses_groups_by_prefix_and_class(logs: Logs) -> None:
    assert logs.rows("SOURCE logGroups() | fields in | sort in asc") == ["/a", "/b"]
    assert logs.rows("SOURCE logGroups(namePrefix: ['/b', '/c']) | fields in") == ["/b"]
    assert logs.rows("SOURCE logGroups(class: ['INFREQUENT_ACCESS']) | fields in") == ["/cold"]


def test_the_ends_of_the_time_range_belong_to_it(logs: Logs) -> None:
    assert logs.rows(startTime=logs.now, endTime=logs.now) == ["/a"]
    assert logs.rows(startTime=logs.now + 1, endTime=logs.now + 9) == []


def test_results_come_in_pages(logs: Logs) -> None:
    begun = logs.start(logGroupNames=["/a", "/b"])
    first = logs(calls.results, queryId=begun, maxItems=1)
    rest = logs(calls.results, queryId=begun, maxItems=1, nextToken=first["nextToken"])
    assert [page["results"][0][0]["value"] for page in (first, rest)] == ["/a", "/b"]
    assert "nextToken" not in rest


def test_only_a_running_query_can_be_stopped(logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = logs.start()
    with pytest.raises(LogsClientError, match="not running"):
        logs(calls.stop, queryId=ended)
    monkeypatch.setattr(calls, "RUNS", 1000)
    begun = logs.start()
    assert logs(calls.stop, queryId=begun) == {"success": True}
    monkeypatch.setattr(calls, "RUNS", 0)
    assert logs(calls.results, queryId=begun)["status"] == "Cancelled"
    listed = logs(calls.described, status="Cancelled", logGroupName="/a")["queries"]
    assert [query["queryId"] for query in listed] == [begun]
    assert [query["queryId"] for query in logs(calls.described)["queries"]] == [begun, ended]


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"logGroupNames": ["/none"]}, "ResourceNotFoundException"),
        ({"logGroupNames": None}, "InvalidParameterException"),
        ({"logGroupName": "/a"}, "InvalidParameterException"),
        ({"logGroupNames": ["/a"] * 51}, "InvalidParameterException"),
        ({"query": "fields in #" + "x" * 10_000}, "InvalidParameterException"),
        ({"queryLanguage": "SQL"}, "InvalidParameterException"),
        ({"limit": 100_001}, "InvalidParameterException"),
        ({"startTime": 9, "endTime": 8}, "InvalidParameterException"),
        ({"startTime": 1, "endTime": 2}, "MalformedQueryException"),
        ({"query": "fields in, | limit 1"}, "MalformedQueryException"),
    ],
)
def test_a_request_is_refused(logs: Logs, given: dict[str, Any], code: str) -> None:
    with pytest.raises(LogsClientError) as refused:
        logs.start(**given)
    assert refused.value.error_type == code


def test_a_hundred_queries_run_at_once_and_no_more(
    logs: Logs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "RUNS", 1000)
    for _ in range(100):
        logs.start()
    with pytest.raises(LogsClientError, match="limit exceeded"):
        logs.start()


@pytest.mark.parametrize("command", parse.NOT_INFREQUENT)
def test_what_infrequent_access_lacks_is_refused_by_its_name(logs: Logs, command: str) -> None:
    with pytest.raises(
        LogsClientError, match=f"{command} is not supported by the log class of /cold"
    ):
        logs.start(f"fields in | {command} in", logGroupNames=["/cold"])
