"""What a type of resource is, to a stack."""

from __future__ import annotations

import secrets
import string
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from lab.cloudformation.errors import ResourceError

Properties = Mapping[str, Any]


@dataclass(frozen=True)
class Place:
    """Where a stack makes its resources: `client` gives boto3's client of a service."""

    client: Callable[[str], Any]
    stack: str
    region: str
    account: str
    tags: tuple[tuple[str, str], ...] = ()

    def new_name(self, resource: str) -> str:
        """A name as CloudFormation makes them: of the stack, the resource, and chance."""
        letters = "".join(secrets.choice(string.ascii_uppercase + string.digits) for _ in range(12))
        return f"{self.stack}-{resource}-{letters}"

    def all_tags(self, own: Any = None) -> list[dict[str, str]]:
        """A resource's tags and the stack's."""
        merged = dict(self.tags)
        merged |= {tag["Key"]: str(tag["Value"]) for tag in own or ()}
        return [{"Key": key, "Value": value} for key, value in merged.items()]


@dataclass(frozen=True)
class Made:
    """A resource that is there: what Ref gives, and what GetAtt does."""

    id: str
    attributes: Mapping[str, Any] = field(default_factory=dict)


Create = Callable[[Place, str, Properties], Made]
Update = Callable[[Place, Made, Properties], Made]
Delete = Callable[[Place, Made], None]


@dataclass(frozen=True)
class Kind:
    """How a type is made and deleted; `update` changes one in place, without it it is replaced.

    A property that is not in `properties` is refused; a change of one in `replaced_by` makes
    another resource.
    """

    create: Create
    delete: Delete
    properties: frozenset[str]
    update: Update | None = None
    replaced_by: frozenset[str] = frozenset()

    def check(self, kind: str, properties: Properties) -> None:
        """Raises ResourceError for a property that the lab does not know."""
        extra = sorted(set(properties) - self.properties)
        if extra:
            raise ResourceError(f"AMI Kiln lab: {', '.join(extra)} of {kind} is not implemented")

    def in_place(self, changed: set[str]) -> bool:
        """Whether a change of these properties keeps the resource."""
        return self.update is not None and not changed & self.replaced_by


def words(*names: str) -> frozenset[str]:
    """Names of properties."""
    return frozenset(" ".join(names).split())


def without(properties: Properties, *names: str) -> dict[str, Any]:
    """All properties but these."""
    return {key: value for key, value in properties.items() if key not in names}
