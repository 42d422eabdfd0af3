"""Rendered HCL: complete, reproducible, noticed when stale."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import hcl2
import pytest

from kiln import components
from kiln.base import hcl
from kiln.base.errors import KilnError
from kiln.base.paths import ROOT
from kiln.base.recipe import Recipe
from kiln.components import Component, Download, environment
from kiln.matrix import load
from kiln.packer import render, template_values, uploads
from kiln.packer.digest import digested_files, identity_variables, recipe_digest
from kiln.packer.folders import write_all, write_folders, write_inputs
from kiln.packer.policy import read_hcl
from kiln.packer.staleness import stale_files


@pytest.fixture(scope="module")
def recipes() -> list[Recipe]:
    return load.load_recipes()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A `packer/` of its own."""
    monkeypatch.setenv("KILN_PACKER_DIR", str(tmp_path / "packer"))
    return tmp_path / "packer"


@pytest.fixture
def one_component(monkeypatch: pytest.MonkeyPatch) -> Iterator[Component]:
    """The NCCL component with a download and a key, whatever the real one has."""
    made = replace(
        components.get("nccl"),
        environment=lambda recipe: {"ODD": "a ${b} \"c\" %{d} 'e'"},
        downloads=lambda recipe: (
            Download("NCCL", f"https://example.com/x/nccl-{recipe.nccl}.tar"),
        ),
        keys={"NCCL_KEY_FINGERPRINT": "efa"},
    )
    monkeypatch.setattr(components, "get", lambda name: made)
    # The real script declares other variables.
    monkeypatch.setattr(environment, "environment_problems", lambda step: [])
    return made


def own(recipe: Recipe) -> dict[str, Any]:
    """The components in the recipe's own HCL."""
    (block,) = read_hcl(render.render_files(recipe)[render.RECIPE])["locals"]
    return dict(block["components"])


def read(folder: Path) -> dict[str, str]:
    """The HCL files that Packer reads in a folder, by the file that a link leads to."""
    return {str(path.resolve()): path.read_text() for path in folder.glob("*.pkr.hcl")}


def steps() -> list[tuple[str, dict[str, Any]]]:
    """Type and attributes of every provisioner, in order."""
    (build,) = read_hcl(render.shared()["build.pkr.hcl"])["build"]
    return [(kind, step[kind]) for step in build["provisioner"] for kind in step]


def test_what_is_committed_is_what_the_matrix_says(recipes: list[Recipe]) -> None:
    assert stale_files(recipes) == []


def test_rendering_twice_gives_the_same(recipes: list[Recipe]) -> None:
    assert render.render_files(recipes[0]) == render.render_files(recipes[0])


def test_a_components_files_are_rendered_for_the_image(recipes: list[Recipe]) -> None:
    by_distro = {recipe.distro.id: render.render_files(recipe) for recipe in recipes if recipe.efa}
    settings = "files/etc/sysctl.d/60-kiln.conf"
    assert "vm.max_map_count = 1048576\n" in by_distro["al2"][settings]
    # Only where libfabric cannot do without, and the distribution has not opened it already.
    assert "ptrace_scope = 0\n" in by_distro["ubuntu2204"][settings]
    assert "ptrace_scope" not in by_distro["al2"][settings]


def test_a_component_that_is_left_out_brings_no_files(recipes: list[Recipe]) -> None:
    rest = tuple(name for name in recipes[0].components if name != "tuning")
    without = render.render_files(recipes[0].changed(components=rest))
    assert not [path for path in without if path.endswith("60-kiln.conf")]


def test_a_download_that_no_recipe_field_names_the_version_of_tells_the_script(
    recipes: list[Recipe],
) -> None:
    debian = next(recipe for recipe in recipes if recipe.distro.id == "debian12")
    agent = own(debian)["ssm-agent"]
    (version,) = [d.version for d in components.get("ssm-agent").for_recipe(debian).downloads]
    assert agent["env"]["SSM_AGENT_VERSION"] == version
    assert f"/SSMAgent/{version}/debian_amd64/" in agent["downloads"]["SSM_AGENT"]


