"""The generated files that are committed: their sources, and whether they are current.

`./invoke generate` writes all of it, `./invoke generate --check` (and `./invoke lint`) compares.
To add a generated file, add an entry to `TEXTS`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from kiln import facts
from kiln.base.account import settings_table
from kiln.base.paths import ROOT
from kiln.base.recipe import Recipe
from kiln.catalogue import model as catalogue_model
from kiln.cli.output import output
from kiln.cloud import iam
from kiln.compat import rules
from kiln.compat.engine import unconfirmed_of_row
from kiln.facts import instance_types
from kiln.image import version_info
from kiln.matrix import load, model
from kiln.mig import plan, profiles
from kiln.packer.render import stale_files, write_all
from kiln.publish import codebuild
from kiln.telemetry import stack
from kiln.xid import catalogue
from lab.guests import pci

# Whatever KILN_MATRIX says: what is generated is committed with it.
_MATRIX = ROOT / "amis.yaml"
_RULES_PAGE = ROOT / "docs" / "compatibility.md"
_ACCOUNT_PAGE = ROOT / "docs" / "your-account.md"
_RULES_HEADING = "## The rules\n"


def _rules() -> str:
    """docs/compatibility.md with the current table of rules."""
    head = _RULES_PAGE.read_text(encoding="utf-8").split(_RULES_HEADING)[0]
    rows = [
        f"| {rule.id} | {rule.level}{'' if rule.confirmed else ' (unconfirmed: warns)'} "
        f"| {rule.what} | {rule.example} |"
        for rule in rules().values()
    ]
    table = ["| Rule | Level | What clashes | For example |", "|---|---|---|---|", *rows]
    return head + _RULES_HEADING + "\n" + "\n".join(table) + "\n"


_PROVEN_PAGE = ROOT / "docs" / "proven.md"
_PROVEN_HEADING = "## The rows\n"


def _proven() -> str:
    """docs/proven.md with, for each row, whether the lab has tried it and its unconfirmed facts."""
    head = _PROVEN_PAGE.read_text(encoding="utf-8").split(_PROVEN_HEADING)[0]
    rows = [
        f"| {recipe.name} | {'yes' if is_tried(recipe) else 'no'} "
        f"| {len(unconfirmed_of_row(recipe))} |"
        for recipe in load.load_recipes(_MATRIX)
    ]
    table = ["| row | tried in the lab | unconfirmed facts |", "|---|---|---|", *rows]
    return "\n".join([head + _PROVEN_HEADING, *table]) + "\n"


def _account() -> str:
    """docs/your-account.md with the table of the `aws` settings."""
    page = _ACCOUNT_PAGE.read_text(encoding="utf-8")
    return re.sub(r"^\| key \|.*?\n(?=\n)", settings_table(), page, flags=re.MULTILINE | re.DOTALL)


def is_tried(recipe: Recipe) -> bool:
    """Return True if the lab has built the row's distribution, flavor and processor."""
    tried = facts.distro(recipe.distro.id).get("tried", {})
    return recipe.arch in tried.get(recipe.flavor, ())


# File → the function that makes its text, and the source.
TEXTS: dict[Path, tuple[Callable[[], str], str]] = {
    ROOT / "docs/amis.schema.json": (model.matrix_json_schema, "kiln/matrix/model.py"),
    ROOT / "docs/record.schema.json": (
        version_info.record_json_schema,
        "kiln/image/version_info.py",
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
    **{
        iam.publishing_file(role): (
            functools.partial(iam.publishing_text, role),
            "kiln/facts/knowledge/iam_publish.yaml",
        )
        for role in iam.PUBLISHING
    },
    codebuild.CODEBUILD_TEMPLATE: (
        codebuild.codebuild_text,
        "templates/deploy and the policies in docs/",
    ),
    stack.TEMPLATE: (
        stack.example_text,
        "templates/stack/ and kiln/facts/knowledge/telemetry-stack.yaml",
    ),
    _RULES_PAGE: (_rules, "kiln/facts/knowledge/rules.yaml"),
    _ACCOUNT_PAGE: (_account, "kiln/base/account.py"),
    _PROVEN_PAGE: (_proven, "kiln/facts/knowledge"),
    catalogue.PAGE: (catalogue.page_text, "kiln/facts/knowledge/xid.yaml"),
    catalogue.CATALOGUE: (catalogue.catalogue_text, "kiln/facts/knowledge/xid.yaml"),
    instance_types.DEVICES_FILE: (
        instance_types.gpu_devices_text,
        "kiln/facts/knowledge/instances.yaml",
    ),
    profiles.PROFILES_JSON: (
        profiles.image_profiles_text,
        "kiln/facts/knowledge/mig.yaml and instances.yaml",
    ),
    plan.PICTURE: (plan.picture_text, "kiln/mig/plan.py"),
    pci.TABLE: (pci.table, "kiln/facts/knowledge/instances.yaml"),
}


def generate(*, check_only: bool) -> int:
    """Write every generated file, or with `check_only` name stale ones; returns the exit status."""
    if check_only:
        outdated = stale()
        lines = [*outdated, "run: ./invoke generate"] if outdated else ["all is current"]
        output({"stale": outdated}, "\n".join(lines))
        return int(bool(outdated))
    written = write()
    text = "\n".join(written) or "nothing to change"
    output({"written": written}, text)
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
