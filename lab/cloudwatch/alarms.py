"""When an alarm changes its state: the rules, on the values of its periods.

https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/alarm-evaluation.html
https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/alarms-and-missing-data.html
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

OK, ALARM, INSUFFICIENT = "OK", "ALARM", "INSUFFICIENT_DATA"
# CloudWatch looks at more periods than the alarm has, so that late data count. How many more is
# not published: its documentation's tables have two.
MORE_PERIODS = 2
_OPERATORS: Mapping[str, Callable[[float, float], bool]] = {
    "GreaterThanOrEqualToThreshold": lambda value, limit: value >= limit,
    "GreaterThanThreshold": lambda value, limit: value > limit,
    "LessThanThreshold": lambda value, limit: value < limit,
    "LessThanOrEqualToThreshold": lambda value, limit: value <= limit,
}
# Statistics that can only grow while a period lasts (of values that are not negative), or shrink.
_GROWING = ("Sum", "SampleCount", "Maximum")
_SHRINKING = ("Minimum",)


@dataclass(frozen=True)
class Rule:
    """What an alarm asks of its metric."""

    operator: str
    threshold: float
    periods: int
    to_alarm: int
    missing: str = "missing"  # or ignore, breaching, notBreaching

    def breaches(self, value: float) -> bool:
        """Whether a value is outside the threshold."""
        return _OPERATORS[self.operator](value, self.threshold)

    def is_final(self, value: float, statistic: str) -> bool:
        """Whether a period that has not ended breaches for good, whatever else it brings."""
        if not self.breaches(value):
            return False
        upwards = self.operator.startswith("Greater")
        return statistic in (_GROWING if upwards else _SHRINKING)


def is_operator(name: str) -> bool:
    """Whether alarms have this comparison."""
    return name in _OPERATORS


def state(rule: Rule, values: Sequence[float | None]) -> str | None:
    """The state of an alarm by the values of its periods, oldest first; None keeps the old one.

    `values` are those of the evaluation range: `rule.periods + MORE_PERIODS`, None where missing.
    """
    there = [value for value in values if value is not None]
    if len(there) >= rule.periods:
        breaching = sum(map(rule.breaches, there[-rule.periods :]))
        return ALARM if breaching >= rule.to_alarm else OK
    breaching = sum(map(rule.breaches, there))
    lacking = rule.periods - len(there)
    if rule.missing == "breaching":
        return ALARM if breaching + lacking >= rule.to_alarm else OK
    if rule.missing == "notBreaching" or breaching >= rule.to_alarm:
        return ALARM if breaching >= rule.to_alarm else OK
    if not there:
        return None if rule.missing == "ignore" else INSUFFICIENT
    if breaching < len(there):
        return OK
    # Only breaching values, fewer than it takes: an alarm when the oldest is old enough.
    oldest = next(place for place, value in enumerate(values) if value is not None)
    old_enough = len(values) - oldest >= rule.to_alarm
    return ALARM if old_enough and rule.missing != "ignore" else None
