"""The generated files that are committed: their sources, and whether they are current.

`./invoke generate` writes all of it, `./invoke generate --check` (and `./invoke lint`) compares.
To add a generated file, add an entry to `TEXTS`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from devel import reference
from kiln import facts
from kiln.base.paths import ROOT
from kiln.base.templates import render
from kiln.catalog import model as catalog_model
from kiln.cli import targets
from kiln.cli.output import output
from kiln.cli.task import GROUPS, KilnTask, flag
from kiln.cloud import iam
from kiln.compat.engine import unconfirmed_of_row
from kiln.facts import instance_types
from kiln.image.version_info import record_json_schema
from kiln.matrix import load, model
from kiln.mig import profiles
from kiln.packer.render import stale_files, write_all
from kiln.pipeline import evidence
from kiln.publish import codebuild
from kiln.telemetry import stack
from kiln.telemetry.settings import telemetry_facts
from kiln.xid import catalog
from lab.rootfs import pci

# Whatever KILN_MATRIX says: what is generated is committed with it.
_MATRIX = ROOT / "amis.yaml"
_PROVEN_PAGE = ROOT / "docs" / "test-status.md"


def _page(path: Path, before: str, headings: str, rows: Iterable[Sequence[str]]) -> str:
    """Return a page with these rows in the first table below the line `before`."""
    head, found, rest = path.read_text(encoding="utf-8").partition(f"{before}\n")
    marks = re.sub("[^|]+", "---", headings)
    table = "\n".join([headings, marks, *(f"| {' | '.join(row)} |" for row in rows)])
    return head + found + re.sub(r"(?m)(^\|.*\n)+", lambda _: f"{table}\n", rest, count=1)


def _proven() -> str:
    """docs/test-status.md: what ran in accounts; for each row, whether the lab has tried it, its
    unconfirmed facts."""
    rows = []
    for each in load.load_recipes(_MATRIX):
        tried = facts.distro(each.distro.id).get("tried", {}).get(each.flavor, ())
        seen = "yes" if each.arch in tried else "no"
        rows.append((each.name, seen, str(len(unconfirmed_of_row(each)))))
    headings = "| row | tried in the lab | unconfirmed facts |"
    page = _page(_PROVEN_PAGE, "## The rows", headings, rows)
    before, heading, rest = page.partition("## In an AWS account\n\n")
    return f"{before}{heading}{evidence.status_text()}\n\n{rest[rest.index('## ') :]}"


def _counters() -> str:
    return render("telemetry/dcgm-counters.csv.j2", fields=telemetry_facts()["dcgm"]["fields"])


def _cli() -> str:
    """docs/cli.md: every task with its flags; those of a shared class once, at the end."""
    from tasks import ns

    modules = targets.task_modules((), ())  # the lab's, which `tasks` has only where it is asked
    own = [each for module in modules for each in vars(module).values()]
    every = {each.name: each for each in (*ns.tasks.values(), *own) if isinstance(each, KilnTask)}
    docs = [(each.group, name, each.doc) for name, each in every.items()]
    titles: dict[str, dict[str, str]] = {}
    for _, _, doc in docs:
        for name, (title, text) in doc.helps.items():
            titles.setdefault(title, {})[flag(name)] = text.replace("|", "\\|")
    groups = {
        group: [
            (
                name,
                doc,
                [(flag(key), text) for key, (title, text) in doc.helps.items() if title == "Flags"],
                sorted({title for title, _ in doc.helps.values()} - {"Flags", "Output"}),
            )
            for its_group, name, doc in docs
            if its_group == group
        ]
        for group in GROUPS
    }
    shared = [(title, sorted(flags.items())) for title, flags in titles.items() if title != "Flags"]
    return render("docs/cli.md.j2", groups=groups.items(), shared=shared)


# File → the function that makes its text, and the source.
TEXTS: dict[Path, tuple[Callable[[], str], str]] = {
    ROOT / "docs/amis.schema.json": (model.matrix_json_schema, "kiln/matrix/model.py"),
    ROOT / "docs/record.schema.json": (record_json_schema, "kiln/image/version_info.py"),
    ROOT / "docs/catalog.schema.json": (catalog_model.catalog_json_schema, "kiln/catalog/model.py"),
    **{path: (made, "kiln/facts/models.py") for path, made in reference.FACTS.items()},
    iam.POLICY_FILE: (iam.policy_text, "kiln/facts/knowledge/iam.yaml"),
    iam.POLICY_FILE_SETTINGS: (
        lambda: iam.policy_text("settings"),
        "kiln/facts/knowledge/iam.yaml",
    ),
    **{
        iam.publishing_file(role): (
            functools.partial(iam.policy_text, role),
            "kiln/facts/knowledge/iam_publish.yaml",
        )
        for role in iam.PUBLISHING
    },
    codebuild.CODEBUILD_TEMPLATE: (
        codebuild.codebuild_text,
        "templates/deploy and the policies in docs/",
    ),
    stack.TEMPLATE: (stack.example_text, "templates/stack/ and telemetry-stack.yaml"),
    ROOT / "runtime/etc/kiln/dcgm-counters.csv": (
        _counters,
        "kiln/facts/knowledge/cloudwatch.yaml",
    ),
    ROOT / "docs/amis-yaml.md": (reference.amis_yaml, "the models of kiln/matrix/model.py"),
    ROOT / "docs/components.md": (reference.components_page, "kiln/components/ and amis.yaml"),
    ROOT / "docs/environment.md": (reference.environment, "templates/docs/environment.md.j2"),
    ROOT / "docs/rules.md": (reference.rules_page, "kiln/facts/knowledge/rules.yaml"),
    ROOT / "docs/cli.md": (_cli, "the tasks' docstrings"),
    _PROVEN_PAGE: (_proven, "evidence/ and kiln/facts/knowledge"),
    catalog.PAGE: (catalog.page_text, "kiln/facts/knowledge/xid.yaml"),
    catalog.CATALOG: (catalog.catalog_text, "kiln/facts/knowledge/xid.yaml"),
    instance_types.DEVICES_FILE: (
        instance_types.gpu_devices_text,
        "kiln/facts/knowledge/instances.yaml",
    ),
    profiles.PROFILES_JSON: (
        profiles.image_profiles_text,
        "kiln/facts/knowledge/mig.yaml and instances.yaml",
    ),
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
    output({"written": written}, "\n".join(written) or "nothing to change")
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
