"""Rendered HCL: complete, reproducible, noticed when stale."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import hcl2
import pytest

from kiln import components
from kiln.base.errors import KilnError
from kiln.base.paths import ROOT
from kiln.base.recipe import Recipe
from kiln.components import Component, Download, environment
from kiln.matrix import load
from kiln.packer import hcl, program, render, template_values


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
        environment=lambda recipe: {
            "NCCL_VERSION": recipe.nccl,
            "ODD": "a ${b} \"c\" %{d} 'e'",
        },
        downloads=lambda recipe: (
            Download("NCCL", f"https://example.com/x/nccl-{recipe.nccl}.tar"),
        ),
        keys={"NCCL_KEY_FINGERPRINT": "efa"},
    )
    monkeypatch.setattr(components, "get", lambda name: made)
    # The real script declares other variables.
    monkeypatch.setattr(environment, "problems", lambda component, given: [])
    return made


def test_what_is_committed_is_what_the_matrix_says(recipes: list[Recipe]) -> None:
    assert render.stale(recipes) == []


def test_rendering_twice_gives_the_same(recipes: list[Recipe]) -> None:
    assert render.render(recipes[0]) == render.render(recipes[0])


def test_a_components_files_are_rendered_for_the_image(recipes: list[Recipe]) -> None:
    by_distro = {recipe.distro.id: render.render(recipe) for recipe in recipes if recipe.efa}
    settings = "files/etc/sysctl.d/60-kiln.conf"
    assert "vm.max_map_count = 524288\n" in by_distro["al2"][settings]
    # Only where libfabric cannot do without, and the distribution has not opened it already.
    assert "ptrace_scope = 0\n" in by_distro["ubuntu2204"][settings]
    assert "ptrace_scope" not in by_distro["al2"][settings]


def test_a_component_that_is_left_out_brings_no_files(recipes: list[Recipe]) -> None:
    rest = tuple(name for name in recipes[0].components if name != "tuning")
    without = render.render(replace(recipes[0], components=rest))
    assert not [path for path in without if path.endswith("60-kiln.conf")]


def test_a_download_that_no_recipe_field_names_the_version_of_tells_the_script(
    recipes: list[Recipe],
) -> None:
    debian = next(recipe for recipe in recipes if recipe.distro.id == "debian12")
    text = render.render(debian)[render.BUILD]
    (version,) = [d.version for d in components.get("ssm-agent").for_recipe(debian).downloads]
    assert f'"SSM_AGENT_VERSION={version}"' in text
    assert f"/SSMAgent/{version}/debian_amd64/amazon-ssm-agent.deb" in text


def test_both_packers_get_the_same_provisioners(recipes: list[Recipe]) -> None:
    files = render.render(recipes[0])
    new, old = hcl2.loads(files[render.BUILD]), hcl2.loads(files[program.BUILD_1_6])
    assert new["build"] == old["build"]
    assert new["locals"] == old["locals"]


def test_only_the_new_packer_is_told_what_the_old_one_refuses(recipes: list[Recipe]) -> None:
    files = render.render(recipes[0])
    for word in ("metadata_options", "imds_support", "required_version", "required_plugins"):
        assert word not in files[program.BUILD_1_6]
    assert "metadata_options" in files[render.BUILD]


def test_scripts_run_in_the_order_of_the_recipe(recipes: list[Recipe]) -> None:
    for recipe in recipes:
        text = render.render(recipe)[render.BUILD]
        places = [text.index(f"provisioners/{name}.sh") for name in recipe.components]
        assert places == sorted(places)


def test_the_step_after_a_reboot_waits_for_it(recipes: list[Recipe]) -> None:
    data = hcl2.loads(render.render(recipes[0])[render.BUILD])
    steps = [s for block in data["build"][0]["provisioner"] for s in block.values()]
    rebooting = [i for i, step in enumerate(steps) if step.get("expect_disconnect")]
    assert rebooting
    for index in rebooting:
        assert "pause_before" in steps[index + 1]
        assert "start_retry_timeout" in steps[index + 1]


def test_a_download_brings_its_url_and_its_hash(
    recipes: list[Recipe], one_component: Component, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = "https://example.com/x/nccl-2.12.7.tar"
    monkeypatch.setattr(template_values, "locked", lambda: {url: "ab12", "https://other": "cd34"})
    text = render.render(replace(recipes[0], components=("nccl",)))[render.BUILD]
    assert f'"NCCL_URL={url}",' in text
    assert (
        '"NCCL_SHA256=${lookup(var.sha256, "https://example.com/x/nccl-2.12.7.tar", "")}",' in text
    )
    assert f'    "{url}" = "ab12"\n' in text
    assert "cd34" not in text


def test_two_files_of_one_name_keep_their_own_hashes(
    recipes: list[Recipe], one_component: Component, monkeypatch: pytest.MonkeyPatch
) -> None:
    agents = ("https://a/amazon-cloudwatch-agent.rpm", "https://b/amazon-cloudwatch-agent.rpm")
    downloads = (Download("A", agents[0]), Download("B", agents[1]))
    twin = replace(one_component, downloads=lambda recipe: downloads)
    monkeypatch.setattr(components, "get", lambda name: twin)
    monkeypatch.setattr(template_values, "locked", lambda: dict(zip(agents, "xy", strict=True)))
    text = render.render(replace(recipes[0], components=("nccl",)))[render.BUILD]
    assert '"A_SHA256=${lookup(var.sha256, "https://a/amazon-cloudwatch-agent.rpm", "")}",' in text
    assert re.search(r'"https://a/amazon-cloudwatch-agent.rpm" += "x"\n', text)
    assert re.search(r'"https://b/amazon-cloudwatch-agent.rpm" += "y"\n', text)


def test_a_key_brings_its_fingerprint(recipes: list[Recipe], one_component: Component) -> None:
    text = render.render(replace(recipes[0], components=("nccl",)))[render.BUILD]
    assert '"NCCL_KEY_FINGERPRINT=${lookup(var.signing_keys, "efa", "")}",' in text
    assert hcl2.loads(text)["variable"]


def test_values_are_quoted_for_hcl(recipes: list[Recipe], one_component: Component) -> None:
    text = render.render(replace(recipes[0], components=("nccl",)))[render.BUILD]
    assert r""""ODD=a $${b} \"c\" %%{d} 'e'",""" in text


def test_a_missing_provisioner_is_named_with_its_path(recipes: list[Recipe]) -> None:
    ghost = replace(components.get("nccl"), name="ghost").for_recipe(recipes[0])
    with pytest.raises(KilnError, match=r"'ghost'.*provisioners/ghost\.sh does not exist") as info:
        template_values._require_provisioners(recipes[0], [ghost])
    assert info.value.exit_code == 2


def test_an_unknown_signing_key_is_named() -> None:
    with pytest.raises(KilnError, match=r"'nobody' is not in kiln/facts/knowledge/keys\.yaml"):
        template_values._fingerprints(["nobody"])


def test_what_the_machine_learns_is_the_recipe(recipes: list[Recipe]) -> None:
    told = json.loads(render.render(recipes[0])["files/etc/kiln/recipe.json"])
    assert told["driver"] == recipes[0].driver
    assert told["components"] == list(recipes[0].components)
    assert "row" not in told


def test_a_first_render_writes_everything_and_a_second_nothing(
    folder: Path, recipes: list[Recipe]
) -> None:
    assert all(line.endswith(": missing") for line in render.write_all(recipes[:2]))
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
    assert render.write_all(recipes[:2]) == []
    assert before == {p: p.stat().st_mtime_ns for p in folder.rglob("*") if p.is_file()}


def test_rendered_elsewhere_it_names_the_same_scripts_and_is_the_same_image(
    folder: Path, recipes: list[Recipe]
) -> None:
    here = render.digest(recipes[0])
    made = render.write(recipes[0], folder / recipes[0].name)
    text = (made / render.BUILD).read_text()
    scripts = re.findall(r'script += "(.+)"', text)
    assert len(scripts) > 10
    assert {(made / path).resolve().parent for path in scripts} == {ROOT / "provisioners"}
    assert all((made / path).is_file() for path in scripts)
    assert render.digest(recipes[0]) == here


def test_an_edited_a_lost_and_a_left_over_file_are_stale(
    folder: Path, recipes: list[Recipe]
) -> None:
    render.write_all(recipes[:2])
    name = recipes[0].name
    (folder / name / render.BUILD).write_text("# by hand\n")
    (folder / name / render.PLUGINS).unlink()
    (folder / name / "files" / "old.json").write_text("{}")
    assert render.stale(recipes[:2]) == [
        f"packer/{name}/build.pkr.hcl: differs from the matrix",
        f"packer/{name}/files/old.json: not rendered any more",
        f"packer/{name}/plugins.pkr.hcl: missing",
    ]
    render.write_all(recipes[:2])
    assert render.stale(recipes[:2]) == []


def test_the_folder_of_a_row_that_is_gone_is_stale_and_goes(
    folder: Path, recipes: list[Recipe]
) -> None:
    render.write_all(recipes[:2])
    gone, *kept = recipes[:2]
    assert render.stale(kept) == [f"packer/{gone.name}: no row of the matrix makes it"]
    render.write_all(kept)
    assert sorted(path.name for path in folder.iterdir()) == sorted(r.name for r in kept)


def test_what_render_did_not_write_stays(folder: Path, recipes: list[Recipe]) -> None:
    render.write_all(recipes[:2])
    notes = folder / recipes[0].name / "mine.auto.pkrvars.hcl"
    notes.write_text('region = "eu-west-1"\n')
    render.write_all(recipes[:2])
    render.write_all(recipes[1:2])
    assert notes.exists()


def test_the_digest_names_the_content(recipes: list[Recipe]) -> None:
    first = recipes[0]
    assert render.digest(first) == render.digest(first)
    assert len({render.digest(recipe) for recipe in recipes}) == len(recipes)
    assert render.digest(replace(first, nccl="2.12.12")) != render.digest(first)


@pytest.mark.parametrize("kind", ["provisioner", "library", "runtime"])
def test_the_digest_changes_with_every_file_that_is_baked_in(
    recipes: list[Recipe], kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = render.digest(recipes[0])
    changed = {
        "provisioner": ROOT / "provisioners" / f"{recipes[0].components[0]}.sh",
        "library": ROOT / "provisioners" / "lib" / "kiln.sh",
        "runtime": next(p for p in sorted((ROOT / "runtime").rglob("*")) if p.is_file()),
    }[kind]
    real = Path.read_bytes
    monkeypatch.setattr(
        Path, "read_bytes", lambda path: real(path) + (b"#" if path == changed else b"")
    )
    assert render.digest(recipes[0]) != before


def test_a_run_is_told_to_the_hcl_in_variables_it_has(recipes: list[Recipe]) -> None:
    told = render.variables(recipes[0], run_id="r1", git_commit="c", target="lab")
    declared = {
        name
        for block in hcl2.loads(render.render(recipes[0])[render.BUILD])["variable"]
        for name in block
    }
    assert {f'"{name}"' for name in told} <= declared


def test_hcl_text_reads_back_as_itself() -> None:
    odd = {"a": 'x "y" \\ z', "b-c": "tab\tnewline\n", "long key": "ü"}
    data = hcl2.loads(f"v = {hcl.mapping(odd, 0)}\n")
    assert [json.loads(value) for value in data["v"].values()] == list(odd.values())
