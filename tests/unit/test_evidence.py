"""Where it is known from that a row's packages, files and units exist."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest
import yaml
from records import a_record
from rows import row

from devel import generate
from kiln.base.errors import KilnError
from kiln.base.findings import Place
from kiln.base.paths import ROOT
from kiln.base.recipe import Acceptance, Recipe
from kiln.cli import checks
from kiln.cli.summary import summary
from kiln.compat.engine import check_recipe
from kiln.compat.evidence import RULE, Basis, counts, evidence_of
from kiln.facts.evidence import known_units
from kiln.matrix.load import load_recipes
from kiln.pipeline.record import KnownFrom
from kiln.pipeline.report import report_html

ROWS = {recipe.name: recipe for recipe in load_recipes(ROOT / "amis.yaml")}
# At versions that were seen, or not: those of the rows move on.
DEBIAN = replace(row("debian12/debian/base/x86_64"), driver="535.309.01")
AL2023 = replace(row("al2023/lts/base/x86_64"), dcgm="4.6.0")
ARM64 = row("al2023/lts/base/arm64")


def basis(recipe: Recipe, what: str) -> Basis:
    (item,) = [item for item in evidence_of(recipe) if item.what == what]
    return item.basis


def test_check_counts_packages_once_by_the_words_of_its_page(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(checks.load, "load_recipes", lambda path=None: [DEBIAN])
    answer = checks.check_answer({}, strict=False)
    page = (ROOT / "docs/preflight.md").read_text(encoding="utf-8")
    words = [basis.value for basis in Basis]
    assert list(answer["evidence"]["packages"]) == words
    assert "packages" not in answer
    assert all(f"*{word}*" in page for word in words)


@pytest.mark.parametrize("text", [b"", b"- 1\n", b"packages: {jq: 1}\n", b"\xff\xfe"])
def test_an_index_that_was_damaged_by_hand_is_one_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: bytes
) -> None:
    monkeypatch.setenv("KILN_INDEXES", str(tmp_path))
    path = tmp_path / "al2023-x86_64-nvidia-cuda.yaml"
    path.write_bytes(text)
    with pytest.raises(KilnError, match=r"nvidia-cuda\.yaml: it is not an index that") as caught:
        check_recipe(AL2023)
    assert caught.value.exit_status == 2
    assert "record it anew" in caught.value.hint


def test_debians_own_packages_are_all_recorded() -> None:
    counted = counts(evidence_of(DEBIAN))["packages"]
    assert counted["recorded"] > 6
    assert (counted["seen"], counted["assumed"]) == (0, 0)


def test_a_package_counts_as_seen_only_at_the_version_and_in_the_repository_where_it_was() -> None:
    assert basis(AL2023, "datacenter-gpu-manager-4-core=4.6.0") is Basis.SEEN
    other = replace(AL2023, dcgm="4.5.3")
    assert basis(other, "datacenter-gpu-manager-4-core=4.5.3") is Basis.ASSUMED
    ubuntu = replace(row("ubuntu2204/lts/base/x86_64"), dcgm="4.6.0")
    assert basis(ubuntu, "datacenter-gpu-manager-4-core=4.6.0") is Basis.ASSUMED


def test_a_package_that_the_parent_has_was_seen_at_the_parents_version_only() -> None:
    cluster = replace(
        row("al2023/production/parallelcluster/x86_64"),
        driver="595.112.07",
        parallelcluster="3.16.3",
    )
    assert basis(cluster, "nvidia-driver=595.112.07") is Basis.SEEN
    assert basis(replace(cluster, flavor="base"), "nvidia-driver=595.112.07") is Basis.ASSUMED
    assert basis(replace(cluster, driver="595.99.02"), "nvidia-driver=595.99.02") is Basis.ASSUMED


def test_a_build_of_nccl_for_another_cuda_was_not_seen() -> None:
    newest = replace(row("al2023/production/base/x86_64"), cuda="13.2.2", nccl="2.30.4")
    assert basis(newest, "libnccl=2.30.4@cuda13.2") is Basis.SEEN
    assert basis(replace(newest, cuda="13.3.1"), "libnccl=2.30.4@cuda13.3") is Basis.ASSUMED


def test_a_file_that_a_build_in_aws_downloaded_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = next(i.what for i in evidence_of(ARM64) if i.what.endswith("amazon-cloudwatch-agent.rpm"))
    assert basis(ARM64, url) is Basis.ASSUMED
    entry = {"url": url, "version": "1", "sha256": "a" * 64, "source": "seen by run 1"}
    (tmp_path / "lock.yaml").write_text(yaml.safe_dump({"artifacts": [entry]}))
    monkeypatch.setenv("KILN_LOCK", str(tmp_path / "lock.yaml"))
    assert basis(ARM64, url) is Basis.RECORDED


def test_a_file_whose_hash_is_published_was_seen() -> None:
    classic = replace(row("al2/classic/base/x86_64"), efa="1.34.0")
    assert basis(
        classic, "https://efa-installer.amazonaws.com/aws-efa-installer-1.34.0.tar.gz"
    ) is (Basis.SEEN)


def test_a_signature_was_seen_where_its_file_was_and_the_vendor_says_that_it_lies_beside() -> None:
    signatures = {
        item.what: item.basis for item in evidence_of(ARM64) if item.what.endswith(".sig")
    }
    installer, agent = sorted(signatures, key=lambda url: "efa" not in url)
    assert signatures == {installer: Basis.SEEN, agent: Basis.ASSUMED}
    assert basis(ARM64, installer.removesuffix(".sig")) is Basis.SEEN
    assert basis(ARM64, agent.removesuffix(".sig")) is Basis.ASSUMED


@pytest.mark.parametrize(("strict", "level"), [(False, "warning"), (True, "error")])
def test_check_warns_of_what_is_only_assumed_at_the_line_that_asks_for_it_and_strict_refuses_it(
    *, strict: bool, level: str
) -> None:
    assumed = {item.what for item in evidence_of(ARM64) if item.basis is Basis.ASSUMED}
    findings = [f for f in check_recipe(ARM64, strict=strict) if f.rule == RULE]
    named = [thing for f in findings for thing in f.message.partition("exist: ")[2].split(", ")]
    assert sorted(named) == sorted(assumed)
    assert {f.level for f in findings} == {level}
    agent = next(f for f in findings if "cloudwatch-agent" in f.message)
    asked_for = ARM64.row.origins["cloudwatch_agent"]
    assert (agent.place, agent.file, agent.line) == (asked_for, str(ARM64.row.file), asked_for.line)


def test_the_page_of_proofs_names_the_first_reason_why_a_bake_would_fail() -> None:
    assert generate.first_blocker(DEBIAN) == "none known"
    blocker = generate.first_blocker(replace(DEBIAN, driver="535.1.1"))
    assert "535.1.1" in blocker


def test_strict_accepts_a_row_of_which_nothing_is_assumed() -> None:
    assert [f for f in check_recipe(DEBIAN, strict=True) if f.rule == RULE] == []


def test_the_summary_and_the_report_count_the_evidence_and_list_what_is_assumed() -> None:
    counted = {"recorded": 9, "seen": 31, "assumed": 1}
    nothing = {"recorded": 0, "seen": 0, "assumed": 0}
    evidence = KnownFrom(counted, counted, nothing, ("nvlsm=2025.10.14",))
    record = replace(a_record(), evidence=evidence)
    lines = summary(record).splitlines()
    assert "  packages 9 recorded, 31 seen, 1 assumed" in lines
    assert "    assumed: nvlsm=2025.10.14" in lines
    assert not any(line.startswith("  units") for line in lines)
    page = report_html(record)
    assert "9 recorded, 31 seen, 1 assumed" in page
    assert "nvlsm=2025.10.14" in page


def test_every_unit_that_the_lab_serves_says_where_it_is_known_from() -> None:
    served = {
        path.name
        for folder in ("packages/payloads", "rootfs/basefiles/parents", "rootfs/basefiles/ubuntu")
        for path in (ROOT / "lab" / folder).rglob("*.service")
    }
    assert len(served) > 10
    assert served - {unit.name for unit in known_units()} == set()


@pytest.mark.parametrize("recipe", ROWS.values(), ids=ROWS)
def test_every_unit_of_a_package_that_a_provisioner_enables_is_counted(recipe: Recipe) -> None:
    counted = {item.what for item in evidence_of(recipe) if item.kind == "units"}
    enabled = {
        unit
        for name in recipe.components
        for line in re.findall(
            r"^ *kiln_enable (.*)$", (ROOT / "provisioners" / f"{name}.sh").read_text(), re.M
        )
        for unit in line.split()
        if unit.startswith(("nvidia-", "amazon-"))
    }
    assert enabled
    assert enabled - counted == set()


def test_a_row_can_accept_what_is_only_assumed_until_a_day() -> None:
    entry = Acceptance(RULE, "first bake in May", date(2027, 5, 31), Place("amis.yaml", 9))
    accepting = replace(ARM64, row=replace(ARM64.row, accepted=(entry,)))
    for strict in (False, True):
        findings = check_recipe(accepting, today=date(2027, 5, 31), strict=strict)
        assert {finding.level for finding in findings if finding.rule == RULE} == {"accepted"}
    late = check_recipe(accepting, today=date(2027, 6, 1), strict=True)
    assert {finding.level for finding in late if finding.rule in (RULE, "ACCEPT-EXPIRED")} == {
        "error"
    }
