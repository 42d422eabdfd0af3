"""The task that asks the vendors: preflight."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from invoke import Context

from kiln.cli.flags import JSON, NO_INSTALL, ROWS, Selection, selects_rows
from kiln.cli.front import note, show, task


@task(
    help={
        **ROWS,
        "all": "every row that matches the other flags; that is the default here",
        "download": "fetch files whose SHA-256 is known, and compare them (gigabytes)",
        "region": "region of the parent AMIs, if there are credentials: --region eu-central-1",
        **NO_INSTALL,
        **JSON,
    }
)
@selects_rows
def preflight(
    c: Context,
    selection: Selection,
    download: bool = False,
    region: str | None = None,
    no_install: bool = False,
    json: bool = False,
) -> int:
    """Do the vendors publish what a bake fetches? Asks their hosts; needs no AWS account."""
    from kiln.base import needs
    from kiln.base.mirrors import MIRRORS
    from kiln.cli import targets
    from kiln.cloud import aws
    from kiln.matrix import load, select
    from kiln.preflight import answers
    from kiln.preflight.ask import ask

    recipes = select.select(load.load_recipes(), **{**selection, "every": True})
    ours = load.load_account("").mirrors
    if ours:
        pairs = " ".join(f"{vendor}={mirror}" for vendor, mirror in ours.items())
        os.environ.setdefault(MIRRORS, pairs)
    families = {f"preflight_{recipe.distro.family}" for recipe in recipes}
    needs.ensure("preflight", *sorted(families), install=not no_install, say=note)
    target = targets.choose(region=region) if aws.find_credentials() else None
    with tempfile.TemporaryDirectory(prefix="kiln-preflight-") as folder:
        rows = ask(recipes, Path(folder), whole_files=download, say=note, target=target)
    show([row.as_json() for row in rows], as_json=json, text=lambda _: answers.rows_text(rows))
    return 0 if all(row.state is answers.State.PUBLISHED for row in rows) else 1
