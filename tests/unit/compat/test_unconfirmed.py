"""Rows that rest on unconfirmed facts: `check` counts them, `check --strict` lists and refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import yaml

import tasks
from kiln import components, facts
from kiln.base.errors import Finding, Place
from kiln.base.recipe import Accepted, Recipe
from kiln.cli import main
from kiln.cli.build import summary
from kiln.compat.engine import (
    UNCONFIRMED,
    check_combination,
    check_recipe,
    unconfirmed_of_row,
)
from kiln.matrix.load import load_recipes
from tests.unit.records import a_record

pytestmark = pytest.mark.slow

RECIPES = load_recipes()


def a_row(**wanted: Any) -> Recipe:
    """The first row of the matrix with these values."""
    return next(
        recipe
        for recipe in RECIPES
        if all(getattr(recipe, name) == value for name, value in wanted.items())
    )


# A row that names its instance types, and one with one library more.
MANY = a_row(line="al2023-lts-both-base-x86_64")
PLAIN = a_row(line="al2023-lts-base-x86_64")
MIG = MANY.changed(mig_config="all-1g.5gb", target_instance_types=("p4d.24xlarge",))
KERNEL = PLAIN.changed(kernel="6.1")


def messages(recipe: Recipe) -> list[str]:
    return [finding.message for finding in unconfirmed_of_row(recipe)]


@pytest.mark.parametrize(
    ("row", "table", "keys", "marks", "expected"),
    [
        (MANY, "instances", ["types"], {}, "types[p4d.24xlarge] in"),
        (PLAIN, "instances", ["gpus", "T4"], {}, "gpus.T4 in"),
        (PLAIN, "drivers", ["branches", "580"], {}, "branches.580 in"),
        (PLAIN, "drivers", ["nvlsm", "versions", "2025.10.14"], {}, "nvlsm.versions.2025.10.14 in"),
        (PLAIN, "cuda", ["cudnn"], {}, "cudnn[9.21.0] in"),
        (PLAIN, "efa", ["os", "al2023"], {}, "os.al2023 in"),
        (PLAIN, "services", ["cloudwatch_agent", "builds"], {"confirmed": False}, "builds.1.3"),
        (KERNEL, "distros", ["distros", "al2023", "kernels", "entries", "6.1"], {}, "entries.6.1"),
        (MIG, "mig", ["gpus"], {}, "gpus[A100-40GB] in"),
        (PLAIN, "packages", ["packages", "container-toolkit"], {}, "container-toolkit in"),
        (PLAIN, "downloads", ["downloads", "EFA_INSTALLER"], {}, "EFA_INSTALLER in"),
        (PLAIN, "keys", ["keys", "nvidia-cuda-rpm"], {}, "keys.nvidia-cuda-rpm in"),
    ],
)  # fmt: skip
def test_unconfirmed_entry_counts_for_its_row(
    marked: Callable[..., None],
    row: Recipe,
    table: str,
    keys: list[str],
    marks: dict[str, Any],
    expected: str,
) -> None:
    assert not any(expected in message for message in messages(row))
    marked(table, *keys, **(marks or {"confirmed": False}))
    (found,) = [message for message in messages(row) if message.startswith(expected)] or [
        message for message in messages(row) if expected in message
    ]
    assert f"kiln/facts/knowledge/{table}.yaml" in found


def test_unconfirmed_type_is_placed_where_the_row_names_it(marked: Callable[..., None]) -> None:
    marked("instances", "types", confirmed=False)
    for row, kind, field in (
        (MANY, "p4d.24xlarge", "target_instance_types"),
        (PLAIN, PLAIN.instance_type, "instance_type"),
    ):
        (found,) = [f for f in unconfirmed_of_row(row) if f"types[{kind}]" in f.message]
        assert found.place == row.row.origins[field]


@pytest.mark.parametrize(
    ("table", "keys", "field", "entry"),
    [
        ("efa", ["os", "al2023"], "efa", "os.al2023 in"),
        ("efa", ["gdr"], "efa", "gdr["),
        ("efa", ["minimum_kernel"], "efa", "minimum_kernel["),
        ("services", ["dcgm"], "dcgm", "dcgm in"),
    ],
)
def test_entry_of_what_a_row_leaves_out_does_not_count(
    marked: Callable[..., None], table: str, keys: list[str], field: str, entry: str
) -> None:
    marked(table, *keys, confirmed=False)
    assert any(entry in message for message in messages(PLAIN))
    assert not any(entry in message for message in messages(PLAIN.changed(**{field: None})))


def test_key_of_another_package_format_does_not_count(marked: Callable[..., None]) -> None:
    marked("keys", "keys", "nvidia-cuda-deb", confirmed=False)
    assert not any("nvidia-cuda-deb" in message for message in messages(PLAIN))
    ubuntu = a_row(line="ubuntu2204-lts-base-x86_64")
    assert any("nvidia-cuda-deb" in message for message in messages(ubuntu))


def test_unconfirmed_hash_of_the_lock_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = components.get("efa").for_recipe(PLAIN).downloads[0].url
    monkeypatch.setenv("KILN_LOCK", str(tmp_path / "lock.yaml"))
    for confirmed in (True, False):
        hashed = {"sha256": "a" * 64, "source": "https://example.com", "confirmed": confirmed}
        entry = {"url": url, "version": "1", **hashed}
        (tmp_path / "lock.yaml").write_text(yaml.safe_dump({"artifacts": [entry]}))
        told = any(f"the hash of {url}" in message for message in messages(PLAIN))
        assert told is not confirmed


def found(row: Recipe, *, strict: bool = True) -> list[Finding]:
    return [item for item in check_recipe(row, strict=strict) if "os.al2023" in item.message]


def test_strict_lists_unconfirmed_facts_that_no_row_accepts(marked: Callable[..., None]) -> None:
    marked("efa", "os", "al2023", confirmed=False)
    assert found(PLAIN, strict=False) == []
    (finding,) = found(PLAIN)
    assert (finding.rule, finding.level) == (UNCONFIRMED, "error")
    assert finding.place == PLAIN.row.origins["efa"]
    assert finding.source == facts.table("efa")["sources"]["notes"]
    more = {"reason": "tried by hand", "until": date(2099, 1, 1), "place": Place("amis.yaml", 1)}
    accepted = Accepted(rule=UNCONFIRMED, **more)
    row = PLAIN.changed(row=PLAIN.row.changed(accepted=(accepted,)))
    assert [item.level for item in found(row)] == ["error"]


@pytest.mark.parametrize(("driver", "counts"), [("510.108.03", True), ("580.178.04", False)])
def test_first_branch_counts_only_before_a_branch_lists_the_gpu(
    driver: str, *, counts: bool
) -> None:
    answer = check_combination("al2023", driver, instance_types=["g5.xlarge"], strict=True)
    listed = [entry["message"] for entry in answer["findings"] if entry["rule"] == UNCONFIRMED]
    assert any("gpus.A10G" in message for message in listed) is counts
    assert len(listed) == answer["unconfirmed_facts"]


def test_check_counts_and_strict_lists_unconfirmed_facts(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def check(*flags: str) -> tuple[int, str]:
        return main.run(["./invoke", "check", *flags], tasks.ns), capsys.readouterr().out

    status, text = check()
    assert (status, text.count("unconfirmed"), "CONFIRMED" in text) == (0, 1, False)
    status, text = check("--strict", "--json")
    answer = json.loads(text)
    listed = [entry for entry in answer["findings"] if entry["rule"] == UNCONFIRMED]
    assert {entry["level"] for entry in listed} == {"error"}
    assert (status, len(listed)) == (2, answer["unconfirmed_facts"])
    assert answer["unconfirmed_by_row"] == {
        recipe.name: len(unconfirmed_of_row(recipe)) for recipe in RECIPES
    }


def test_summary_counts_unconfirmed_facts_unless_zero() -> None:
    assert "  facts    2 unconfirmed: ./invoke check --strict" in summary(a_record(), 2)
    assert "unconfirmed" not in summary(a_record())
