"""Rows that rest on a fact which nobody confirmed: `check` says so and refuses nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kiln import facts
from kiln.compat import trust
from kiln.compat.engine import check_recipe
from kiln.matrix.load import load_recipes

RECIPES = {recipe.name: recipe for recipe in load_recipes()}


def warned(recipe):
    return {(item.rule, item.level) for item in trust.findings(recipe)}


def a_row(distro: str):
    return next(recipe for recipe in RECIPES.values() if recipe.distro.id == distro)


@pytest.fixture
def keys(monkeypatch):
    """Set whether a key is confirmed."""

    def mark(name: str, *, confirmed: bool) -> None:
        known = facts.signing_keys()
        changed = {**known, name: replace(known[name], confirmed=confirmed)}
        monkeypatch.setattr(facts, "signing_keys", lambda: changed)

    return mark


def test_a_row_that_trusts_an_unconfirmed_key_is_warned_and_told_which(keys):
    keys("efa", confirmed=False)
    row = a_row("al2023")
    finding = next(item for item in check_recipe(row) if item.rule == "KEY-UNCONFIRMED")
    assert finding.level == "warning"
    assert facts.signing_keys()["efa"].fingerprint in finding.message
    assert "efa" in finding.hint
    assert finding.rows == (row.name,)
    assert finding.place == row.row.origins["efa"]


def test_a_row_whose_keys_are_confirmed_is_not_warned(keys):
    for name in facts.signing_keys():
        keys(name, confirmed=True)
    assert ("KEY-UNCONFIRMED", "warning") not in warned(a_row("ubuntu2204"))


@pytest.mark.parametrize(
    ("key", "distro", "expected"),
    [
        ("nvidia-cuda-rpm", "al2023", True),
        ("nvidia-cuda-rpm", "ubuntu2204", False),
        ("nvidia-cuda-deb", "ubuntu2204", True),
        ("nvidia-cuda-deb", "al2023", False),
    ],
)
def test_only_the_key_of_the_rows_own_package_format_counts(keys, key, distro, expected):
    keys("fsx-lustre", confirmed=True)
    keys(key, confirmed=False)
    message = any(
        facts.signing_keys()[key].fingerprint in item.message
        for item in trust.findings(a_row(distro))
    )
    assert message is expected


@pytest.mark.parametrize(("distro", "expected"), [("al2023", False), ("ubuntu2204", True)])
def test_only_a_row_that_downloads_the_key_of_fsx_is_warned_about_it(keys, distro, expected):
    keys("fsx-lustre", confirmed=False)
    row = replace(a_row(distro), components=("lustre-client",))
    assert (("KEY-UNCONFIRMED", "warning") in warned(row)) is expected


@pytest.fixture
def locked(monkeypatch):
    """What the lock file says about the driver's runfile of a row."""
    row = next(recipe for recipe in RECIPES.values() if recipe.driver_source == "runfile")
    url = next(
        url for url in trust.locked_entries() if f"/tesla/{row.driver}/NVIDIA-Linux-x86_64" in url
    )

    def say(**entry):
        known = {**trust.locked_entries(), url: {"url": url, "sha256": "0" * 64, **entry}}
        monkeypatch.setattr(trust, "locked_entries", lambda: known)
        return row, url

    return say


def test_a_row_that_downloads_a_file_with_an_unconfirmed_hash_is_warned(locked):
    row, url = locked(source="https://example.com/sums", confirmed=False)
    finding = next(item for item in check_recipe(row) if url in item.why)
    assert (finding.rule, finding.level) == ("HASH-UNCONFIRMED", "warning")
    assert finding.source == "https://example.com/sums"


def test_a_hash_that_a_bake_has_seen_is_confirmed(locked):
    row, url = locked(source="seen by build 7")
    assert not any(url in item.message for item in trust.findings(row))


def unconfirmed_facts(recipe):
    return [item for item in check_recipe(recipe) if item.rule == "FACT-UNCONFIRMED"]


def test_a_row_whose_package_names_are_unconfirmed_is_warned_and_told_where_they_stand(marked):
    marked("packages", "packages", "container-toolkit", confirmed=False)
    row = a_row("al2023")
    (finding,) = unconfirmed_facts(row)
    assert finding.level == "warning"
    assert "container-toolkit in kiln/facts/knowledge/packages.yaml" in finding.message
    assert finding.source == facts.table("packages")["sources"]["toolkit"]
    assert finding.place == row.row.origins["container_toolkit"]


@pytest.mark.parametrize(
    ("kind", "key"), [("downloads", "EFA_INSTALLER"), ("repositories", "CUDA_REPO_URL")]
)
def test_a_row_that_downloads_from_an_unconfirmed_url_is_warned(marked, kind, key):
    marked("downloads", kind, key, confirmed=False)
    messages = [item.message for item in unconfirmed_facts(a_row("al2023"))]
    assert any(f"{key} in kiln/facts/knowledge/downloads.yaml" in text for text in messages)


def test_a_row_that_boots_an_unconfirmed_kernel_is_warned(marked):
    marked("distros", "distros", "al2023", "kernels", "entries", "6.1", confirmed=False)
    row = replace(a_row("al2023"), kernel="6.1")
    (finding,) = unconfirmed_facts(row)
    assert "kernel 6.1" in finding.message
    assert "al2023" in finding.hint


def test_an_unconfirmed_fact_without_a_source_is_cited_itself():
    (finding,) = unconfirmed_facts(a_row("ubuntu2004"))
    assert finding.source.startswith("this repository: kiln/facts/knowledge/distros.yaml")


def test_the_names_of_cudnn_8_are_unconfirmed():
    row = next(recipe for recipe in RECIPES.values() if (recipe.cudnn or "").startswith("8."))
    assert any(item.message.startswith("cudnn installs") for item in unconfirmed_facts(row))


def test_a_row_whose_facts_are_all_confirmed_is_not_warned():
    assert unconfirmed_facts(a_row("al2023")) == []
