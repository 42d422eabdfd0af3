"""CloudWatch Logs' filter patterns, by its documentation's own kinds of pattern."""

from __future__ import annotations

import json

import pytest

from lab.cloudwatch import patterns

EVENT = json.dumps(
    {
        "xid": 79,
        "severity": "fatal",
        "message": "GPU has fallen off the bus.",
        "gpu": {"index": 0, "uuid": "GPU-1f", "cluster.name": "a"},
        "latency": 1.5e2,
        "resolved": False,
        "user": None,
        "rules": [{"id": 1}, {"id": 22}],
        "address": "123.123.4.5",
    }
)


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("{ $.xid = 79 }", True),
        ("{ $.xid != 79 }", False),
        ("{ $.latency = * }", True),
        ('{ $.latency = "*" }', False),
        ("{ $.xid >= 79 && $.xid < 80 }", True),
        ("{$.latency>1e2}", True),
        ('{ $.severity = "fatal" }', True),
        ("{ $.severity = fatal }", True),
        ('{ $.severity = "FATAL" }', False),
        ('{ $.message = "*off the bus*" }', True),
        ('{ $.message = "off the bus" }', False),
        ("{ $.address = 123.123.* }", True),
        ("{ $.address = %123\\.[0-9]{3}% }", True),
        ("{ $.address != %^124% }", True),
        ("{ $.gpu.index = 0 }", True),
        ('{ $.gpu.["cluster.name"] = a }', True),
        ("{ $.rules[1].id = 22 }", True),
        ("{ $.rules[2].id = 22 }", False),
        ("{ $.rules[*].id = 22 }", True),
        ("{ $.user IS NULL }", True),
        ("{ $.resolved IS FALSE }", True),
        ("{ $.resolved IS TRUE }", False),
        ("{ $.nobody NOT EXISTS }", True),
        ("{ $.user NOT EXISTS }", False),
        ('{ $.nobody = "*" }', False),
        ("{ $.nobody != 1 }", False),
        ("{ ($.xid = 1 || $.xid = 79) && $.severity = fatal }", True),
        ("{ $.xid = 1 || $.xid = 79 && $.severity = info }", False),
        ("{ $.severity > 3 }", False),
        ("", True),
        (" ", True),
        ("bus", True),
        ("bus fallen", True),
        ("bus risen", False),
        ("?risen ?bus", True),
        ("?risen ?shone", False),
        ("bus -fallen", False),
        ("?risen bus", True),  # `?` has no effect beside other terms
        ('"fallen off"', True),
        ('"off fallen"', False),
        ("%GPU-[0-9a-f]+%", True),
        ("%^GPU%", False),
    ],
)
def test_a_json_event_matches(pattern: str, found: bool) -> None:
    assert patterns.parse(pattern).matches(EVENT) is found


LINE = '127.0.0.1 - frank [10/Oct/2000:13:25:15 -0700] "GET /a.gif HTTP/1.0" 404 1534'


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("[ip, user, username, timestamp, request, status_code, bytes]", True),
        ("[ip, user, username, timestamp, request, status_code]", False),
        ("[ip, user, username, timestamp, request = *.gif*, status_code = 4*, bytes]", True),
        ("[ip, user, username, timestamp, request, status_code = 200, bytes]", False),
        ("[ip, user, username, timestamp, request, status_code, bytes > 1000]", True),
        ("[..., status_code = 4*, bytes]", True),
        ("[ip = 127.0.0.1, ...]", True),
        ("[ip, ..., request = %GET|POST%, status, bytes]", True),
        ("[..., status = 404 || status = 410, bytes]", True),
        ("[..., status != 404 && status != 410, bytes]", False),
    ],
)
def test_a_line_of_fields_matches(pattern: str, found: bool) -> None:
    assert patterns.parse(pattern).matches(LINE) is found


@pytest.mark.parametrize(
    "pattern",
    [
        "{ $.a = }",
        "{ $.a == 1 }",
        "{ a = 1 ",
        "[..., a, ...]",
        "{ $.a > x }",
        "%a(b)%",
        "%some!%",
        '"open',
    ],
)
def test_an_invalid_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(patterns.PatternError):
        patterns.parse(pattern)


def test_a_line_that_is_not_json_matches_no_json_pattern() -> None:
    assert not patterns.parse("{ $.nobody NOT EXISTS }").matches("NVRM: Xid")


def test_values_come_by_the_names_that_metrics_use() -> None:
    values = patterns.parse("{ $.xid = * }").values(EVENT)
    assert values is not None and values["$.gpu.uuid"] == "GPU-1f"
    line = patterns.parse("[..., status, bytes]").values(LINE)
    assert line == {"$status": "404", "$bytes": "1534"}
