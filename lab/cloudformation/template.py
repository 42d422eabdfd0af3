"""Templates: read from YAML or JSON, their parameters, and the values of their expressions.

https://docs.aws.amazon.com/AWSCloudFormation/latest/TemplateReference/intrinsic-function-reference.html
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kiln.base import plain_yaml
from kiln.base.errors import KilnError
from lab.cloudformation.errors import CloudFormationError

_SECTIONS = {
    *("AWSTemplateFormatVersion", "Description", "Metadata", "Parameters", "Mappings"),
    *("Conditions", "Resources", "Outputs"),
}
_OF_RESOURCE = {
    *("Type", "Properties", "Condition", "DependsOn", "DeletionPolicy", "UpdateReplacePolicy"),
    "Metadata",
    "UpdatePolicy",
}
NO_VALUE = object()
_NAME = re.compile(r"\$\{([^}!][^}]*)\}")


def _short(tag: str, value: Any) -> Any:
    """CloudFormation's short forms: !Ref, !Sub, !GetAtt a.b …"""
    if tag == "GetAtt" and isinstance(value, str):
        value = value.split(".", 1)
    return {tag if tag in ("Ref", "Condition") else f"Fn::{tag}": value}


def read_template(text: str) -> dict[str, Any]:
    """A template's data. Raises CloudFormationError for what the lab cannot do."""
    try:
        data = plain_yaml.parse_plain(text, "the template", tagged=_short)
    except KilnError as error:
        raise CloudFormationError(f"Template format error: {error.message}") from None
    if not isinstance(data, dict) or not isinstance(data.get("Resources"), dict):
        raise CloudFormationError(
            "Template format error: At least one Resources member must be defined."
        )
    for name in data:
        if name not in _SECTIONS:
            raise CloudFormationError(f"AMI Kiln lab: the section {name} is not implemented")
    for name, resource in data["Resources"].items():
        more = set(resource) - _OF_RESOURCE
        if more:
            raise CloudFormationError(
                f"AMI Kiln lab: {', '.join(sorted(more))} of {name} is not implemented"
            )
    return data


def parameter_values(
    data: Mapping[str, Any],
    arguments: Mapping[str, str | None],
    before: Mapping[str, str],
) -> dict[str, str]:
    """The parameters' values: given ones, those of before (None: use the previous value), defaults.

    Raises CloudFormationError as CloudFormation does.
    """
    parameters = data.get("Parameters", {})
    extra = [name for name in arguments if name not in parameters]
    if extra:
        raise CloudFormationError(f"Parameters: [{', '.join(extra)}] do not exist in the template")
    values, missing = {}, []
    for name, rules in parameters.items():
        value = arguments.get(name)
        if name in arguments and value is None:
            value = before.get(name)
        if value is None and "Default" in rules:
            value = as_text(rules["Default"])
        if value is None:
            missing.append(name)
            continue
        _allowed(name, value, rules)
        values[name] = value
    if missing:
        raise CloudFormationError(f"Parameters: [{', '.join(missing)}] must have values")
    return values


def _allowed(name: str, value: str, rules: Mapping[str, Any]) -> None:
    allowed = [as_text(value) for value in rules.get("AllowedValues", [])]
    if allowed and value not in allowed:
        raise CloudFormationError(
            f"Parameter '{name}' must be one of AllowedValues [{', '.join(allowed)}]"
        )
    pattern = rules.get("AllowedPattern")
    if pattern and not re.fullmatch(pattern, value):
        raise CloudFormationError(f"Parameter '{name}' must match pattern {pattern}")
    if rules["Type"] == "Number" and not re.fullmatch(r"-?[0-9]+(\.[0-9]+)?", value):
        raise CloudFormationError(f"Parameter '{name}' must be a number.")
    _within(name, value, rules)


def _within(name: str, value: str, rules: Mapping[str, Any]) -> None:
    """https://docs.aws.amazon.com/AWSCloudFormation/latest/UserGuide/parameters-section-structure.html

    A list has no such rules. What is said of lengths was not seen.
    """
    if rules["Type"] == "Number":
        if "MinValue" in rules and float(value) < float(rules["MinValue"]):
            least = as_text(rules["MinValue"])
            raise CloudFormationError(f"Parameter '{name}' must be a number not less than {least}")
        if "MaxValue" in rules and float(value) > float(rules["MaxValue"]):
            most = as_text(rules["MaxValue"])
            raise CloudFormationError(
                f"Parameter '{name}' must be a number not greater than {most}"
            )
    elif not rules["Type"].startswith(("List<", "CommaDelimitedList")):
        if len(value) < int(rules.get("MinLength", 0)):
            least = as_text(rules["MinLength"])
            raise CloudFormationError(
                f"Parameter '{name}' must contain at least {least} characters"
            )
        if "MaxLength" in rules and len(value) > int(rules["MaxLength"]):
            most = as_text(rules["MaxLength"])
            raise CloudFormationError(f"Parameter '{name}' must contain at most {most} characters")


def as_text(value: Any) -> str:
    """A value as CloudFormation writes it into texts."""
    return str(value).lower() if isinstance(value, bool) else str(value)


