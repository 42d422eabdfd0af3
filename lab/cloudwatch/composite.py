"""The rules of composite alarms: ALARM("a") AND NOT (OK(b) OR TRUE).

https://docs.aws.amazon.com/AmazonCloudWatch/latest/APIReference/API_PutCompositeAlarm.html
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from lark import Lark, Tree
from lark.exceptions import LarkError

_GRAMMAR = r"""
?start: or
?or: and ("OR" and)*
?and: not ("AND" not)*
?not: "NOT" not -> negated
    | "(" or ")"
    | KIND "(" NAME ")" -> of_alarm
    | TRUTH -> truth
KIND: "ALARM" | "OK" | "INSUFFICIENT_DATA"
TRUTH: "TRUE" | "FALSE"
NAME: /"[^"]+"|[^\s()"]+/
%import common.WS
%ignore WS
"""
States = Mapping[str, str]


class RuleError(ValueError):
    """Not the rule of a composite alarm."""


def parse(text: str) -> tuple[Callable[[States], bool], tuple[str, ...]]:
    """What a rule says of the states of alarms by name, and the alarms it names. Raises RuleError.

    An alarm may be named by its ARN.
    """
    try:
        tree = _parser().parse(text)
    except LarkError as error:
        raise RuleError(str(error).splitlines()[0]) from None
    named = tuple(_alarm(node.children[1]) for node in tree.find_data("of_alarm"))
    return lambda states: _holds(tree, states), named


@lru_cache(maxsize=1)
def _parser() -> Lark:
    return Lark(_GRAMMAR, parser="lalr")


def _alarm(token: Any) -> str:
    name = str(token).strip('"')
    return name.partition(":alarm:")[2] if name.startswith("arn:") else name


def _holds(node: Tree[Any], states: States) -> bool:
    kind = str(node.data)
    if kind == "negated":
        return not _holds(node.children[0], states)
    if kind == "truth":
        return str(node.children[0]) == "TRUE"
    if kind == "of_alarm":
        return states.get(_alarm(node.children[1])) == str(node.children[0])
    parts = (_holds(child, states) for child in node.children)
    return all(parts) if kind == "and" else any(parts)
