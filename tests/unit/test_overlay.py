"""Overlays: the worked example of docs/overlay.md, and what a mistake in one looks like."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from kiln import components, facts
from kiln.base.errors import KilnError
from kiln.base.paths import KNOWLEDGE, ROOT, packer_dir
from kiln.base.recipe import Recipe
from kiln.cli.matrix import check_answer
from kiln.compat.engine import check_combination
from kiln.facts.models import TABLES
from kiln.facts.tables import read_table, with_overlay
from kiln.matrix.flags import select
from kiln.matrix.load import load_recipes
from kiln.packer import render, validate
from kiln.packer.render import recipe_digest, write_folders
from lab.vendors.packages import system
from tests.unit import caches, commands, shown, unknown_distribution

PAGE = (ROOT / "docs" / "overlay.md").read_text()


def written(top: Path) -> Path:
    """The overlay of the page's worked example."""
    files = re.findall(
        r"^`overlay/([\w./-]+)`[^\n]*\n\n```\w*\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL
    )
    for name, text in files:
        path = top / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return top


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


def test_its_component_is_on_every_image_at_its_place(acme: Path) -> None:
    rows = load_recipes()
    assert len(rows) > 20
    for row in rows:
        place = row.components.index("acme-baseline")
        assert row.components[place - 1] == "tuning", row.name


def test_its_row_has_the_defaults_of_the_matrix(acme: Path) -> None:
    *others, own = load_recipes()
    assert (own.name, own.stack) == ("al2023-580.999.01-open-base-x86_64", "acme")
    assert own.row.file == str(acme / "amis.yaml")
    assert own.volume == others[0].volume


def test_the_build_that_the_page_shows_is_of_its_row(acme: Path) -> None:
    (flags,) = shown.selections(PAGE)
    assert [recipe.stack for recipe in select(load_recipes(), **flags)] == ["acme"]


def test_a_row_may_leave_its_component_out(acme: Path) -> None:
    row = "- {distro: al2023, stack: acme, without: [acme-baseline]}\n"
    path = acme / "amis.yaml"
    path.write_text(path.read_text().split("amis:")[0] + "amis:\n" + row)
    own = load_recipes()[-1]
    assert own.stack == "acme"
    assert "acme-baseline" not in own.components


def test_the_script_gets_its_packages_by_distribution(acme: Path) -> None:
    path = acme / "components" / "acme-baseline.yaml"
    lists = "packages: {al2: [jq], al: [jq, tmux], default: [jq=1.7.1]}\n"
    path.write_text(path.read_text().replace("packages: [jq, tmux]\n", lists))
    given = {
        row.distro.id: components.get("acme-baseline").for_recipe(row).env for row in load_recipes()
    }
    named = {distro: env["ACME_BASELINE_OS_PACKAGES"] for distro, env in given.items()}
    assert (named["al2"], named["al2023"], named["debian12"]) == ("jq", "jq tmux", "jq=1.7.1")
    assert given["al2"]["ACME_SITE"] == "fra"


@pytest.mark.parametrize("file", ["runtime/etc/acme/banner", "components/acme-baseline.yaml"])
def test_each_of_its_files_is_in_the_digest(acme: Path, file: str) -> None:
    before = recipe_digest(al2023(load_recipes()))
    path = acme / file
    path.write_text(path.read_text().replace("fra", "muc").replace("Acme", "Acme Inc"))
    components._by_name.cache_clear()
    assert recipe_digest(al2023(load_recipes())) != before


