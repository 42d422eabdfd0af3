"""The reference pages that are made of models and facts: docs/amis-yaml.md, components.md,
environment.md and rules.md, each by its template; the schemas of an overlay's facts."""

from __future__ import annotations

import json
import re
from typing import Any

from kiln import components
from kiln.base import account
from kiln.base.paths import AMI_TESTS, ROOT
from kiln.base.templates import render
from kiln.compat import rules
from kiln.facts.models import TABLES
from kiln.matrix import load, model


def amis_yaml() -> str:
    """Every block of the matrix's schema, and each key of a block once."""
    schema = model.Matrix.model_json_schema()
    blocks = {"Matrix": schema, **schema["$defs"]}
    return render("docs/amis-yaml.md.j2", blocks=blocks)


def facts_schema(name: str) -> str:
    """The JSON Schema of an overlay's table of facts, for editors."""
    return json.dumps(_of_overlay(TABLES[name].model_json_schema())) + "\n"


def _of_overlay(schema: Any) -> Any:
    """A schema that requires no key, takes a number for a version, and notes of sources."""
    if isinstance(schema, list):
        return [_of_overlay(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    # A property may have one of these names; its value is a schema.
    kept = {
        key: _of_overlay(value)
        for key, value in schema.items()
        if key not in ("default", "required", "title") or (value and isinstance(value, dict))
    }
    if kept.get("type") == "string":
        kept["type"] = ["string", "number"]
    if kept.get("additionalProperties") is False:
        kept["patternProperties"] = {"_(sources?|confirmed)$": {}}
    return kept


def rules_page() -> str:
    """Every rule with its level, example and sources."""
    shown = [
        (each, [_link(source) for source in each.source.split("; ")]) for each in rules().values()
    ]
    return render("docs/rules.md.j2", rules=shown)


def _link(source: str) -> str:
    """Return where a browser opens a source."""
    source = re.sub(r"^this repository: (\S+).*", r"../\1", source)
    in_github = r"^github:(\S+) (\S+) @(\S+)$"
    return re.sub(in_github, r"https://github.com/\1/blob/\3/\2", source)


def components_page() -> str:
    """Every component, the key that asks for it, and how many rows have it."""
    recipes = load.load_recipes(ROOT / "amis.yaml")
    shown = []
    for each in components.everything():
        checks = AMI_TESTS / f"test_{each.name.replace('-', '_')}.py"
        found = checks.read_text(encoding="utf-8").count("\ndef test_") if checks.is_file() else 0
        rows = sum(each.name in recipe.components for recipe in recipes)
        shown.append((each, rows, f"[{found}](../{checks.relative_to(ROOT)})" if found else ""))
    return render("docs/components.md.j2", components=shown, rows=len(recipes))


def environment() -> str:
    """Every variable of the environment; those of `aws` settings come from the settings."""
    settings = [
        (each, name, account.Account.model_fields[name].description)
        for name in account.SETTINGS
        for each in account.variables(name)
    ]
    return render("docs/environment.md.j2", settings=settings)
