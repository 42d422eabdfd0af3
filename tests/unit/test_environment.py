"""A provisioner's header declares its environment; a component gives exactly that."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from test_provisioners import Machine

from kiln import components
from kiln.base.errors import Finding, KilnError
from kiln.base.paths import PROVISIONERS
from kiln.compat import engine
from kiln.components import rendered
from kiln.matrix.load import load_recipes
from kiln.packer import render

SCRIPTS = sorted(PROVISIONERS.glob("*.sh"))
RECIPES = load_recipes()


# ------------------------------------------------------------------- the header


def header(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / f"{len(list(tmp_path.iterdir()))}.sh"
    path.write_text("\n".join(["#!/usr/bin/env bash", *lines, ""]))
    return path


def test_header_declares_variables_and_downloads(tmp_path):
    lines = ("#@ env  CUDA_VERSION  required  release: 11.6.2", "#@ download KEY optional key file")
    declared = rendered.declared(header(tmp_path, "# What it does.", *lines, "true")).values()
    assert [(each.name, each.required, each.line) for each in declared] == [
        ("CUDA_VERSION", True, 3),
        ("KEY_URL", False, 4),
        ("KEY_SHA256", False, 4),
    ]


@pytest.mark.parametrize(
    "lines",
    [
        ("#@ env CUDA_VERSION must it",),
        ("#@ env cuda required it",),
        ("#@ file CUDA required it",),
        ("#@ env CUDA_VERSION required",),
        ("#@env CUDA_VERSION required it",),
        ("#@ download X required it", "#@ env X_URL optional it"),
        ("true", "#@ env X required it"),
    ],
)
def test_invalid_declaration_is_an_error_with_file_and_line(tmp_path, lines):
    path = header(tmp_path, *lines)
    with pytest.raises(KilnError, match=f"{path}:{len(lines) + 1}: not a declaration") as raised:
        rendered.declared(path)
    assert raised.value.exit_status == 2


# ------------------------------------------------------------------- before a launch


def cuda(**changes: str) -> list[Finding]:
    """The findings on the component cuda with other variables; an empty one is missing."""
    row = next(recipe for recipe in RECIPES if recipe.cuda)
    step = components.get("cuda").for_recipe(row)
    env = {name: text for name, text in {**step.env, **changes}.items() if text != "-"}
    return rendered.environment_problems(replace(step, env=env))


def test_misspelled_variable_names_the_right_one():
    given, missing = cuda(CUDA_PACKAGES="-", CUDA_PAKAGES="cuda=11.6.2")
    assert "gives CUDA_PAKAGES, which the script does not declare" in given.message
    assert (missing.level, missing.file) == ("error", "provisioners/cuda.sh")
    line = (PROVISIONERS / "cuda.sh").read_text().splitlines()[missing.line - 1]
    assert line.startswith("#@ env CUDA_PACKAGES")


def test_empty_required_variable_and_a_common_one_are_errors():
    (empty,) = cuda(CUDA_SERIES="")
    assert "does not give CUDA_SERIES, which the script requires" in empty.message
    (common,) = cuda(KILN_DIR="/tmp")
    assert "KILN_DIR, which the script does not declare" in common.message


@pytest.fixture
def misspelt(monkeypatch):
    """The component cuda gives CUDA_PAKAGES."""
    real = components.get
    wrong = replace(real("cuda"), packages={"CUDA_PAKAGES": "cuda"})
    monkeypatch.setattr(components, "get", lambda name: wrong if name == "cuda" else real(name))


def test_render_and_check_refuse_a_misspelled_variable(misspelt):
    recipe = next(recipe for recipe in RECIPES if recipe.cuda)
    with pytest.raises(KilnError, match=r"provisioners/cuda\.sh:1: .*CUDA_PAKAGES") as raised:
        render.render(recipe)
    assert raised.value.exit_status == 2
    found = [item for item in engine.check_recipe(recipe) if item.rule == rendered.RULE]
    assert {finding.file for finding in found} == {"provisioners/cuda.sh"}
    assert {finding.rows for finding in found} == {(recipe.name,)}


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
def test_each_row_gives_its_scripts_what_they_declare(recipe):
    for name in recipe.components:
        step = components.get(name).for_recipe(recipe)
        assert rendered.environment_problems(step) == []


def test_build_gives_every_script_the_common_variables():
    text = render.shared_files(components.everything())["build.pkr.hcl"]
    given = set(re.findall(r'"(KILN_\w+)=', text))
    required = {each.name for each in rendered.common().values() if each.required}
    assert required <= given


# ------------------------------------------------------------------- scripts and headers


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_script_reads_what_it_declares(path):
    text = path.read_text()
    for variable in rendered.declared(path).values():
        name = re.sub("_(URL|SHA256)$", "", variable.name)
        assert len(re.findall(rf"\b{name}(_|\b)", text)) > 1, f"{variable.name} is not read"


# ------------------------------------------------------------------- at bake time


def run(machine: Machine, path: Path, **given: str) -> subprocess.CompletedProcess[str]:
    """A script with that environment; one that goes on past its header prints `body`."""
    text = path.read_text().partition("\nsource ")[0]
    copy = machine.root / path.name
    copy.write_text(f'{text}\nsource "$KILN_DIR/lib/kiln.sh"\necho "body ${{MIG_CONFIG-unset}}"\n')
    return subprocess.run(
        [machine.interpreter, str(copy)],
        env={**machine.environment, "KILN_COMPONENT": path.stem, **given},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_a_script_stops_with_one_message_when_required_variables_are_missing(machine):
    done = run(machine, PROVISIONERS / "cuda.sh", CUDA_VERSION="11.6.2", CUDA_SERIES="")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines()[:2] == [
        "kiln: cuda: ERROR: missing or empty in the environment: CUDA_SERIES CUDA_PACKAGES",
        "kiln: cuda:   the script's header requires it; the component must give it",
    ]


def test_an_optional_variable_that_is_missing_is_empty(machine):
    done = run(machine, PROVISIONERS / "gpu-mig.sh")
    assert (done.returncode, done.stdout, done.stderr) == (0, "body \n", "")


def test_a_common_variable_that_is_missing_is_named(machine):
    machine.environment.pop("KILN_FAMILY")
    done = run(machine, PROVISIONERS / "tuning.sh")
    assert done.returncode == 1
    assert "kiln: tuning: ERROR: missing or empty in the environment: KILN_FAMILY" in done.stderr


# hygiene.sh does not source the library.
WITH_LIBRARY = [path for path in SCRIPTS if path.stem != "hygiene"]


@pytest.mark.parametrize("path", WITH_LIBRARY, ids=lambda path: path.stem)
def test_bash_reads_the_same_header_as_the_pipeline(machine, path):
    required = [v.name for v in rendered.declared(path).values() if v.required]
    given = dict.fromkeys(required, "x")
    assert run(machine, path, **given).returncode == 0
    for name in required:
        done = run(machine, path, **{**given, name: ""})
        assert f"missing or empty in the environment: {name}\n" in done.stderr


def test_check_finds_a_component_that_the_recipes_archive_does_not_have():
    row = next(recipe for recipe in load_recipes() if recipe.driver_source == "distro")
    recipe = row.changed(components=(*row.components, "nvidia-imex"))
    (finding,) = [result for result in engine.check_recipe(recipe) if result.level == "error"]
    assert "no package of nvidia-imex" in finding.message
    assert (finding.file, finding.line) == (recipe.row.file, recipe.row.line)
