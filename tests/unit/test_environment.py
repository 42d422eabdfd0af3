"""A provisioner's header declares its environment; a component gives exactly that."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from test_provisioners import Machine

from kiln import components
from kiln.base.errors import KilnError
from kiln.base.paths import PROVISIONERS
from kiln.compat import engine
from kiln.components import environment
from kiln.matrix.load import load_recipes
from kiln.packer import render

SCRIPTS = sorted(PROVISIONERS.glob("*.sh"))


@pytest.fixture
def script(tmp_path: Path):
    def write(*header: str, below: str = "") -> Path:
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.sh"
        path.write_text("\n".join(["#!/usr/bin/env bash", *header, "true", below, ""]))
        return path

    return write


# ------------------------------------------------------------------- the header


def test_a_variable_is_declared_by_name_need_and_description(script):
    path = script("# What it does.", "#@ env  CUDA_VERSION  required  release: 11.6.2")
    assert environment.declared(path) == (
        environment.Variable("CUDA_VERSION", True, "release: 11.6.2", 3),
    )


def test_a_download_declares_its_url_and_an_optional_hash(script):
    path = script("#@ download EFA_KEY required key file")
    assert [(v.name, v.required) for v in environment.declared(path)] == [
        ("EFA_KEY_URL", True),
        ("EFA_KEY_SHA256", False),
    ]


@pytest.mark.parametrize(
    "line",
    [
        "#@ env CUDA_VERSION must it",
        "#@ env cuda required it",
        "#@ file CUDA required it",
        "#@ env CUDA_VERSION required",
        "#@env CUDA_VERSION required it",
    ],
)
def test_a_line_of_another_form_is_an_error_with_file_and_line(script, line):
    path = script("# What it does.", line)
    with pytest.raises(KilnError, match=f"{path}:3: not a declaration") as raised:
        environment.declared(path)
    assert raised.value.exit_status == 2


def test_a_name_declared_twice_is_an_error(script):
    path = script("#@ download X required it", "#@ env X_URL optional it")
    with pytest.raises(KilnError, match=":3: X_URL is declared twice, first in line 2"):
        environment.declared(path)


def test_a_declaration_below_the_header_is_an_error(script):
    with pytest.raises(KilnError, match="below the header"):
        environment.declared(script(below="#@ env X required it"))


# ------------------------------------------------------------------- before a launch


@pytest.fixture
def cuda() -> dict[str, str]:
    return {"CUDA_VERSION": "11.6.2", "CUDA_SERIES": "11.6", "CUDA_PACKAGES": "cuda=11.6.2"}


def test_what_the_script_declares_and_the_component_gives_is_not_a_finding(cuda):
    assert environment.environment_problems("cuda", cuda) == []


def test_a_misspelt_variable_is_an_error_that_names_the_right_one(cuda):
    cuda["CUDA_PAKAGES"] = cuda.pop("CUDA_PACKAGES")
    given, missing = environment.environment_problems("cuda", cuda)
    assert "CUDA_PAKAGES, which the script does not declare" in given.message
    assert "did you mean CUDA_PACKAGES?" in given.hint
    assert (missing.level, missing.file) == ("error", "provisioners/cuda.sh")
    line = (PROVISIONERS / "cuda.sh").read_text().splitlines()[missing.line - 1]
    assert line.startswith("#@ env CUDA_PACKAGES")


def test_variables_of_which_the_script_declares_none_are_one_message(changed, cuda):
    changed((PROVISIONERS / "cuda.sh").read_text(), "")
    (finding,) = environment.environment_problems("cuda", cuda)
    assert finding.message == (
        "component cuda gives CUDA_VERSION and CUDA_SERIES and CUDA_PACKAGES, which the script "
        "does not declare"
    )
    assert finding.hint.startswith("A new variable needs a line in the script's header: ")


def test_a_required_variable_that_is_empty_is_an_error(cuda):
    (finding,) = environment.environment_problems("cuda", {**cuda, "CUDA_SERIES": ""})
    assert "gives an empty CUDA_SERIES, which the script requires" in finding.message


def test_a_component_may_not_give_a_common_variable(cuda):
    (finding,) = environment.environment_problems("cuda", {**cuda, "KILN_DIR": "/tmp"})
    assert "KILN_DIR, which every script gets already" in finding.message


@pytest.fixture
def changed(tmp_path, monkeypatch):
    """Change the script of the component cuda: old text → new."""

    def change(old: str, new: str) -> Path:
        text = (PROVISIONERS / "cuda.sh").read_text()
        assert old in text
        path = tmp_path / "cuda.sh"
        path.write_text(text.replace(old, new, 1))
        monkeypatch.setattr(
            environment,
            "provisioner_file",
            lambda name: path if name == "cuda" else PROVISIONERS / f"{name}.sh",
        )
        return path

    return change


def test_an_optional_variable_that_no_row_is_given_is_a_warning_at_its_line(changed, cuda):
    changed("#@ env CUDA_SERIES", "#@ env CUDA_FOO optional nothing\n#@ env CUDA_SERIES")
    (finding,) = environment.environment_problems("cuda", cuda)
    assert (finding.level, finding.line) == ("warning", 5)
    assert "component cuda never gives CUDA_FOO" in finding.message


def test_an_optional_variable_that_other_rows_are_given_is_not_a_finding():
    recipe = next(recipe for recipe in load_recipes() if recipe.driver_source == "repo")
    given = environment.component_variables(components.get("nvidia-driver").for_recipe(recipe))
    assert "NVIDIA_DRIVER_URL" not in given
    assert environment.environment_problems("nvidia-driver", given) == []


@pytest.fixture
def misspelt(monkeypatch):
    """The component cuda gives CUDA_PAKAGES."""
    good = components.get("cuda")

    def misspell(recipe):
        variables = good.environment(recipe)
        return {name.replace("PACKAGES", "PAKAGES"): text for name, text in variables.items()}

    real = components.get
    monkeypatch.setattr(
        components,
        "get",
        lambda name: replace(good, environment=misspell) if name == "cuda" else real(name),
    )


def test_render_refuses_a_component_whose_script_declares_other_variables(misspelt):
    with pytest.raises(KilnError, match=r"provisioners/cuda\.sh:1: .*CUDA_PAKAGES") as raised:
        render.render(next(recipe for recipe in load_recipes() if recipe.cuda))
    assert raised.value.exit_status == 2


def test_check_finds_it_too_at_the_scripts_line(misspelt):
    recipe = next(recipe for recipe in load_recipes() if recipe.cuda)
    result = [
        finding for finding in engine.check_recipe(recipe) if finding.rule == environment.RULE
    ]
    assert {finding.file for finding in result} == {"provisioners/cuda.sh"}
    assert {finding.rows for finding in result} == {(recipe.name,)}


@pytest.mark.parametrize("recipe", load_recipes(), ids=lambda recipe: recipe.name)
def test_each_row_gives_its_scripts_what_they_declare(recipe):
    for name in recipe.components:
        given = environment.component_variables(components.get(name).for_recipe(recipe))
        assert environment.environment_problems(name, given) == []


def test_the_build_gives_every_script_the_common_variables():
    given = set(
        re.findall(
            r'^ *"(KILN_\w+)=',
            render.shared_files(components.everything())["build.pkr.hcl"],
            re.MULTILINE,
        )
    )
    required = {variable.name for variable in environment.common() if variable.required}
    # A script sets its own name.
    assert required - {"KILN_COMPONENT"} <= given


# ------------------------------------------------------------------- scripts and headers


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_script_reads_what_it_declares(path):
    text = path.read_text()
    for variable in environment.declared(path):
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
        env={**machine.environment, **given},
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
    required = [v.name for v in environment.declared(path) if v.required]
    given = dict.fromkeys(required, "x")
    assert run(machine, path, **given).returncode == 0
    for name in required:
        done = run(machine, path, **{**given, name: ""})
        assert f"missing or empty in the environment: {name}\n" in done.stderr


def test_check_finds_a_component_that_the_recipes_archive_does_not_have():
    row = next(recipe for recipe in load_recipes() if recipe.driver_source == "distro")
    recipe = replace(row, components=(*row.components, "nvidia-imex"))
    (finding,) = [result for result in engine.check_recipe(recipe) if result.level == "error"]
    assert "no package of nvidia-imex" in finding.message
    assert (finding.file, finding.line) == (recipe.row.file, recipe.row.line)