def test_both_packers_get_the_same_but_for_the_builder(
    recipes: list[Recipe], tmp_path: Path
) -> None:
    new = write_inputs(recipes[0], tmp_path)
    texts, old = read(new), read(new / "packer-1.6")
    assert {Path(file).name for file in texts.keys() - old.keys()} == {
        "plugins.pkr.hcl",
        "source.pkr.hcl",
    }
    assert {Path(file).name for file in old.keys() - texts.keys()} == {"source.pkr.hcl"}
    for word in ("metadata_options", "imds_support", "required_version", "required_plugins {"):
        assert word in "".join(texts.values())
        assert word not in "".join(old.values())


def test_every_row_has_the_same_provisioners_in_bake_order() -> None:
    scripts = [Path(step["script"]).stem for _, step in steps() if "script" in step]
    assert scripts == components.names()


def test_a_provisioner_runs_only_where_the_row_has_its_component() -> None:
    for _, attributes in steps():
        if "script" in attributes:
            name = Path(attributes["script"]).stem
            assert attributes["only"] == f'${{lookup(local.runs_on, "{name}", local.nowhere)}}'
            environment = f'${{lookup(local.environment_of, "{name}", [])}}'
            assert attributes["environment_vars"] == environment


def test_packer_leaves_a_provisioner_five_minutes_after_its_own_limit() -> None:
    timeouts = {
        Path(attributes["script"]).stem: attributes["timeout"]
        for _, attributes in steps()
        if "script" in attributes
    }
    assert timeouts == {
        name: f'${{lookup(local.time_limit_of, "{name}", local.time_limit)}}5m'
        for name in components.names()
    }


def test_a_rows_own_file_lists_its_components(recipes: list[Recipe]) -> None:
    for recipe in recipes:
        assert tuple(own(recipe)) == recipe.components


def test_the_step_after_a_reboot_waits_for_it() -> None:
    every = [attributes for _, attributes in steps()]
    rebooting = [i for i, step in enumerate(every) if step.get("expect_disconnect")]
    assert rebooting
    for index in rebooting:
        assert "pause_before" in every[index + 1]
        assert "start_retry_timeout" in every[index + 1]
        assert every[index + 1]["only"] == every[index]["only"]


