"""Metric math, search expressions and the rules of composite alarms in the lab."""

from __future__ import annotations

from typing import Any

import pytest

from lab.cloudwatch import composite, queries, search, series
from lab.cloudwatch.functions import Line
from lab.cloudwatch.series import Key


def result(expression: str) -> Any:
    """The values of an expression over m1 (1, 2, missing) and m2 (4, 0, 8), a minute each."""
    store = series.Store()
    for name, values in (("m1", [1, 2]), ("m2", [4, 0, 8])):
        for number, value in enumerate(values):
            store._points[Key("Kiln", name)].append(
                series.Point(number * 60, 1, value, value, value, values=((value, 1),))
            )
    asked: dict[str, Any] = {
        name: {
            "MetricStat": {
                "Metric": {"Namespace": "Kiln", "MetricName": name},
                "Period": 60,
                "Stat": "Sum",
            }
        }
        for name in ("m1", "m2")
    }
    asked["e"] = {"Expression": expression}
    found = queries.Evaluation(store, asked, 0, 180).result("e")
    if isinstance(found, list):
        return [list(line.values.values()) for line in found]
    return list(found.values.values()) if isinstance(found, Line) else found


@pytest.mark.parametrize(
    ("expression", "values"),
    [
        ("m1 + m2 * 2", [9, 2]),
        ("(m1 + 1) ^ 2", [4, 9]),
        ("m1 / m2", [0.25]),  # a division by zero gives no value
        ("-m1", [-1, -2]),
        ("m1 > 1", [0, 1]),
        ("m2 == 0 OR m1 == 1", [1, 1]),
        ("m2 > 1 && m1 >= 1", [1, 0]),
        ("SUM(m2)", 12),
        ("SUM(METRICS())", [5, 2, 8]),
        ('AVG(METRICS("2"))', [4, 0, 8]),
        ("MAX([m1, m2])", [4, 2, 8]),
        ("FILL(m1, 0)", [1, 2, 0]),
        ("FILL(m1, REPEAT)", [1, 2, 2]),
        ("IF(m2 > 1, m2, -1)", [4, -1, 8]),
        ("IF(m2 > 1, m1)", [1]),
        ("DIFF(m2)", [-4, 8]),
        ("RATE(m1)", [1 / 60]),
        ("m1 * PERIOD(m1)", [60, 120]),
        ("SORT(METRICS(), SUM, DESC, 1)", [[4, 0, 8]]),
        ("ABS(m1 - m2)", [3, 2]),
    ],
)
def test_an_expression_is_computed(expression: str, values: Any) -> None:
    assert result(expression) == values


@pytest.mark.parametrize(
    "expression", ["m3 + 1", "m1 +", "e + 1", "ANOMALY_DETECTION_BAND(m1, 2)", "SELECT 1"]
)
def test_what_cannot_be_computed_says_so(expression: str) -> None:
    with pytest.raises(queries.QueryError):
        result(expression)


KEYS = [
    Key("Kiln", "nvidia_smi_memory_used", (("InstanceId", "i-0ab"), ("index", "0"))),
    Key("Kiln", "nvidia_smi_memory_used", (("InstanceId", "i-0ab"),)),
    Key("Kiln", "nvidia_smi_power_draw", (("InstanceId", "i-1cd"), ("index", "0"))),
    Key("CWAgent", "CPUUtilization", (("InstanceId", "i-0ab"), ("index", "1"))),
]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("{Kiln,InstanceId}", [1]),
        ("{Kiln,index,InstanceId}", [0, 2]),
        ('{Kiln,InstanceId,index} MetricName="nvidia_smi_memory_used"', [0]),
        ('{Kiln,InstanceId,index} MetricName="memory_used"', []),
        ("{Kiln,InstanceId,index} MetricName=memory_used", [0]),
        ('Namespace="Kiln" AND (InstanceId="i-1cd" OR index=0)', [0, 2]),
        ('Namespace="Kiln" InstanceId=("i-1cd" OR "i-0ab") NOT power', [0, 1]),
        ("cpu", [3]),
        ("utilization i-0ab", [3]),
    ],
)
def test_a_search_finds_its_series(text: str, found: list[int]) -> None:
    assert [KEYS.index(key) for key in search.find(text, KEYS)] == found


@pytest.mark.parametrize(
    ("rule", "holds"),
    [
        ('ALARM("a")', True),
        ("ALARM(a) AND OK(b)", True),
        ("ALARM(b) OR NOT ALARM(a)", False),
        ("ALARM(a) AND ALARM(b)", False),
        ("NOT (ALARM(b) OR INSUFFICIENT_DATA(a))", True),
        ("ALARM(arn:aws:cloudwatch:us-east-1:123456789012:alarm:a)", True),
        ("FALSE OR ALARM(a)", True),
        ("ALARM(b) AND ALARM(c) OR ALARM(a)", True),
    ],
)
def test_a_composite_alarms_rule_is_judged_by_states(rule: str, holds: bool) -> None:
    assert composite.parse(rule)[0]({"a": "ALARM", "b": "OK"}) is holds


def test_an_invalid_rule_is_refused() -> None:
    with pytest.raises(composite.RuleError):
        composite.parse("ALARM(a) XOR ALARM(b)")
