"""The generated files that are committed: their sources, and whether they are current.

`./invoke generate` writes all of it, `./invoke generate --check` (and `./invoke lint`) compares.
To add a generated file, add an entry to `TEXTS`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path

from kiln import facts
from kiln.base.findings import errors
from kiln.base.paths import ROOT
from kiln.base.recipe import Recipe
from kiln.catalogue import model as catalogue_model
from kiln.cli.front import show
from kiln.cloud import iam
from kiln.compat import engine, evidence
from kiln.compat.rules import registry
from kiln.facts import gpu_devices
from kiln.matrix import load, schema
from kiln.mig import export, picture
from kiln.packer.folders import write_all
from kiln.packer.staleness import stale_files
from kiln.pipeline import record_schema
from kiln.publish import engines
from kiln.telemetry.stack import template
from kiln.xid import catalogue
from lab.guests import pci

# Whatever KILN_MATRIX says: what is generated is committed with it.
_MATRIX = ROOT / "amis.yaml"
_RULES_PAGE = ROOT / "docs" / "compatibility.md"
_RULES_HEADING = "## The rules\n"


def _rules() -> str:
    """docs/compatibility.md with the current table of rules."""
    head = _RULES_PAGE.read_text(encoding="utf-8").split(_RULES_HEADING)[0]
    rows = [
        f"| {rule.id} | {rule.level}{'' if rule.confirmed else ' (unconfirmed: warns)'} "
        f"| {rule.what} | {rule.example} |"
        for rule in registry.rules().values()
    ]
    table = ["| Rule | Level | What clashes | For example |", "|---|---|---|---|", *rows]
    return head + _RULES_HEADING + "\n" + "\n".join(table) + "\n"


_PROVEN_PAGE = ROOT / "docs" / "proven.md"
_PROVEN_HEADING = "## The rows\n"


def _proven() -> str:
    """docs/proven.md with what `check` knows against each row, and the count of its evidence."""
    head = _PROVEN_PAGE.read_text(encoding="utf-8").split(_PROVEN_HEADING)[0]
    rows = [
        f"| {recipe.name} | {first_blocker(recipe)} | "
        + " | ".join(" / ".join(map(str, counted.values())) for counted in counts.values())
        + " |"
        for recipe in load.load_recipes(_MATRIX)
        for counts in [evidence.counts(evidence.evidence_of(recipe))]
    ]
    table = ["| row | first blocker | packages | files | units |", "|---|---|---|---|---|", *rows]
    legend = (
        "First blocker: the first error of `./invoke check`, which knows what of each row is "
        "recorded as not published. Packages, files and units: recorded / seen / assumed."
    )
    return "\n".join([head + _PROVEN_HEADING, legend, "", *table, "", *_assumed()]) + "\n"


def _assumed() -> list[str]:
    """The table of what nobody is known to have seen, and in which rows."""
    rows: dict[tuple[str, str], list[str]] = {}
    for recipe in load.load_recipes(_MATRIX):
        for item in evidence.evidence_of(recipe):
            if item.basis is evidence.Basis.ASSUMED:
                rows.setdefault((item.component, item.what), []).append(recipe.name)
    together: dict[tuple[str, str], list[str]] = {}
    for (component, what), names in sorted(rows.items()):
        together.setdefault((component, "<br>".join(names)), []).append(what)
    return [
        f"Assumed still, {len(rows)} packages, files and units:",
        "",
        "| component | what | rows |",
        "|---|---|---|",
        *(
            f"| {component} | {'<br>'.join(what)} | {names} |"
            for (component, names), what in together.items()
        ),
    ]


def first_blocker(recipe: Recipe) -> str:
    """The first reason known why a bake of the row would fail, as of the day of the evidence."""
    day = date.fromisoformat(facts.table("evidence")["as_of"])
    problems = errors(engine.check_recipe(recipe, today=day))
    return f"{problems[0].rule}: {problems[0].message}" if problems else "none known"


# File → the function that makes its text, and the source.
TEXTS: dict[Path, tuple[Callable[[], str], str]] = {
    ROOT / "docs/amis.schema.json": (schema.matrix_json_schema, "kiln/matrix/schema.py"),
    ROOT / "docs/record.schema.json": (
        record_schema.record_json_schema,
        "kiln/pipeline/record_schema.py",
    ),
    ROOT / "docs/catalogue.schema.json": (
        catalogue_model.catalogue_json_schema,
        "kiln/catalogue/model.py",
    ),
    iam.POLICY_FILE: (iam.policy_text, "kiln/facts/knowledge/iam.yaml"),
    iam.POLICY_FILE_SETTINGS: (
        lambda: iam.policy_text("settings"),
        "kiln/facts/knowledge/iam.yaml",
    ),
    iam.POLICY_FILE_1_6: (
        lambda: iam.policy_text("packer_1_6"),
        "kiln/facts/knowledge/iam.yaml",
    ),
    **{
        iam.publishing_file(role): (
            functools.partial(iam.publishing_text, role),
            "kiln/facts/knowledge/iam_publish.yaml",
        )
        for role in iam.PUBLISHING
    },
    engines.CODEBUILD_TEMPLATE: (
        engines.codebuild_text,
        "templates/deploy and the policies in docs/",
    ),
    template.TEMPLATE: (
        template.example_text,
        "kiln/telemetry/stack and kiln/facts/knowledge/telemetry-stack.yaml",
    ),
    _RULES_PAGE: (_rules, "kiln/facts/knowledge/rules.yaml"),
    _PROVEN_PAGE: (_proven, "kiln/facts/knowledge/evidence.yaml and indexes"),
    catalogue.PAGE: (catalogue.page_text, "kiln/facts/knowledge/xid.yaml"),
    catalogue.CATALOGUE: (catalogue.catalogue_text, "kiln/facts/knowledge/xid.yaml"),
    gpu_devices.FILE: (gpu_devices.gpu_devices_text, "kiln/facts/knowledge/instances.yaml"),
    export.PROFILES_JSON: (
        export.image_profiles_text,
        "kiln/facts/knowledge/mig.yaml and instances.yaml",
    ),
    picture.PICTURE: (picture.picture_text, "kiln/mig/plan.py and draw.py"),
    pci.TABLE: (pci.table, "kiln/facts/knowledge/instances.yaml"),
}


def generate(*, check_only: bool, as_json: bool = False) -> int:
    """Write every generated file, or with `check_only` name stale ones; returns the exit status."""
    if check_only:
        outdated = stale()
        lines = [*outdated, "run: ./invoke generate"] if outdated else ["all is current"]
        show({"stale": outdated}, as_json=as_json, text=lambda _: "\n".join(lines))
        return int(bool(outdated))
    written = write()
    text = "\n".join(written) or "nothing to change"
    show({"written": written}, as_json=as_json, text=lambda _: text)
    return 0


def stale() -> list[str]:
    """The generated files that are missing or outdated, each with its source."""
    outdated = [
        f"{path.relative_to(ROOT)}: differs from {source}" for path, _, source in _outdated()
    ]
    return outdated + stale_files(load.load_recipes(_MATRIX))


def write() -> list[str]:
    """Write the outdated files; returns their paths."""
    changed = []
    for path, text, _ in _outdated():
        path.write_text(text, encoding="utf-8")
        changed.append(str(path.relative_to(ROOT)))
    # Last, because rendering includes the files that ship on an image.
    return changed + write_all(load.load_recipes(_MATRIX))


def _outdated() -> Iterator[tuple[Path, str, str]]:
    for path, (made, source) in TEXTS.items():
        text = made()
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            yield path, text, source
