"""The reference pages that are made of models and facts: docs/amis-yaml.md, components.md,
environment.md and rules.md, each by its template; the schemas of an overlay's facts."""

from __future__ import annotations

import json
import re
from functools import partial
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


def _facts_schema(name: str) -> str:
    """The JSON Schema of an overlay's table of facts, for editors."""
    schema = json.dumps(TABLES[name].model_json_schema())
    return json.dumps(json.loads(schema, object_hook=_accept_parts)) + "\n"


def _accept_parts(schema: dict[str, Any]) -> dict[str, Any]:
    """Require no key, take a number for a version, and allow notes of sources."""
    schema.pop("required", None)
    if schema.get("type") == "string":
        schema["type"] = ["string", "number"]
    if schema.get("additionalProperties") is False:
        schema["patternProperties"] = {"_(sources?|confirmed)$": {}}
    return schema


FACTS = {ROOT / f"docs/facts/{name}.schema.json": partial(_facts_schema, name) for name in TABLES}


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
