"""What people give for the template's parameters: `Email=team@example.com`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kiln.base.errors import KilnError, did_you_mean


def parameters_given(
    texts: Iterable[str], declared: Mapping[str, Mapping[str, Any]]
) -> dict[str, str]:
    """The values by parameter, as CloudFormation takes them; `declared` are the template's.

    Raises KilnError (exit status 2) for an unknown parameter, and for a value that it refuses.
    """
    values: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise KilnError(f"--parameter {text}: expected Name=value", hint="Email=me@example.com")
        if name not in declared:
            raise KilnError(
                f"--parameter {name}: the stack has no such parameter",
                hint=did_you_mean(name, declared),
            )
        if name in values:
            raise KilnError(f"--parameter {name} is given twice", hint="give it once")
        _accepted(name, value, declared[name])
        values[name] = value
    return values


def _accepted(name: str, value: str, rules: Mapping[str, Any]) -> None:
    allowed = [str(value) for value in rules.get("AllowedValues", [])]
    if allowed and value not in allowed:
        raise KilnError(
            f"--parameter {name}={value} is not one of {', '.join(allowed)}",
            hint=did_you_mean(value, allowed),
        )
    if rules["Type"] != "Number":
        return
    try:
        number = float(value) if value.isascii() else None
    except ValueError:
        number = None
    low, high = rules.get("MinValue", 0), rules.get("MaxValue", 1e9)
    if number is None or not low <= number <= high:
        raise KilnError(
            f"--parameter {name}={value} is not a number from {low:g} to {high:g}",
            hint=f"for example {name}={rules['Default']}",
        )
