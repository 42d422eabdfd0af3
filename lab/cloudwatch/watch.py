"""Looks at all alarms every second, changes their states and does what they are to do then.

CloudWatch looks at the ends of minutes. Here the current minute counts too, as soon as it
breaches for good: an alarm comes in seconds, and none that CloudWatch would not raise.
"""

from __future__ import annotations

import logging
import threading
import time
from datetime import datetime, timezone
from typing import Any

from moto.cloudwatch.models import cloudwatch_backends
from moto.core.exceptions import ServiceException
from moto.kms.models import kms_backends
from moto.sns.models import sns_backends

from lab.cloudwatch import alarms, composite, contributors, notices, queries, series
from lab.cloudwatch.alarms import Rule
from lab.cloudwatch.series import Key, Store

log = logging.getLogger("lab.cloudwatch")

PAUSE = 1.0
_ACTIONS = {
    alarms.OK: "ok_actions",
    alarms.ALARM: "alarm_actions",
    alarms.INSUFFICIENT: "insufficient_data_actions",
}
_HISTORY = 1000


def store_of(backend: Any) -> Store:
    """The series of an account in a region; they end with moto's backend."""
    store: Store = backend.__dict__.setdefault("kiln_series", Store())
    return store


def history_of(backend: Any) -> list[dict[str, Any]]:
    """What happened to the alarms of an account in a region, oldest first."""
    history: list[dict[str, Any]] = backend.__dict__.setdefault("kiln_history", [])
    return history


def start() -> None:
    """Watch in the background as long as the process lives."""
    threading.Thread(target=_for_ever, daemon=True, name="alarms").start()


def _for_ever() -> None:
    while True:
        time.sleep(PAUSE)
        for regions in list(cloudwatch_backends.values()):
            for backend in list(regions.values()):
                if backend.alarms:
                    look(backend, time.time())


def look(backend: Any, now: float) -> None:
    """Judge all alarms of a region."""
    watched = list(backend.alarms.values())
    for alarm in sorted(watched, key=lambda alarm: alarm.rule is not None):
        _judge(backend, alarm, now)


def _judge(backend: Any, alarm: Any, now: float) -> None:
    try:
        judge = _judge_rule if alarm.rule is not None else _judge_metric
        judge(backend, alarm, now)
    except ValueError as error:
        # One alarm that cannot be judged must not keep the others from it.
        log.warning("alarm %s: %s: %s", alarm.name, type(error).__name__, error)
    except Exception:
        log.exception("alarm %s", alarm.name)


def _judge_metric(backend: Any, alarm: Any, now: float) -> None:
    rule = rule_of(alarm)
    insight = contributors.insight_of(alarm)
    if insight is not None and insight.by:
        _judge_contributors(
            backend,
            alarm,
            contributors.judge(insight, rule, _period(alarm), store_of(backend), now),
        )
        return
    periods = values_of(alarm, rule, store_of(backend), now)
    new = alarms.state(rule, [value for _, value in periods])
    if new is None or new == alarm.state_value:
        return
    there = [(at, value) for at, value in periods if value is not None][-rule.periods :]
    judged = [point for point in there if rule.breaches(point[1]) == (new == alarms.ALARM)] or there
    change(
        backend,
        alarm,
        new,
        notices.reason(alarm, new, judged, rule.to_alarm),
        notices.reason_data(alarm, judged, now),
    )


def _judge_contributors(backend: Any, alarm: Any, verdict: contributors.Verdict) -> None:
    contributors.remember(alarm, verdict)
    if verdict.state is None or verdict.state == alarm.state_value:
        alarm.state_reason = verdict.reason
        return
    change(backend, alarm, verdict.state, verdict.reason, "{}")


def _period(alarm: Any) -> int:
    return int(alarm.period or 0) or queries.period_of(alarm.metric_data_queries)


def rule_of(alarm: Any) -> Rule:
    """What an alarm asks of its metric."""
    periods = int(alarm.evaluation_periods)
    return Rule(
        alarm.comparison_operator,
        float(alarm.threshold),
        periods,
        int(alarm.datapoints_to_alarm or periods),
        alarm.treat_missing_data or "missing",
    )