@dataclass(frozen=True)
class Scope:
    """What expressions name: parameters, pseudo parameters, resources.

    `of_resource(name, attribute)` is the value of a Ref (attribute None) or GetAtt.
    """

    data: Mapping[str, Any]
    parameters: Mapping[str, Any]
    pseudo: Mapping[str, str]
    of_resource: Callable[[str, str | None], Any]

    def holds(self, condition: str) -> bool:
        """Whether a condition of the template is true."""
        conditions = self.data.get("Conditions", {})
        if condition not in conditions:
            raise CloudFormationError(f"Unresolved condition {condition}")
        return bool(self.value(conditions[condition]))

    def value(self, node: Any) -> Any:
        """The value of an expression; NO_VALUE stays out of maps and lists."""
        if isinstance(node, list):
            parts = [self.value(part) for part in node]
            return [item for item in parts if item is not NO_VALUE]
        if not isinstance(node, dict):
            return node
        if len(node) == 1:
            ((name, argument),) = node.items()
            if name == "Ref":
                return self._ref(argument)
            if name == "Condition" and isinstance(argument, str):
                return self.holds(argument)
            if name.startswith("Fn::"):
                return self._function(name, argument)
        values = {key: self.value(part) for key, part in node.items()}
        return {key: value for key, value in values.items() if value is not NO_VALUE}

    def _ref(self, name: str) -> Any:
        if name == "AWS::NoValue":
            return NO_VALUE
        if name in self.pseudo:
            return self.pseudo[name]
        if name in self.parameters:
            return self.parameters[name]
        return self.of_resource(name, None)

    def _function(self, name: str, argument: Any) -> Any:
        done = _FUNCTIONS.get(name)
        if done is None:
            raise CloudFormationError(f"AMI Kiln lab: {name} is not implemented")
        return done(self, argument)


def _get_att(scope: Scope, argument: Any) -> Any:
    resource, attribute = argument.split(".", 1) if isinstance(argument, str) else argument
    return scope.of_resource(resource, attribute)


def _sub(scope: Scope, argument: Any) -> str:
    text, more = (argument, {}) if isinstance(argument, str) else argument
    values = {name: scope.value(part) for name, part in more.items()}

    def named(match: re.Match[str]) -> str:
        name = match[1].strip()
        if name in values:
            return as_text(values[name])
        return as_text(_get_att(scope, name) if "." in name else scope.value({"Ref": name}))

    return _NAME.sub(named, text).replace("${!", "${")


def _if(scope: Scope, argument: Any) -> Any:
    condition, yes, no = argument
    return scope.value(yes if scope.holds(condition) else no)


def _find(scope: Scope, argument: Any) -> Any:
    first, second, third = (scope.value(part) for part in argument)
    try:
        return scope.data["Mappings"][first][str(second)][str(third)]
    except KeyError:
        raise CloudFormationError(f"no mapping for {first}, {second}, {third}") from None


def _equals(scope: Scope, argument: Any) -> bool:
    left, right = (as_text(scope.value(part)) for part in argument)
    return left == right


_FUNCTIONS: dict[str, Callable[[Scope, Any], Any]] = {
    "Fn::GetAtt": _get_att,
    "Fn::Sub": _sub,
    "Fn::If": _if,
    "Fn::FindInMap": _find,
    "Fn::Equals": _equals,
    "Fn::Not": lambda scope, argument: not scope.value(argument[0]),
    "Fn::And": lambda scope, argument: all(scope.value(part) for part in argument),
    "Fn::Or": lambda scope, argument: any(scope.value(part) for part in argument),
    "Fn::Join": lambda scope, argument: str(argument[0]).join(
        map(as_text, scope.value(argument[1]))
    ),
    "Fn::Select": lambda scope, argument: scope.value(argument[1])[int(argument[0])],
    "Fn::Split": lambda scope, argument: scope.value(argument[1]).split(argument[0]),
}


def named_resources(node: Any, resources: Mapping[str, Any]) -> set[str]:
    """The resources that an expression names."""
    return {name for name in _names(node) if name in resources}


def _names(node: Any) -> Iterator[str]:
    if isinstance(node, list):
        for part in node:
            yield from _names(part)
    elif isinstance(node, dict):
        for key, part in node.items():
            if key == "Ref" and isinstance(part, str):
                yield part
            elif key == "Fn::GetAtt":
                yield (part.split(".", 1) if isinstance(part, str) else part)[0]
            elif key == "Fn::Sub":
                text = part if isinstance(part, str) else part[0]
                yield from (match[1].strip().split(".", 1)[0] for match in _NAME.finditer(text))
                yield from _names(part)
            else:
                yield from _names(part)


def in_order(resources: Mapping[str, Any]) -> list[str]:
    """The resources so that each comes after those that it needs. Raises for a circle."""
    done: list[str] = []
    waiting: set[str] = set()

    def visit(name: str) -> None:
        if name in done:
            return
        if name in waiting:
            raise CloudFormationError(f"Circular dependency between resources: [{name}]")
        waiting.add(name)
        for other in sorted(needs(name, resources)):
            visit(other)
        waiting.discard(name)
        done.append(name)

    for name in resources:
        visit(name)
    return done


def needs(name: str, resources: Mapping[str, Any]) -> set[str]:
    """The resources that must be there before this one."""
    resource = resources[name]
    wanted = resource.get("DependsOn", [])
    named = {wanted} if isinstance(wanted, str) else set(wanted)
    names = (named & set(resources)) | named_resources(resource.get("Properties", {}), resources)
    return names - {name}


def canonical(value: Any) -> str:
    """A value as text by which two are compared."""
    return json.dumps(value, sort_keys=True, default=str)
