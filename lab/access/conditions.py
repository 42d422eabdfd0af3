"""Conditions of IAM policies: whether a statement's `Condition` holds for a request.

https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_elements_condition_operators.html
https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_condition-single-vs-multi-valued-context-keys.html
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

# Whether something holds; None: the lab does not know.
Holds = bool | None


class Context:
    """The condition keys of a request. Names of keys do not depend on case.

    `supported_keys` are those whose value, or whose absence, the lab knows; one that ends with `/`
    stands for every key that begins with it.
    """

    def __init__(
        self,
        values: Mapping[str, str | Sequence[str]],
        supported_keys: frozenset[str] = frozenset(),
    ) -> None:
        self._values = {
            name.lower(): (value,) if isinstance(value, str) else tuple(value)
            for name, value in values.items()
        }
        self._supported_keys = frozenset(name.lower() for name in supported_keys)

    def get(self, name: str) -> tuple[str, ...] | None:
        """The values of a key, () where the request has none; None: not known."""
        name = name.lower()
        if name in self._values:
            return self._values[name]
        stem = name.partition("/")[0] + "/" if "/" in name else name
        return () if name in self._supported_keys or stem in self._supported_keys else None


# A key's value, the one wanted → whether it fits.
Operator = Callable[[str, str, Context], Holds]


def matches(pattern: str, text: str, context: Context, *, case: bool = True) -> Holds:
    """Whether a text fits a pattern with * and ?, and with policy variables such as
    ${aws:username}; a variable without a value fits nothing."""
    unknown = absent = False

    def part(match: re.Match[str]) -> str:
        nonlocal unknown, absent
        if match[0] in "*?":
            return ".*" if match[0] == "*" else "."
        if match[1] is None:
            return re.escape(match[0])
        if match[1] in ("*", "?", "$"):
            return re.escape(match[1])
        name, _, default = match[1].partition(",")
        value = context.get(name.strip())
        if value is None:
            unknown = True
        elif value:
            return re.escape(value[0])
        elif default:
            return re.escape(default.strip().strip("'"))
        else:
            absent = True
        return ""

    expression = re.sub(r"\$\{([^}]*)\}|.", part, pattern, flags=re.DOTALL)
    if unknown:
        return None
    flags = re.DOTALL if case else re.DOTALL | re.IGNORECASE
    return not absent and re.fullmatch(expression, text, flags) is not None


def hold(conditions: Mapping[str, Mapping[str, Any]], context: Context) -> Holds:
    """Whether every condition of a statement holds."""
    results: list[Holds] = [
        _holds(operator, key, _texts(wanted), context)
        for operator, keys in conditions.items()
        for key, wanted in keys.items()
    ]
    if False in results:
        return False
    return None if None in results else True


def _holds(operator: str, key: str, wanted: list[str], context: Context) -> Holds:
    sets, _, name = operator.rpartition(":")
    name, optional = name.removesuffix("IfExists"), name.endswith("IfExists")
    have = context.get(key)
    if have is None:
        return None
    if name == "Null":
        return any((want.lower() == "true") == (not have) for want in wanted)
    compare = _OPERATORS.get(name.replace("Not", "", 1))
    if compare is None:
        return None
    if not have:
        return sets == "ForAllValues" if sets else optional or "Not" in name
    return _compared(have, wanted, compare, sets, "Not" in name, context)


def _compared(
    have: tuple[str, ...],
    wanted: list[str],
    compare: Operator,
    sets: str,
    negative: bool,
    context: Context,
) -> Holds:
    """Whether enough of a key's values fit one of those wanted; negative: none of them."""

    def fits(value: str) -> Holds:
        results = [compare(value, want, context) for want in wanted]
        if True in results:
            return not negative
        return None if None in results else negative

    each = [fits(value) for value in have]
    wins = sets != "ForAllValues" and not (negative and not sets)
    if wins in each:
        return wins
    return None if None in each else not wins


def _texts(values: Any) -> list[str]:
    listed = values if isinstance(values, list) else [values]
    return [str(value).lower() if isinstance(value, bool) else str(value) for value in listed]


def _number(compare: Callable[[float, float], bool]) -> Operator:
    def operator(have: str, want: str, context: Context) -> Holds:
        try:
            return compare(float(have), float(want))
        except ValueError:
            return False

    return operator


def _moment(compare: Callable[[float, float], bool]) -> Operator:
    def operator(have: str, want: str, context: Context) -> Holds:
        try:
            return compare(_seconds(have), _seconds(want))
        except ValueError:
            return False

    return operator


def _seconds(text: str) -> float:
    """A date of ISO 8601, or seconds since 1970. Raises ValueError."""
    if re.fullmatch(r"[0-9]+(\.[0-9]+)?", text) and len(text) > 4:
        return float(text)
    moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
    return (moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).timestamp()


def _address(have: str, want: str, context: Context) -> Holds:
    try:
        return ipaddress.ip_address(have) in ipaddress.ip_network(want, strict=False)
    except ValueError:
        return False


def _arn(have: str, want: str, context: Context) -> Holds:
    """Each of the six parts of an ARN is compared by itself."""
    pairs = list(zip(want.split(":", 5), have.split(":", 5), strict=False))
    if len(pairs) < 6:
        return False
    parts = [matches(pattern, text, context) for pattern, text in pairs]
    if False in parts:
        return False
    return None if None in parts else True


def _equal(have: str, want: str, context: Context) -> Holds:
    # Variables count, wildcards do not.
    return matches(re.sub(r"[*?](?![^{]*\})", r"${\g<0>}", want), have, context)


_OPERATORS: dict[str, Operator] = {
    "StringEquals": _equal,
    "StringEqualsIgnoreCase": lambda have, want, context: _equal(
        have.lower(), want.lower(), context
    ),
    "StringLike": lambda have, want, context: matches(want, have, context),
    "ArnEquals": _arn,
    "ArnLike": _arn,
    "Bool": lambda have, want, _: have.lower() == want.lower(),
    "IpAddress": _address,
    "NumericEquals": _number(lambda left, right: left == right),
    "NumericLessThan": _number(lambda left, right: left < right),
    "NumericLessThanEquals": _number(lambda left, right: left <= right),
    "NumericGreaterThan": _number(lambda left, right: left > right),
    "NumericGreaterThanEquals": _number(lambda left, right: left >= right),
    "DateEquals": _moment(lambda left, right: left == right),
    "DateLessThan": _moment(lambda left, right: left < right),
    "DateLessThanEquals": _moment(lambda left, right: left <= right),
    "DateGreaterThan": _moment(lambda left, right: left > right),
    "DateGreaterThanEquals": _moment(lambda left, right: left >= right),
}
