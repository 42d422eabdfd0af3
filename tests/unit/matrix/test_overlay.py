"""Overlays: the worked example of docs/overlay.md, and mistakes in one."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from kiln import components, facts
from kiln.base import overlay
from kiln.base.errors import KilnError
from kiln.base.paths import AMI_TESTS, KNOWLEDGE, ROOT, packer_dir
from kiln.base.recipe import Recipe
from kiln.cli.matrix import check_answer, findings_text
from kiln.compat import engine
from kiln.compat.engine import check_combination
from kiln.facts.models import TABLES
from kiln.facts.tables import read_table, with_overlay
from kiln.matrix.flags import select
from kiln.matrix.load import load_recipes
from kiln.packer import render, validate
from kiln.packer.render import recipe_digest, write_folders
from lab.vendors.packages import system
from tests.unit import caches, shown
from tests.unit.matrix.overlays import PAGE, unknown_distribution, written

pytestmark = pytest.mark.slow


@pytest.fixture
def acme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The page's overlay, in use."""
    monkeypatch.setenv("KILN_OVERLAY", str(tmp_path / "acme"))
    caches.forget()
    yield written(tmp_path / "acme")
    caches.forget()


def al2023(rows: list[Recipe]) -> Recipe:
    return next(row for row in rows if row.distro.id == "al2023" and row.stack == "lts")


def table(name: str) -> dict[str, Any]:
    """A table of facts as a new process would read it."""
    fresh: dict[str, Any] = facts.table.__wrapped__(name)
    return fresh


# ------------------------------------------------------------------- what it adds


def test_component_is_on_every_image_at_its_place(acme: Path) -> None:
    *others, own = load_recipes()
    for row in (*others, own):
        place = row.components.index("acme-baseline")
        assert row.components[place - 1] == "tuning", row.name
    assert (own.name, own.stack) == ("al2023-580.999.01-open-base-x86_64", "acme")
    assert own.row.file == str(acme / "amis.yaml")
    assert own.volume == others[0].volume
    assert overlay.ami_check_folders() == (AMI_TESTS, acme / "tests" / "ami")
    (flags,) = shown.selections(PAGE)
    assert select([*others, own], **flags) == [own]


def test_row_may_leave_component_out(acme: Path) -> None:
    path = acme / "amis.yaml"
    head = path.read_text().split("amis:")[0]
    path.write_text(f"{head}amis:\n- {{distro: al2023, stack: acme, without: [acme-baseline]}}\n")
    assert "acme-baseline" not in load_recipes()[-1].components


def test_script_gets_packages_by_distribution(acme: Path) -> None:
    path = acme / "components" / "acme-baseline.yaml"
    lists = "packages: {al2: [jq], al: [jq, tmux], default: [jq=1.7.1]}\n"
    path.write_text(path.read_text().replace("packages: [jq, tmux]\n", lists))
    given = {
        row.distro.id: components.get("acme-baseline").for_recipe(row).env for row in load_recipes()
    }
    named = {distro: env["ACME_BASELINE_OS_PACKAGES"] for distro, env in given.items()}
    assert (named["al2"], named["al2023"], named["debian12"]) == ("jq", "jq tmux", "jq=1.7.1")
    assert given["al2"]["ACME_SITE"] == "fra"


def test_digest_has_each_file_but_not_its_place(
    acme: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def digest() -> str:
        caches.forget()
        return recipe_digest(al2023(load_recipes()))

    digests = {digest()}
    monkeypatch.setenv("KILN_OVERLAY", str(acme.rename(acme.parent / "moved")))
    assert {digest()} == digests
    for file in ("runtime/etc/acme/banner", "components/acme-baseline.yaml"):
        path = acme.parent / "moved" / file
        path.write_text(path.read_text().replace("fra", "muc").replace("Acme", "Acme Inc"))
        digests.add(digest())
    assert len(digests) == 3


def test_mig_layouts_are_shipped_as_json(acme: Path) -> None:
    path = acme / "runtime/etc/kiln/mig-config.d/acme.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(
        "version: v1\nmig-configs:\n  acme:\n"
        "  - {devices: all, mig-enabled: true, mig-devices: {1g.10gb: 7}}\n"
    )
    inputs = render.render(al2023(load_recipes())).inputs
    assert "runtime/etc/kiln/mig-config.d/acme.yaml" not in inputs
    shipped = json.loads(inputs["runtime/etc/kiln/mig-config.d/acme.json"])
    assert list(shipped["mig-configs"]) == ["acme"]
    path.write_text("version: v2\nmig-configs: {}\n")
    with pytest.raises(KilnError, match=rf"{path}: version 'v2'"):
        render.render(al2023(load_recipes())).inputs  # noqa: B018  # it is made when it is read