def values_of(alarm: Any, rule: Rule, store: Store, now: float) -> list[tuple[float, float | None]]:
    """The periods that an alarm is judged by: (beginning, value or None), oldest first."""
    statistic = alarm.statistic or alarm.extended_statistic or ""
    period = _period(alarm)
    step = min(period, 60)
    count = rule.periods + alarms.MORE_PERIODS

    def until(end: float) -> list[tuple[float, float | None]]:
        start = end - count * period
        if alarm.metric_name:
            dimensions = tuple(
                sorted((dimension.name, dimension.value) for dimension in alarm.dimensions)
            )
            points = store.between(
                Key(alarm.namespace, alarm.metric_name, dimensions), start, end, alarm.unit
            )
            by_time = dict(series.periods(points, start, period, statistic))
        else:
            by_time = queries.of_alarm(store, alarm.metric_data_queries, start, end)
        begins = [start + number * period for number in range(count)]
        return [(begin, by_time.get(begin)) for begin in begins]

    whole = now - now % step
    going_on = until(whole + step)
    newest = going_on[-1][1]
    if newest is not None and rule.is_final(newest, statistic):
        return going_on
    return until(whole)


def _judge_rule(backend: Any, alarm: Any, now: float) -> None:
    holds, named = composite.parse(alarm.rule)
    states = {name: alarm.state_value for name, alarm in list(backend.alarms.items())}
    new = alarms.ALARM if holds(states) else alarms.OK
    if new == alarm.state_value:
        return
    members = ", ".join(f"{name} is {states.get(name, 'missing')}" for name in named)
    change(backend, alarm, new, f"{alarm.rule}: {members}", "{}")


def change(backend: Any, alarm: Any, new: str, reason: str, data: str) -> None:
    """Give an alarm a state, and do what it does then."""
    old = alarm.state_value
    alarm.update_state(reason, data, new)
    changed(backend, alarm, old)


def changed(backend: Any, alarm: Any, old: str) -> None:
    """What follows a change of state: history, notifications."""
    summary = f"Alarm updated from {old} to {alarm.state_value}"
    remember(backend, alarm, "StateUpdate", summary)
    if not alarm.actions_enabled or old == alarm.state_value:
        return
    for action in getattr(alarm, _ACTIONS[alarm.state_value]):
        remember(backend, alarm, "Action", _done(backend, alarm, action, old))


def _done(backend: Any, alarm: Any, action: str, old: str) -> str:
    _, _, service, region, *_ = f"{action}:::::".split(":")
    if service != "sns":
        log.warning("alarm %s: actions of %s are not implemented", alarm.name, action)
        return f"Failed to execute action {action}: AMI Kiln lab: not implemented"
    subject, message = notices.message(alarm, backend.account_id, old)
    if refusal := key_refuses(backend, action, region):
        log.warning("alarm %s: %s: %s", alarm.name, action, refusal)
        return f'Failed to execute action {action}. Received error: "{refusal}"'
    try:
        sns_backends[backend.account_id][region].publish(message, arn=action, subject=subject)
    except ServiceException as error:
        log.warning("alarm %s: %s: %s", alarm.name, action, error)
        return f"Failed to execute action {action}. Received error: {error}"
    return f"Successfully executed action {action}"


def key_refuses(backend: Any, topic: str, region: str) -> str:
    """Why an alarm cannot use the key of an encrypted topic; "" where it can.

    https://repost.aws/knowledge-center/cloudwatch-configure-alarm-sns
    """
    known_topic = sns_backends[backend.account_id][region].topics.get(topic)
    key = str(getattr(known_topic, "kms_master_key_id", "") or "")
    if not key:
        return ""
    keys = kms_backends[backend.account_id][region].keys
    kms_key = keys.get(key.rpartition("/")[2])
    if kms_key is not None and "cloudwatch.amazonaws.com" in str(kms_key.policy):
        return ""
    return "CloudWatch Alarms does not have authorization to access the SNS topic encryption key."


def remember(backend: Any, alarm: Any, kind: str, summary: str) -> None:
    """Write an alarm's history."""
    history = history_of(backend)
    history.append(
        {
            "AlarmName": alarm.name,
            "AlarmType": "MetricAlarm" if alarm.rule is None else "CompositeAlarm",
            "Timestamp": datetime.now(timezone.utc),
            "HistoryItemType": kind,
            "HistorySummary": summary,
            "HistoryData": alarm.state_reason_data or "{}",
        }
    )
    del history[:-_HISTORY]
