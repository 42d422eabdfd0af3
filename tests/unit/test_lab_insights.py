"""Metrics Insights in the lab, and alarms on a query with many series."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from lab.cloudwatch import alarms, contributors, metrics_insights, watch
from lab.cloudwatch.series import Store

START = 1_800_000_000.0
QUERY = 'SELECT MAX(use) FROM "CWAgent" GROUP BY InstanceId ORDER BY MAX() DESC'


def stored(*rows: tuple[str, dict[str, str], float]) -> Store:
    """Each row is a value of a metric, a minute apart for a quarter of an hour."""
    store = Store()
    for name, dimensions, value in rows:
        listed = [{"Name": key, "Value": text} for key, text in dimensions.items()]
        store.put("CWAgent", [
            {"MetricName": name, "Dimensions": listed, "Value": value, "Timestamp": moment(minute)}
            for minute in range(15)
        ])  # fmt: skip
    return store


def moment(minute: int) -> Any:
    from datetime import datetime, timezone

    return datetime.fromtimestamp(START + 60 * minute, timezone.utc)


MACHINES = stored(
    ("use", {"InstanceId": "i-a", "index": "0"}, 90),
    ("use", {"InstanceId": "i-a", "index": "1"}, 10),
    ("use", {"InstanceId": "i-b", "index": "0"}, 20),
    ("use", {"InstanceId": "i-a"}, 50),
    ("other", {"InstanceId": "i-c"}, 99),
)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("SELECT MAX(use) FROM CWAgent", {(): 90}),
        ('select count(use) from "CWAgent"', {(): 20}),
        ("SELECT SUM(use) FROM SCHEMA(CWAgent, InstanceId)", {(): 250}),
        ("SELECT MIN(use) FROM SCHEMA(\"CWAgent\", index, InstanceId) WHERE index = '0'", {(): 20}),
        ("SELECT MAX(use) FROM CWAgent WHERE InstanceId != 'i-a'", {(): 20}),
        ("SELECT AVG(use) FROM CWAgent WHERE InstanceId = 'i-b' AND index = '0'", {(): 20}),
        (QUERY, {(("InstanceId", "i-a"),): 90, (("InstanceId", "i-b"),): 20}),
        (QUERY + " LIMIT 1", {(("InstanceId", "i-a"),): 90}),
        (
            "SELECT MAX(use) FROM CWAgent GROUP BY index ORDER BY MIN() ASC LIMIT 1",
            {(("index", "1"),): 10},
        ),
        ("SELECT MAX(nothing) FROM CWAgent", {}),
    ],
)
def test_a_query_takes_the_series_that_it_names(text: str, found: dict[Any, float]) -> None:
    got = metrics_insights.parse(text).run(MACHINES, START, START + 300, 300)
    assert {group: values[START] for group, values in got.items()} == found


@pytest.mark.parametrize(
    "text", ["SELECT use FROM CWAgent", "SELECT P99(use) FROM CWAgent", "SELECT MAX(use)", "SELECT"]
)
def test_an_invalid_query_is_refused(text: str) -> None:
    with pytest.raises(metrics_insights.InsightsError):
        metrics_insights.parse(text)


def judged(rule: alarms.Rule, store: Store, text: str = QUERY) -> contributors.Verdict:
    return contributors.judge(metrics_insights.parse(text), rule, 300, store, START + 900)


OVER = alarms.Rule("GreaterThanThreshold", 50, 3, 3, "notBreaching")


def test_each_series_is_judged_by_itself_and_the_message_counts_them() -> None:
    verdict = judged(OVER, MACHINES)
    assert (verdict.state, verdict.reason) == (
        alarms.ALARM,
        "1 out of 2 time series evaluated to ALARM",
    )
    assert verdict.breaching == ((("InstanceId", "i-a"),),)


def test_a_series_that_ends_leaves_the_query_and_nobody_misses_it() -> None:
    missing = alarms.Rule("LessThanThreshold", 1, 3, 3, "breaching")
    later = contributors.judge(metrics_insights.parse(QUERY), missing, 300, MACHINES, START + 7200)
    assert (later.state, later.breaching) == (alarms.ALARM, ())
    assert later.reason.endswith("Treat missing data is configured as [Breaching].")
    ignored = alarms.Rule("LessThanThreshold", 1, 3, 3, "notBreaching")
    kept = contributors.judge(metrics_insights.parse(QUERY), ignored, 300, MACHINES, START + 7200)
    assert kept.state == "OK"


def test_a_series_that_has_just_begun_is_not_judged_yet() -> None:
    low = alarms.Rule("LessThanThreshold", 500, 3, 1, "breaching")
    verdict = contributors.judge(metrics_insights.parse(QUERY), low, 300, MACHINES, START + 30)
    assert verdict.breaching == ()


@pytest.mark.parametrize(
    ("key", "policy", "refused"),
    [
        ("", "", False),
        ("alias/aws/sns", "", True),
        ("arn:aws:kms:us-east-1:1:key/own", "{}", True),
        ("arn:aws:kms:us-east-1:1:key/own", '{"Service":"cloudwatch.amazonaws.com"}', False),
    ],
)
def test_an_alarm_cannot_tell_a_topic_whose_key_it_may_not_use(
    monkeypatch: pytest.MonkeyPatch, key: str, policy: str, refused: bool
) -> None:
    topic = SimpleNamespace(kms_master_key_id=key)
    of_account = {"1": {"r": SimpleNamespace(topics={"arn": topic})}}
    keys = {"1": {"r": SimpleNamespace(keys={"own": SimpleNamespace(policy=policy)})}}
    monkeypatch.setattr(watch, "sns_backends", of_account)
    monkeypatch.setattr(watch, "kms_backends", keys)
    why = watch.key_refuses(SimpleNamespace(account_id="1"), "arn", "r")
    assert ("encryption key" in why) == refused