def test_rendered_hcl_finds_the_overlays_files(
    acme: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KILN_PACKER_DIR", str(tmp_path / "packer"))
    row = al2023(load_recipes())
    folder = write_folders([row], packer_dir())[row.name]
    assert [str(finding) for finding in validate.check_policy(folder)] == []
    text = (folder / "build.pkr.hcl").read_text()
    for name in ("provisioners/acme-baseline.sh", "runtime"):
        (place,) = re.findall(rf'"\$\{{local\.checkout\}}/(\S*acme/{name})"', text)
        assert (ROOT / place).resolve() == acme / name


def test_facts_of_the_overlay_are_added_to_ours(acme: Path) -> None:
    ours = facts.table("drivers")["branches"]
    both = table("drivers")["branches"]
    assert {"580.999.01", "580.178.04"} <= both["580"]["versions"].keys()
    assert both["535"] == ours["535"]
    path = acme / "facts/instances.yaml"
    path.write_text(path.read_text() + "- {type: p5.48xlarge, efa: 31}\n")
    types = {entry["type"]: entry for entry in table("instances")["types"]}
    assert types["p5.12xlarge"]["count"] == 2
    assert (types["p5.48xlarge"]["efa"], types["p5.48xlarge"]["count"]) == (31, 8)
    path.write_text("types: []\n")
    assert table("instances")["types"], "an empty list takes none of ours away"


def test_package_name_may_hold_from_a_version_on(acme: Path) -> None:
    text = "packages: {dcgm: [{when: {from: 4.10}, names: [dcgm-five], source: none}]}\n"
    (acme / "facts/packages.yaml").write_text(text)
    caches.forget()
    fields = {"archive": "rpm", "distro": "al2023", "os": "amazon", "driver_cuda": "13"}
    of = {version: facts.archive_packages("dcgm", version, **fields) for version in ("4.9", "4.10")}
    new, old = of["4.10"], of["4.9"]
    assert new and old
    assert new.names == ("dcgm-five",)
    assert old.names != new.names


def test_list_entry_counts_before_ours(acme: Path) -> None:
    def found() -> str:
        asked = {"distro": "al2023", "driver": "580.178.04", "efa": "1.51.0", "nccl": "2.28.9"}
        listed = check_combination(**asked, today=date(2026, 11, 21))["findings"]
        return str([each["message"] for each in listed if each["rule"] == "OFI-NCCL"])

    assert "NCCL >= 2.29.1" not in found()
    plugin = "plugin: [{from: 1.14.0, nccl: 2.29.1, source: none}]"
    (acme / "facts/nccl.yaml").write_text(plugin)
    caches.forget()
    assert "NCCL >= 2.29.1" in found()


def test_last_of_two_overlays_counts(
    acme: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    (other / "runtime/etc/acme").mkdir(parents=True)
    (other / "runtime/etc/acme/banner").write_text("other\n")
    monkeypatch.setenv("KILN_OVERLAY", f"{acme}:{other}")
    uploaded = render.uploaded_files(al2023(load_recipes()))
    assert uploaded["runtime/etc/acme/banner"].is_relative_to(other)
    assert uploaded["provisioners/acme-baseline.sh"].is_relative_to(acme)


# ------------------------------------------------------------------- a component in Python

MODULE = """import sys
from kiln.components.component import Component, Download
AFTER = "tuning"
{code}
COMPONENT = Component(name="acme-x", what="x", {arguments})
"""


def write_module(folder: Path, arguments: str = "", code: str = "") -> None:
    """Add a component in Python to the overlay."""
    script = '#!/bin/bash\nsource "${KILN_DIR:?}/lib/kiln.sh"\n'
    (folder / "components/acme_x.py").write_text(MODULE.format(code=code, arguments=arguments))
    (folder / "provisioners/acme-x.sh").write_text(script)


def test_module_may_have_dataclasses_and_mappings(acme: Path) -> None:
    write_module(
        acme,
        "environment=lambda r: MappingProxyType({'ACME': Site('x').name}), "
        "downloads=lambda r: [Download('ACME', 'https://a.example/x')]",
        code="from dataclasses import dataclass\nfrom types import MappingProxyType\n"
        "@dataclass(frozen=True)\nclass Site:\n    name: str",
    )
    step = components.get("acme-x").for_recipe(load_recipes()[0])
    assert step.env == {"ACME": "x"}
    assert [each.url for each in step.downloads] == ["https://a.example/x"]


@pytest.mark.parametrize("name", ["/etc/x", "etc/../../x"])
def test_file_that_leaves_the_image_is_refused(acme: Path, name: str) -> None:
    write_module(acme, f"files=lambda r: {{{name!r}: 'y'}}")
    with pytest.raises(KilnError, match="below /") as caught:
        render.render(load_recipes()[0])
    assert caught.value.exit_status == 2


# A component's files, files of the overlay's runtime/ → the file that is in two places.
AGENTS = "opt/aws/amazon-cloudwatch-agent/etc/amazon-cloudwatch-agent.d/kiln-events.json"
TAKEN = {
    "AMI Kiln's": (["etc/kiln/recipe.json"], []),
    "the agent's": ([AGENTS], []),
    "one of runtime/": (["etc/kiln/gpu-xid.json"], []),
    "runtime/ over what is rendered": ([], ["etc/kiln/recipe.json"]),
    "runtime/ over its own component": (["etc/acme-x"], ["etc/acme-x"]),
}


@pytest.mark.parametrize("what", TAKEN)
def test_file_in_the_place_of_another_is_refused(acme: Path, what: str) -> None:
    files, runtime = TAKEN[what]
    write_module(acme, f"files=lambda r: {dict.fromkeys(files, 'y')}")
    for name in runtime:
        path = acme / "runtime" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    recipe = next(each for each in load_recipes() if "cloudwatch-agent" in each.components)
    problems = [each for each in engine.check_recipe(recipe) if each.rule == "rendered-files"]
    (head,) = {str(each).splitlines()[0] for each in problems}
    place = f"runtime/{runtime[0]}" if runtime else "components/acme_x.py"
    assert head.startswith(f"{acme}/{place}: ")
    assert repr((files or runtime)[0]) in head
    with pytest.raises(KilnError) as caught:
        render.render(recipe)
    assert caught.value.exit_status == 2


def test_runtime_file_replaces_ours_and_check_says_so(acme: Path) -> None:
    path = acme / "runtime/etc/kiln/gpu-xid.json"
    path.parent.mkdir(parents=True)
    path.write_text("{}")
    uploaded = render.uploaded_files(al2023(load_recipes()))
    assert uploaded["runtime/etc/kiln/gpu-xid.json"] == path
    assert uploaded["runtime/etc/kiln/mig-config.json"].is_relative_to(ROOT)
    answer = check_answer({}, strict=False)
    assert answer["replaced"] == {"runtime/etc/kiln/gpu-xid.json": str(path)}
    assert not [each for each in answer["findings"] if each["rule"] == "rendered-files"]
    told = f"the overlay replaces runtime/etc/kiln/gpu-xid.json by {path}"
    assert told in findings_text(answer)


# ------------------------------------------------------------------- mistakes

BASELINE, DISTROS = "components/acme-baseline.yaml", "facts/distros.yaml"
MISTAKES = {
    # file, what is replaced, by what → what the message says
    "a key": (BASELINE, "env:", "enviroment:", "4:1: enviroment: "),
    "a place that is not": (BASELINE, "after: tuning", "after: tunning", "2: after: 'tunning'"),
    "a package": (BASELINE, "jq,", "jq; rm,", "3:11: "),
    "a distribution": (BASELINE, "[jq, tmux]", "{al2024: [jq]}", "al2024"),
    "a placeholder": (
        BASELINE, "env:", "downloads: {ACME: 'https://a.example/{machine}'}\nenv:",
        "4:19: downloads.ACME: unknown placeholder {machine}",
    ),
    "a folder": ("provisionners/x.sh", "", "", "provisionners: "),
    "a script": ("provisioners/x.sh", "", "", "x.sh: no component runs x.sh"),
    "twice": ("components/tuning.yaml", "", "{what: a, after: kernel}", "'tuning' exists already"),
    "a check of ours": ("tests/ami/test_tuning.py", "", "", "test_tuning.py exists already"),
    "a distribution of the lab's packages": (
        "lab/packages.yaml", "al2:", "al3:", "1:1: 'al3': the lab passes on",
    ),
    "a GPU": (
        "facts/instances.yaml", "gpu: H100-80GB", "gpu: H100-80", "2:28: types.0.gpu: ",
    ),
    "a driver of another branch": (
        "facts/drivers.yaml", "580.999.01:", "590.999.01:", "3:3: branches: 590.999.01",
    ),
    "a hash without a source": (
        "facts/checksums.yaml", "", "files:\n- url: https://a.example/{version}\n"
        f"  sha256: {{1.0: '{'0' * 64}', 1.1: '{'1' * 64}'}}\n  source: {{'1.0': https://a.example}}\n",
        "2:3: files.0: source: names no source of the hash of 1.1",
    ),
    "a table": ("facts/driver.yaml", "", "", "driver.yaml"),
    # In the distribution of docs/add-a-distribution.md.
    "a family": (DISTROS, "family: debian", "family: redhat", "3:13: distros.debian98.family: "),
    "a kernel": (DISTROS, "default: linux-", "default: linus-", "10:7: distros.debian98.kernels"),
    "a stack": ("amis.yaml", "stack: acme,", "stack: acne,", "4:27: stack 'acne' is not among"),
}  # fmt: skip


@pytest.mark.parametrize("what", MISTAKES)
def test_mistake_is_named_by_file_and_line(acme: Path, what: str) -> None:
    file, old, new, message = MISTAKES[what]
    path = acme / file
    path.parent.mkdir(parents=True, exist_ok=True)
    text = path.read_text() if path.exists() else ""
    text = text or unknown_distribution().get(file, "")
    assert old in text
    path.write_text(text.replace(old, new) if old else new)
    with pytest.raises(KilnError) as caught:
        load_recipes()
        for facts_file in (acme / "facts").iterdir():
            table(facts_file.stem)
        system.overlay_stand_ins()
    where = path.parent if what == "a folder" else path
    assert caught.value.message.startswith(f"{where}:")
    assert message in caught.value.message
    assert caught.value.exit_status == 2


# A list, an empty value, an unknown key; KEY is one of the table's.
@pytest.mark.parametrize("text", ["- 1\n", "KEY:\n", "KEYx: 1\n"])
def test_wrong_file_of_any_facts_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "facts").mkdir()
    for name in TABLES:
        known = read_table(KNOWLEDGE / f"{name}.yaml")
        key = next(
            key for key in TABLES[name].model_fields if isinstance(known.get(key), dict | list)
        )
        path = tmp_path / "facts" / f"{name}.yaml"
        path.write_text(text.replace("KEY", key))
        with pytest.raises(KilnError) as caught:
            with_overlay(known, name, tmp_path)
        assert caught.value.message.startswith(str(path))
        assert caught.value.exit_status == 2
        path.unlink()


def test_editors_schema_takes_facts_and_no_typo(acme: Path) -> None:
    assert "# yaml-language-server: $schema=../../docs/facts/drivers.schema.json\n" in PAGE
    for name in TABLES:
        path, ours = acme / f"facts/{name}.yaml", read_table(KNOWLEDGE / f"{name}.yaml")
        path.touch()
        with_overlay(ours, name, acme)  # by the model
        schema = json.loads((ROOT / f"docs/facts/{name}.schema.json").read_text())
        for data in (ours, yaml.safe_load(path.read_text()) or {}):
            jsonschema.validate(json.loads(json.dumps(data)), schema)
        with pytest.raises(jsonschema.ValidationError, match="kinds"):
            jsonschema.validate({"kinds": 1}, schema)


def test_check_reads_all_facts(acme: Path) -> None:
    path = acme / "facts/archives.yaml"
    path.write_text("archives:\n- {name: epel, kind: zip}\n")
    caches.forget()
    with pytest.raises(KilnError, match=rf"{path}:2:"):
        check_answer({}, strict=False)


def test_missing_script_is_named(acme: Path) -> None:
    path = acme / "provisioners/acme-baseline.sh"
    path.unlink()
    with pytest.raises(KilnError, match=f"{path} does not exist"):
        render.render(al2023(load_recipes()))


def test_missing_overlay_is_bad_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KILN_OVERLAY", str(tmp_path / "nowhere"))
    with pytest.raises(KilnError, match="KILN_OVERLAY names") as caught:
        load_recipes()
    assert caught.value.exit_status == 2


def test_account_setting_of_row_file_or_matrix(
    acme: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    matrix = (ROOT / "amis.yaml").read_text()
    ours = tmp_path / "amis.yaml"
    aws = "  aws: {region: eu-west-1, kms_key_id: alias/ami}\n"
    ours.write_text(matrix.replace("defaults:\n", f"defaults:\n{aws}", 1))
    monkeypatch.setenv("KILN_MATRIX", str(ours))
    path = acme / "amis.yaml"
    path.write_text("defaults:\n  aws: {region: eu-central-1}\n" + path.read_text())
    first, *_, own = load_recipes()
    assert (first.row.account.region, own.row.account.region) == ("eu-west-1", "eu-central-1")
    assert own.row.account.kms_key_id == "alias/ami"
    assert own.row.account.origins["kms_key_id"].startswith(f"{ours}:")
    assert own.row.account.origins["region"].startswith(str(path))