def test_a_download_brings_its_url_and_all_rows_share_its_hash(
    recipes: list[Recipe], one_component: Component, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = "https://example.com/x/nccl-2.12.7.tar"
    monkeypatch.setattr(template_values, "locked", lambda: {url: "ab12"})
    assert own(recipes[0].changed(components=("nccl",)))["nccl"]["downloads"] == {"NCCL": url}
    assert f'    "{url}" = "ab12"\n' in render.shared()["variables.pkr.hcl"]


def test_only_a_hash_that_the_recipe_downloads_by_changes_its_digest(
    recipes: list[Recipe], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(template_values, "locked", dict)
    before = recipe_digest(recipes[0])
    monkeypatch.setattr(template_values, "locked", lambda: {"https://other": "cd34"})
    assert recipe_digest(recipes[0]) == before
    urls = [d.url for c in template_values.filled(recipes[0]) for d in c.downloads]
    monkeypatch.setattr(template_values, "locked", lambda: {urls[0]: "ab12"})
    assert recipe_digest(recipes[0]) != before


def test_two_files_of_one_name_keep_their_own_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    agents = ("https://a/amazon-cloudwatch-agent.rpm", "https://b/amazon-cloudwatch-agent.rpm")
    monkeypatch.setattr(template_values, "locked", lambda: dict(zip(agents, "xy", strict=True)))
    text = render.shared()["variables.pkr.hcl"]
    assert f'"{agents[0]}" = "x"\n' in text
    assert f'"{agents[1]}" = "y"\n' in text


def test_a_key_is_named_and_all_rows_share_its_fingerprint(
    recipes: list[Recipe], one_component: Component
) -> None:
    nccl = own(recipes[0].changed(components=("nccl",)))["nccl"]
    assert nccl["keys"] == {"NCCL_KEY_FINGERPRINT": "efa"}
    known = template_values.fingerprints(components.everything())
    assert '"efa"' in render.shared()["variables.pkr.hcl"]
    assert known["efa"] in render.shared()["variables.pkr.hcl"]


def test_values_are_quoted_for_hcl(recipes: list[Recipe], one_component: Component) -> None:
    text = render.render_files(recipes[0].changed(components=("nccl",)))[render.RECIPE]
    assert r'= "a \u0024{b} \"c\" \u0025{d} ' in text


def test_a_missing_provisioner_is_named_with_its_path(
    recipes: list[Recipe], monkeypatch: pytest.MonkeyPatch
) -> None:
    ghost = replace(components.get("nccl"), name="ghost")
    monkeypatch.setattr(components, "get", lambda name: ghost)
    with pytest.raises(KilnError, match=r"'ghost'.*provisioners/ghost\.sh does not exist") as info:
        render.render_files(recipes[0].changed(components=("ghost",)))
    assert info.value.exit_status == 2


def test_an_unknown_signing_key_is_named() -> None:
    with pytest.raises(KilnError, match=r"'nobody' is not in kiln/facts/knowledge/keys\.yaml"):
        template_values.fingerprints([replace(components.get("nccl"), keys={"X": "nobody"})])


def test_what_the_machine_learns_is_the_recipe(recipes: list[Recipe]) -> None:
    shipped = json.loads(render.render_files(recipes[0])["files/etc/kiln/recipe.json"])
    assert shipped["driver"] == recipes[0].driver
    assert shipped["components"] == list(recipes[0].components)
    assert "row" not in shipped


def test_a_first_render_writes_everything_and_a_second_nothing(
    folder: Path, recipes: list[Recipe]
) -> None:
    assert all(line.startswith("wrote") for line in write_all(recipes[:2]))
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
    assert write_all(recipes[:2]) == []
    assert before == {p: p.stat().st_mtime_ns for p in folder.rglob("*") if p.is_file()}


def test_rendered_elsewhere_it_is_the_same_image(folder: Path, recipes: list[Recipe]) -> None:
    here = recipe_digest(recipes[0])
    write_folders(recipes[:1])
    assert recipe_digest(recipes[0]) == here


def test_every_file_that_the_hcl_uploads_is_in_the_digest(recipes: list[Recipe]) -> None:
    for recipe in recipes:
        digested = digested_files(recipe)
        sent = uploaded(recipe)
        assert {path.parts[0] for path in sent} >= {"packer", "provisioners", "runtime"}
        assert [path for path in sent if path.as_posix() not in digested] == []


def uploaded(recipe: Recipe) -> list[Path]:
    """The files in the checkout that Packer sends to the build instance, as the HCL names them."""
    named = []
    for kind, attributes in steps():
        if kind == "file":
            named += attributes["sources"]
        elif Path(attributes.get("script", "")).stem in recipe.components:
            named.append(attributes["script"])
    files = ROOT / "packer" / recipe.line / "files"
    places = [
        Path(name.replace("${local.checkout}", str(ROOT)).replace("${local.files}", str(files)))
        for name in named
    ]
    every = [file for path in places for file in [path, *path.rglob("*")] if file.is_file()]
    return [f.resolve().relative_to(ROOT) for f in every if "__pycache__" not in f.parts]


def test_compiled_python_is_not_baked(
    recipes: list[Recipe], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in ("runtime/opt/tool.py", "runtime/opt/__pycache__/tool.pyc"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    monkeypatch.setattr(uploads, "ROOT", tmp_path)
    assert list(uploads.uploaded_files(recipes[0].changed(components=()))) == [
        "runtime/opt/tool.py"
    ]


def test_an_edited_a_lost_and_a_left_over_file_are_stale(
    folder: Path, recipes: list[Recipe]
) -> None:
    write_all(recipes[:2])
    line = recipes[0].line
    (folder / line / render.RECIPE).write_text("# by hand\n")
    (folder / line / "plugins.pkr.hcl").unlink()
    (folder / line / "files" / "old.json").write_text("{}")
    (folder / "shared" / "old.pkr.hcl").write_text("")
    assert stale_files(recipes[:2]) == [
        f"{folder}/{line}/files/old.json: not rendered any more",
        f"{folder}/{line}/plugins.pkr.hcl: missing",
        f"{folder}/{line}/recipe.pkr.hcl: differs from the matrix",
        f"{folder}/shared/old.pkr.hcl: not rendered any more",
    ]
    write_all(recipes[:2])
    assert stale_files(recipes[:2]) == []


@pytest.mark.parametrize("end", [b"\xff\n", b"\r\n"], ids=["not UTF-8", "another line end"])
def test_a_file_of_other_bytes_is_stale_and_written_anew(
    folder: Path, recipes: list[Recipe], end: bytes
) -> None:
    write_all(recipes[:1])
    file = folder / recipes[0].line / render.RECIPE
    whole = file.read_bytes()
    file.write_bytes(whole[:-1] + end)
    assert len(stale_files(recipes[:1])) == 1
    write_all(recipes[:1])
    assert file.read_bytes() == whole


def test_a_folder_in_a_files_place_is_named_and_stays(folder: Path, recipes: list[Recipe]) -> None:
    own = folder / recipes[0].line / render.RECIPE / "notes"
    own.mkdir(parents=True)
    with pytest.raises(KilnError, match="is in the way: a file belongs there") as refused:
        write_all(recipes[:1])
    assert refused.value.exit_status == 2
    assert str(own.parent) in refused.value.message
    assert list((folder / recipes[0].line).iterdir()) == [own.parent]


@pytest.mark.parametrize("whose", ["a row's", "all rows'"])
def test_a_file_in_a_folders_place_is_named_and_stays(
    folder: Path, recipes: list[Recipe], whose: str
) -> None:
    own = folder / recipes[0].line if whose == "a row's" else folder
    shutil.rmtree(folder, ignore_errors=True)
    own.parent.mkdir(parents=True, exist_ok=True)
    own.write_text("mine")
    with pytest.raises(KilnError, match="is in the way: a folder belongs there") as refused:
        write_all(recipes[:1])
    assert refused.value.exit_status == 2
    assert own.read_text() == "mine"


@pytest.mark.parametrize("text", ["[]", "{}", '{"name": []}', "no JSON"])
def test_an_old_folder_whose_recipe_cannot_be_read_goes(
    folder: Path, recipes: list[Recipe], text: str
) -> None:
    old = folder / "gone-base-x86_64" / render.RECIPE_JSON
    old.parent.mkdir(parents=True)
    old.write_text(text)
    assert f"removed  {folder}/gone-base-x86_64" in write_all(recipes[:1])
    assert not old.exists()


def test_a_copy_in_the_place_of_a_link_is_stale_and_what_it_led_to_is_kept(
    folder: Path, recipes: list[Recipe]
) -> None:
    write_all(recipes[:1])
    link = folder / recipes[0].line / "build.pkr.hcl"
    text = link.read_text()
    link.unlink()
    link.write_text(text)
    (folder / recipes[0].line / render.RECIPE).unlink()
    (folder / recipes[0].line / render.RECIPE).symlink_to("../shared/build.pkr.hcl")
    assert len(stale_files(recipes[:1])) == 2
    write_all(recipes[:1])
    assert link.is_symlink()
    assert (folder / "shared" / "build.pkr.hcl").read_text() == text
    assert stale_files(recipes[:1]) == []


def test_the_folders_of_other_rows_do_not_make_a_row_stale(
    folder: Path, recipes: list[Recipe]
) -> None:
    write_all(recipes[:2])
    assert stale_files(recipes[:1], orphans=False) == []


def test_a_folder_of_the_old_layout_goes(folder: Path, recipes: list[Recipe]) -> None:
    old = folder / recipes[0].name
    for path in ("build.pkr.hcl", "plugins.pkr.hcl", "packer-1.6/build.pkr.hcl", "files/etc/a"):
        (old / path).parent.mkdir(parents=True, exist_ok=True)
        (old / path).touch()
    assert f"{folder}/{recipes[0].name}: no row of the matrix makes it" in stale_files(recipes[:1])
    write_all(recipes[:1])
    assert not old.exists()


def test_the_folder_of_a_row_that_is_gone_is_stale_and_goes(
    folder: Path, recipes: list[Recipe]
) -> None:
    write_all(recipes[:2])
    gone, *kept = recipes[:2]
    assert stale_files(kept) == [f"{folder}/{gone.line}: no row of the matrix makes it"]
    write_all(kept)
    assert {path.name for path in folder.iterdir()} == {"shared", *(r.line for r in kept)}


def test_what_render_did_not_write_stays(folder: Path, recipes: list[Recipe]) -> None:
    write_all(recipes[:2])
    notes = folder / recipes[0].line / "mine.auto.pkrvars.hcl"
    notes.write_text('region = "eu-west-1"\n')
    write_all(recipes[:2])
    write_all(recipes[1:2])
    assert notes.exists()


def test_the_digest_names_the_content(recipes: list[Recipe]) -> None:
    first = recipes[0]
    assert recipe_digest(first) == recipe_digest(first)
    assert len({recipe_digest(recipe) for recipe in recipes}) == len(recipes)
    assert recipe_digest(first.changed(nccl="2.12.12")) != recipe_digest(first)


@pytest.mark.parametrize("kind", ["provisioner", "library", "runtime"])
def test_the_digest_changes_with_every_file_that_is_baked_in(
    recipes: list[Recipe], kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = recipe_digest(recipes[0])
    changed = {
        "provisioner": ROOT / "provisioners" / f"{recipes[0].components[0]}.sh",
        "library": ROOT / "provisioners" / "lib" / "kiln.sh",
        "runtime": next(p for p in sorted((ROOT / "runtime").rglob("*")) if p.is_file()),
    }[kind]
    real = Path.read_bytes
    monkeypatch.setattr(
        Path, "read_bytes", lambda path: real(path) + (b"#" if path == changed else b"")
    )
    assert recipe_digest(recipes[0]) != before


def test_a_run_is_told_to_the_hcl_in_variables_it_has() -> None:
    given = identity_variables(
        run_id="r1", git_commit="c", target="lab", recipe_digest="d", input_digest="i"
    )
    variables = read_hcl(render.shared()["variables.pkr.hcl"])
    assert set(given) <= {name for block in variables["variable"] for name in block}


def test_a_new_driver_version_is_a_change_of_a_few_lines_per_row(
    folder: Path, recipes: list[Recipe]
) -> None:
    lts = [recipe for recipe in recipes if recipe.stack == "lts"]
    assert len(lts) > 5
    write_all(lts)
    git = ["git", "-C", str(folder), "-c", "user.name=t", "-c", "user.email=t@example.com"]
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "before"]):
        subprocess.run([*git, *command], check=True)
    newer = [
        r.changed(driver="580.999.01", name=r.name.replace(r.driver, "580.999.01")) for r in lts
    ]
    write_all(newer)
    subprocess.run([*git, "add", "-A"], check=True)
    counted = subprocess.run(
        [*git, "diff", "--cached", "--numstat"], capture_output=True, text=True, check=True
    ).stdout
    added = {line.split("\t")[2]: int(line.split("\t")[0]) for line in counted.splitlines()}
    assert {path.split("/", 1)[1] for path in added} == {render.RECIPE, render.RECIPE_JSON}
    assert sum(added.values()) <= 7 * len(lts)


def test_hcl_text_reads_back_as_itself() -> None:
    odd = {"a": 'x "y" \\ z', "b-c": "tab\tnewline\n", "long key": "ü", "d": {"e": {}, "f": ["g"]}}
    data = hcl2.loads(f"v = {hcl.value(odd)}\n")
    texts = [json.loads(data["v"][f'"{name}"']) for name in ("a", "b-c", "long key")]
    assert texts == [odd["a"], odd["b-c"], odd["long key"]]
    assert data["v"]['"d"'] == {"e": {}, "f": ['"g"']}
