"""CloudWatch's alarms in the lab: when they change their state."""

from __future__ import annotations

import pytest

from lab.cloudwatch import alarms

# The two tables of CloudWatch's documentation: 0 is a value within the threshold, X one outside,
# - a period without data; then the state for each treatment of missing data, "" keeps the old one.
# https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/alarms-and-missing-data.html
O, A, I = alarms.OK, alarms.ALARM, alarms.INSUFFICIENT  # noqa: E741
TREATMENTS = ("missing", "ignore", "breaching", "notBreaching")
THREE_OF_THREE = {
    "0-X-X": (O, O, O, O),
    "0----": (O, O, O, O),
    "-----": (I, "", A, O),
    "0XX-X": (A, A, A, A),
    "--X--": (A, "", A, O),
}
TWO_OF_THREE = {
    "0-X-X": (A, A, A, A),
    "00X0X": (A, A, A, A),
    "0-X--": (O, O, A, O),
    "----0": (O, O, A, O),
    "---X-": (A, "", A, O),
}
TABLES = [
    (to_alarm, values, treatment, state)
    for to_alarm, table in ((3, THREE_OF_THREE), (2, TWO_OF_THREE))
    for values, states in table.items()
    for treatment, state in zip(TREATMENTS, states, strict=True)
]


@pytest.mark.parametrize(("to_alarm", "values", "treatment", "state"), TABLES)
def test_missing_data_are_treated_as_documented(
    to_alarm: int, values: str, treatment: str, state: str
) -> None:
    rule = alarms.Rule("GreaterThanThreshold", 5, 3, to_alarm, treatment)
    listed = [{"0": 5.0, "X": 6.0, "-": None}[value] for value in values]
    assert (alarms.state(rule, listed) or "") == state


def test_one_breaching_period_is_enough_for_one_of_one() -> None:
    rule = alarms.Rule("GreaterThanOrEqualToThreshold", 1, 1, 1, "notBreaching")
    assert alarms.state(rule, [None, None, 1]) == alarms.ALARM
    assert alarms.state(rule, [1, None, None]) == alarms.ALARM
    assert alarms.state(rule, [None, None, None]) == alarms.OK


@pytest.mark.parametrize(
    ("operator", "statistic", "final"),
    [
        ("GreaterThanThreshold", "Sum", True),
        ("GreaterThanThreshold", "Average", False),
        ("GreaterThanThreshold", "Minimum", False),
        ("LessThanThreshold", "Minimum", True),
        ("LessThanThreshold", "SampleCount", False),
    ],
)
def test_a_period_that_goes_on_counts_when_its_end_cannot_change_it(
    operator: str, statistic: str, final: bool
) -> None:
    rule = alarms.Rule(operator, 5, 1, 1)
    assert rule.is_final(9 if operator.startswith("Greater") else 1, statistic) is final
    assert not rule.is_final(5, statistic)
