"""Plain data as YAML for people and for programs that take no aliases, such as CloudFormation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import yaml


class _Dumper(yaml.CSafeDumper):
    """Without aliases; texts of several lines stay as they are."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.CSafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def as_yaml(notes: Sequence[str], *documents: dict[str, Any]) -> str:
    """YAML documents below comments."""
    head = "".join(f"# {note}\n" for note in notes)
    bodies = [
        yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=100) for document in documents
    ]
    return head + "---\n".join(bodies)