def test_the_digest_does_not_depend_on_where_the_overlay_lies(
    acme: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = recipe_digest(al2023(load_recipes()))
    monkeypatch.setenv("KILN_OVERLAY", str(acme.rename(acme.parent / "moved")))
    assert recipe_digest(al2023(load_recipes())) == before


def test_a_file_of_runtime_takes_the_place_of_ours(acme: Path) -> None:
    path = acme / "runtime/etc/kiln/mig-config.json"
    path.parent.mkdir()
    path.write_text("{}\n")
    uploaded = render.uploaded_files(al2023(load_recipes()))
    assert uploaded["runtime/etc/kiln/mig-config.json"] == path
    assert uploaded["runtime/etc/kiln/gpu-xid.json"].is_relative_to(ROOT)


def test_mig_layouts_in_yaml_are_shipped_as_json(acme: Path) -> None:
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


def test_the_rendered_hcl_finds_its_files_where_they_are(
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


def test_a_driver_of_its_facts_is_beside_ours(acme: Path) -> None:
    ours = facts.table("drivers")["branches"]
    both = table("drivers")["branches"]
    assert "580.999.01" in both["580"]["versions"]
    assert "580.178.04" in both["580"]["versions"]
    assert both["535"] == ours["535"]


def test_an_instance_type_of_its_facts_is_added_and_a_known_one_corrected(acme: Path) -> None:
    path = acme / "facts/instances.yaml"
    path.write_text(path.read_text() + "- {type: p5.48xlarge, efa: 31}\n")
    types = {entry["type"]: entry for entry in table("instances")["types"]}
    assert types["p5.12xlarge"]["count"] == 2
    assert (types["p5.48xlarge"]["efa"], types["p5.48xlarge"]["count"]) == (31, 8)


def test_a_package_name_of_its_facts_counts_before_ours(acme: Path) -> None:
    row = "{when: {distro: al2023}, names: [], unversioned: [acme], source: ours}"
    (acme / "facts/packages.yaml").write_text(f"packages: {{kernel-tools: [{row}]}}\n")
    first, *ours = table("packages")["packages"]["kernel-tools"]
    assert first["unversioned"] == ["acme"]
    assert ours


def test_a_package_name_may_hold_from_a_version_on(acme: Path) -> None:
    text = "packages: {dcgm: [{when: {from: 4.10}, names: [dcgm-five], source: none}]}\n"
    (acme / "facts/packages.yaml").write_text(text)
    caches.forget()
    fields = {"archive": "rpm", "distro": "al2023", "os": "amazon", "driver_cuda": "13"}
    of = {version: facts.archive_packages("dcgm", version, **fields) for version in ("4.9", "4.10")}
    assert of["4.10"] is not None
    assert of["4.10"].names == ("dcgm-five",)
    assert of["4.9"] is not None
    assert of["4.9"].names != ("dcgm-five",)


# A fact over ours → a combination, and `RULE: a part of its message` that only the fact makes.
OVER = {
    "nccl.yaml": (
        "plugin: [{from: 1.14.0, nccl: 2.29.1, source: none}]",
        {"efa": "1.51.0", "nccl": "2.28.9"},
        "OFI-NCCL: needs NCCL >= 2.29.1",
    ),
    "drivers.yaml": (
        "minimum_kernel: [{from_branch: '570', kernel: '6.5', source: none}]",
        {},
        "KERN-MIN: driver 580.178.04 needs kernel >= 6.5",
    ),
}


@pytest.mark.parametrize("file", OVER)
def test_an_entry_of_its_lists_counts_before_ours(acme: Path, file: str) -> None:
    text, more, expected = OVER[file]
    combination = {"distro": "al2023", "driver": "580.178.04", "today": date(2026, 11, 21), **more}

    def found() -> list[str]:
        listed = check_combination(**combination)["findings"]
        return [f"{finding['rule']}: {finding['message']}" for finding in listed]

    rule, _, message = expected.partition(": ")
    assert not [line for line in found() if line.startswith(rule) and message in line]
    (acme / "facts" / file).write_text(text)
    caches.forget()
    assert [line for line in found() if line.startswith(rule) and message in line], found()


def test_a_release_of_its_facts_has_its_place_among_ours(acme: Path) -> None:
    (acme / "facts/distros.yaml").write_text(
        "flavors: {parallelcluster: {brings: {3.99.0: {driver: 595.112.07, efa: 1.51.0}}}}\n"
    )
    (acme / "facts/cuda.yaml").write_text("releases: {11.0.99: {driver: 450.36.06}}\n")
    branch = "{kind: PB, end_of_life: '2022-01', native_cuda: '11.1', modules: [proprietary]"
    (acme / "facts/drivers.yaml").write_text(
        f"branches: {{'456': {branch}, released: '2021-01', versions: {{}}, source: none}}}}\n"
    )
    caches.forget()
    asked = {"distro": "al2023", "flavor": "parallelcluster", "parallelcluster": "3.99.0"}
    listed = check_combination(driver="595.112.07", cuda="12.9.99", **asked)["findings"]
    levels = {finding["rule"]: finding["level"] for finding in listed}
    assert "PC-OS" not in levels
    # Between the oldest and the newest that are known, so NVIDIA has no such release.
    assert levels["CUDA-UNKNOWN"] == "error"
    assert list(facts.branches()) == sorted(facts.branches())


def test_of_two_overlays_the_last_one_counts(
    acme: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    (other / "runtime/etc/acme").mkdir(parents=True)
    (other / "runtime/etc/acme/banner").write_text("other\n")
    monkeypatch.setenv("KILN_OVERLAY", f"{acme}:{other}")
    uploaded = render.uploaded_files(al2023(load_recipes()))
    assert uploaded["runtime/etc/acme/banner"].is_relative_to(other)
    assert uploaded["provisioners/acme-baseline.sh"].is_relative_to(acme)


def test_a_component_in_python_reads_the_recipe(acme: Path) -> None:
    (acme / "components/acme-driver.py").write_text(MODULE)
    (acme / "provisioners/acme-driver.sh").write_text("#@ env ACME_DRIVER  required  x\n")
    row = al2023(load_recipes())
    step = components.get("acme-driver").for_recipe(row)
    assert step.env == {"ACME_DRIVER": row.driver}
    assert row.components.index("acme-driver") == row.components.index("acme-baseline") + 1


MODULE = """from kiln.components.component import Component
AFTER = "acme-baseline"

def environment(recipe):
    return {"ACME_DRIVER": recipe.driver}

COMPONENT = Component(name="acme-driver", what="the driver's name", environment=environment)
"""


# ------------------------------------------------------------------- mistakes

BASELINE = "components/acme-baseline.yaml"
MISTAKES = {
    # file, what is replaced, by what → what the message says
    "a key": (BASELINE, "env:", "enviroment:", "4:1: enviroment: "),
    "no place": (BASELINE, "after: tuning\n", "", "acme-baseline.yaml:1:1: after is missing"),
    "a place that is not": (BASELINE, "after: tuning", "after: tunning", "2: after: 'tunning'"),
    "after the last": (BASELINE, "after: tuning", "after: cleanup", "2: after: nothing is"),
    "a package": (BASELINE, "jq,", "jq; rm,", "3:11: packages.default.0: "),
    "a distribution": (BASELINE, "[jq, tmux]", "{al2024: [jq]}", "'al2024' is no distribution"),
    "a folder": ("provisionners/x.sh", "", "", "provisionners: an overlay has no provisionners"),
    "a script": ("provisioners/x.sh", "", "", "x.sh: no component runs x.sh"),
    "twice": ("components/tuning.yaml", "", "{what: a, after: kernel}", "'tuning' exists already"),
    "a check of ours": ("tests/ami/test_tuning.py", "", "", "test_tuning.py exists already"),
    "a check that is no Python": (
        "tests/ami/test_acme_baseline.py", "@pytest.mark.boot", "def x(:", "18: not valid Python: ",
    ),
    "a list of the lab's packages": ("lab/packages.yaml", "", "- jq\n", "1:1: must be a mapping"),
    "a distribution of the lab's packages": (
        "lab/packages.yaml", "al2:", "al3:", "1:1: 'al3': the lab passes on",
    ),
    "half a module": ("components/x.py", "", "\n", "x.py: it needs COMPONENT"),
    "a key of a fact": ("facts/drivers.yaml", "versions", "version", "3:5: branches.580.version: "),
    "a day": (
        "facts/drivers.yaml", "versions:\n      580.999.01: '2026-11-20'", "end_of_life: soon",
        "3:18: branches.580.end_of_life: 'soon' is not a day",
    ),
    "a GPU": (
        "facts/instances.yaml", "gpu: H100-80GB", "gpu: H100-80", "2:28: types.0.gpu: 'H100-80': "
        "there is no such GPU",
    ),
    "a driver of another branch": (
        "facts/drivers.yaml", "580.999.01:", "590.999.01:", "2:3: branches: 590.999.01",
    ),
    "a source": ("facts/drivers.yaml", "versions:", "source: lifecicle\n    versions:", "3:13: "),
    "a repository": (
        "facts/archives.yaml", "", "vendors:\n  CUDA_REPO_URL: {name: a/b}\n",
        "2:25: vendors.CUDA_REPO_URL.name: 'a/b' is not a repository's name such as nvidia-cuda",
    ),
    "a hash without a source": (
        "facts/checksums.yaml", "", "files:\n- url: https://a.example/{version}\n"
        f"  sha256: {{1.0: '{'0' * 64}', 1.1: '{'1' * 64}'}}\n  source: {{'1.0': https://a.example}}\n",
        "2:3: files.0: source: names no source of the hash of 1.1",
    ),
    "a table": ("facts/driver.yaml", "", "", "there is no table of facts driver.yaml"),
    "a stack": ("amis.yaml", "stack: acme,", "stack: acne,", "4:27: stack 'acne' is not among"),
}  # fmt: skip


@pytest.mark.parametrize("what", MISTAKES)
def test_a_mistake_is_one_message_with_the_overlays_file_and_line(acme: Path, what: str) -> None:
    file, old, new, message = MISTAKES[what]
    path = acme / file
    path.parent.mkdir(parents=True, exist_ok=True)
    text = path.read_text() if path.exists() else ""
    assert old in text
    path.write_bytes(
        new if isinstance(new, bytes) else (text.replace(old, new) if old else new).encode()
    )
    with pytest.raises(KilnError) as caught:
        load_recipes()
        for facts_file in (acme / "facts").iterdir():
            table(facts_file.stem)
        system.overlay_stand_ins()
    where = str(path if path.parent.name not in ("provisionners", "amis") else path.parent)
    assert caught.value.message.startswith(f"{where}:")
    assert message in caught.value.message
    assert caught.value.exit_status == 2


# What is replaced in the distribution of docs/add-a-distribution.md, by what → what is said.
WRONG_DISTRIBUTION = {
    "family": ("family: debian", "family: redhat", "3:13: distros.debian98.family: Input"),
    "no family": ("    family: debian\n", "", "3:5: distros.debian98: lacks family"),
    "no codename": ("    codename: trixie\n", "", "distros.debian98: lacks codename"),
    "a flavor": ("base: {", "bases: {", "7:7: distros.debian98.parents.bases"),
    "a kernel": ("default: linux-", "default: linus-", "10:7: distros.debian98.kernels"),
    "a proxy": ("proxy: 6.12.117", "proxy: 6.12.118", "proxy: '6.12.118+deb12-amd64'"),
    "a placeholder": (
        "latest/{deb_arch}", "latest/{debarch}",
        "7:29: distros.debian98.parents.base.ssm_parameter: unknown placeholder {debarch}",
    ),
    "a source": ("source: debian}", "source: debain}", "source: 'debain'"),
    "half a parent": ("{ssm_parameter: ", "{name: ", "7:13: distros.debian98.parents.base"),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG_DISTRIBUTION)
def test_a_mistake_in_a_distribution_is_one_message_with_its_line(acme: Path, what: str) -> None:
    old, new, message = WRONG_DISTRIBUTION[what]
    text = unknown_distribution.files()["facts/distros.yaml"]
    path = acme / "facts/distros.yaml"
    path.write_text(text)
    table("distros")
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(KilnError) as caught:
        load_recipes()
    assert caught.value.message.startswith(f"{path}:")
    assert message in caught.value.message
    assert caught.value.exit_status == 2


# A text with a `{…}` for which nothing is filled in, by table.
WRONG_PLACEHOLDERS = {
    "distros": (
        "package_snapshots:\n  ubuntu:\n    lines:\n    - deb https://a.example {codenam} main\n",
        "4:7: package_snapshots.ubuntu.lines.0: unknown placeholder {codenam}: "
        "did you mean 'codename'? Known: codename, snapshot",
    ),
    "archives": (
        "archives:\n- {when: {distro: al2}, name: x, kind: rpm, keys: epel-7, source: none,\n"
        "   url: 'https://a.example/{unam}'}\n",
        "3:9: archives.0.url: unknown placeholder {unam}: did you mean 'uname'?",
    ),
    "downloads": (
        "downloads:\n  GDRCOPY:\n  - {url: 'https://a.example/{version', source: none}\n",
        "3:11: downloads.GDRCOPY.0.url: 'https://a.example/{version': expected '}'",
    ),
    "packages": (
        "packages:\n  dcgm:\n  - {names: ['dcgm-{version!r}'], source: none}\n",
        "3:14: packages.dcgm.0.names.0: 'dcgm-{version!r}': write a placeholder as {arch}",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG_PLACEHOLDERS)
def test_a_wrong_placeholder_is_reported_where_the_overlay_has_it(acme: Path, name: str) -> None:
    text, message = WRONG_PLACEHOLDERS[name]
    path = acme / f"facts/{name}.yaml"
    path.write_text(text)
    with pytest.raises(KilnError) as caught:
        table(name)
    assert caught.value.message.startswith(f"{path}:{message.partition(chr(10))[0]}")
    assert message in str(caught.value)
    assert caught.value.exit_status == 2


def test_a_placeholder_that_the_component_has_no_value_for_is_named(acme: Path) -> None:
    path = acme / "facts/packages.yaml"
    path.write_text("packages:\n  kernel-tools:\n  - {names: ['x{module}'], source: none}\n")
    caches.forget()
    with pytest.raises(KilnError, match=r"kernel-tools: 'x\{module\}': there is no 'module'"):
        components.get("kernel").for_recipe(al2023(load_recipes()))


def test_a_wrong_placeholder_of_its_component_names_those_of_the_page(acme: Path) -> None:
    path = acme / BASELINE
    path.write_text(path.read_text() + "downloads: {ACME: 'https://a.example/{machine}'}\n")
    with pytest.raises(KilnError) as caught:
        components.names()
    message = caught.value.message
    assert message.startswith(f"{path}:5:19: downloads.ACME: unknown placeholder {{machine}}: ")
    known = message.rpartition("nown: ")[2].split(", ")
    (line,) = re.findall(r"^\| `downloads` \|.*In a URL (.*) are ", PAGE, re.MULTILINE)
    assert [name.strip("`{}") for name in line.split(", ")] == known
    assert sorted(re.findall(r"^\| `\{(\w+)\}`", PAGE, re.MULTILINE)) == known


def test_what_the_page_says_is_filled_in_for_a_processor_is(acme: Path) -> None:
    processors = facts.table("downloads")["processors"]
    for name in ("uname", "deb", "nvidia"):
        values = f"{processors['x86_64'][name]}, {processors['arm64'][name]}"
        assert re.search(rf"^\| `{{{name}}}` \| {values}\b", PAGE, re.MULTILINE)


@pytest.mark.parametrize("name", TABLES)
def test_our_tables_fit_their_models(name: str) -> None:
    def read(other: str) -> dict[str, Any]:
        return read_table(KNOWLEDGE / f"{other}.yaml")

    TABLES[name].model_validate(read(name), context={"whole": read(name), "read": read})


# ------------------------------------------------------------------- versions without quotes

# Facts in which a version stands without quotes, and where it is found: as it is written.
UNQUOTED = {
    "a kernel's series": (
        "distros", "distros: {al2023: {kernels: {entries: {6.20: {series: 6.20, source: ssm}}}}}",
        ("distros", "al2023", "kernels", "entries", "6.20", "series"), "6.20",
    ),
    "a driver": (
        "drivers", "branches: {580: {versions: {580.10: 2026-11-20}}}",
        ("branches", "580", "versions", "580.10"), "2026-11-20",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", UNQUOTED)
def test_a_version_without_quotes_is_the_text_that_is_written(acme: Path, what: str) -> None:
    name, text, path, value = UNQUOTED[what]
    (acme / f"facts/{name}.yaml").write_text(text)
    found = table(name)
    for key in path:
        found = found[key]
    assert found == value


def test_the_labs_package_of_a_whole_number_is_refused_with_its_line(acme: Path) -> None:
    path = acme / "lab/packages.yaml"
    path.write_text("al2023:\n  jq: 1.10\n  tmux: 3\n")
    with pytest.raises(KilnError) as caught:
        system.overlay_stand_ins()
    assert caught.value.message == (
        f"{path}:3:9: al2023.tmux: Input should be a valid string (it is 3); put it in quotes"
    )
    caches.forget()
    path.write_text("al2023:\n  jq: 1.10\n")
    assert system.overlay_stand_ins() == {"al2023": {"jq": "1.10"}}


# What a whole file of facts may be by mistake; TABLE is a key of the table.
WRONG_FILES = {
    "a list": "- 1\n",
    "a word": "word\n",
    "an empty value": "TABLE:\n",
    "a word for entries": "TABLE: word\n",
    "an unknown key": "TABLEx: 1\n",
    "lists in lists": "TABLE: [[]]\n",
    "an empty entry": "TABLE: [~]\n",
}


@pytest.mark.parametrize("what", WRONG_FILES)
def test_a_wrong_file_of_any_facts_is_one_message_with_its_line(tmp_path: Path, what: str) -> None:
    (tmp_path / "facts").mkdir()
    for name in TABLES:
        known = ours_of(KNOWLEDGE / f"{name}.yaml")
        key = next(
            key for key in TABLES[name].model_fields if isinstance(known.get(key), dict | list)
        )
        path = tmp_path / "facts" / f"{name}.yaml"
        text = WRONG_FILES[what].replace("TABLE", key)
        path.write_text(text, errors="surrogateescape")
        with pytest.raises(KilnError) as caught:
            with_overlay(known, name, tmp_path)
        assert caught.value.message.startswith(str(path))
        assert caught.value.exit_status == 2
        path.unlink()


@pytest.mark.parametrize("empty", ["", "# nothing yet\n"])
def test_an_empty_file_of_facts_changes_nothing(tmp_path: Path, empty: str) -> None:
    (tmp_path / "facts").mkdir()
    (tmp_path / "facts/efa.yaml").write_text(empty)
    known = ours_of(KNOWLEDGE / "efa.yaml")
    assert with_overlay(known, "efa", tmp_path) == known


@cache
def ours_of(path: Path) -> dict[str, Any]:
    return read_table(path)


def test_check_reads_facts_that_no_rule_asks_for(acme: Path) -> None:
    path = acme / "facts/archives.yaml"
    path.write_text("archives:\n- {name: epel, kind: zip}\n")
    caches.forget()
    with pytest.raises(KilnError, match=rf"{path}:2:"):
        check_answer({}, strict=False)


def test_an_empty_list_of_entries_takes_none_of_ours_away(acme: Path) -> None:
    (acme / "facts/instances.yaml").write_text("types: []\n")
    assert table("instances")["types"]


def test_a_link_to_a_file_and_one_of_an_editor_are_taken(acme: Path) -> None:
    (acme / "runtime/etc/acme/motd").symlink_to("banner")
    (acme / "provisioners/.#acme-baseline.sh").symlink_to("me@host.4711")
    uploaded = render.uploaded_files(al2023(load_recipes()))
    assert uploaded["runtime/etc/acme/motd"].read_text() == "Property of Acme. Access is logged.\n"


def test_a_missing_script_is_named_where_it_should_be(acme: Path) -> None:
    path = acme / "provisioners/acme-baseline.sh"
    path.unlink()
    with pytest.raises(KilnError, match=f"{path} does not exist"):
        render.render(al2023(load_recipes()))


def test_a_variable_that_the_script_does_not_declare_is_named_with_its_file(acme: Path) -> None:
    path = acme / "provisioners/acme-baseline.sh"
    path.write_text(path.read_text().replace("#@ env ACME_SITE ", "#@ env ACME_SIDE "))
    with pytest.raises(KilnError, match=rf"{path}:\d+: .*ACME_SITE"):
        render.render(al2023(load_recipes()))


def test_a_row_that_exists_already_names_the_other_file(acme: Path) -> None:
    (acme / "amis.yaml").write_text("amis:\n- {distro: al2023, stack: lts}\n")
    with pytest.raises(KilnError, match=r"amis\.yaml:2:3: .* exists already \(amis\.yaml:"):
        load_recipes()


def test_an_overlay_that_is_not_there(tmp_path: Path) -> None:
    environment = {**os.environ, "KILN_OVERLAY": str(tmp_path / "nowhere")}
    done = commands.invoke("list", env=environment)
    assert done.returncode == 2
    assert "KILN_OVERLAY names" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_setting_of_an_account_is_the_rows_own_or_its_files_or_ours(
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
