"""A provisioner's header declares its environment; a component gives exactly that."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from kiln import components
from kiln.base.errors import KilnError
from kiln.base.paths import PROVISIONERS
from kiln.compat import engine
from kiln.components import rendered
from kiln.matrix.load import load_recipes
from kiln.packer import render
from tests.unit.provisioners.machine import Machine

RECIPES = load_recipes()
WITH_CUDA = next(recipe for recipe in RECIPES if recipe.cuda)


@pytest.mark.parametrize(
    "lines",
    [
        ("#@ env CUDA_VERSION must it",),
        ("#@ download X required it", "#@ env X_URL optional it"),
        ("true", "#@ env X required it"),
    ],
)
def test_invalid_declaration_names_file_and_line(tmp_path: Path, lines: tuple[str, ...]) -> None:
    path = tmp_path / "x.sh"
    path.write_text("\n".join(["#!/usr/bin/env bash", *lines, ""]))
    with pytest.raises(KilnError, match=f"{path}:{len(lines) + 1}: ") as raised:
        rendered.declared(path)
    assert raised.value.exit_status == 2


def test_render_and_check_refuse_misspelled_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    real = components.get
    wrong = replace(real("cuda"), packages={"CUDA_PAKAGES": "cuda"})
    monkeypatch.setattr(components, "get", lambda name: wrong if name == "cuda" else real(name))
    with pytest.raises(KilnError, match=r"provisioners/cuda\.sh:1: .*CUDA_PAKAGES"):
        render.render(WITH_CUDA)
    found = [each for each in engine.check_recipe(WITH_CUDA) if each.rule == rendered.RULE]
    # One for the variable of the wrong name, one for the component's own.
    assert [each.file for each in found] == ["provisioners/cuda.sh"] * 2
    assert {each.rows for each in found} == {(WITH_CUDA.name,)}


def test_rows_give_scripts_what_they_declare() -> None:
    for recipe in RECIPES:
        for name in recipe.components:
            step = components.get(name).for_recipe(recipe)
            assert rendered.environment_problems(step) == [], recipe.name
    text = render.shared_files(components.everything())["build.pkr.hcl"]
    given = set(re.findall(r'"(KILN_\w+)=', text))
    assert {each.name for each in rendered.common().values() if each.required} <= given


@pytest.mark.parametrize(
    ("script", "given", "missing"),
    [
        ("cuda", {"CUDA_VERSION": "11.6.2", "CUDA_SERIES": ""}, "CUDA_SERIES CUDA_PACKAGES"),
        ("tuning", {"KILN_FAMILY": ""}, "KILN_FAMILY"),
        # Its one variable is optional.
        ("gpu-mig", {}, ""),
    ],
)
def test_script_stops_when_a_required_variable_is_missing(
    machine: Machine, script: str, given: dict[str, str], missing: str
) -> None:
    header = (PROVISIONERS / f"{script}.sh").read_text().partition("\nsource ")[0]
    copy = machine.root / f"{script}.sh"
    copy.write_text(
        f'{header}\nsource "$KILN_DIR/lib/kiln.sh"\necho "body ${{MIG_CONFIG-unset}}"\n'
    )
    done = subprocess.run(
        [machine.interpreter, str(copy)],
        env={**machine.environment, "KILN_COMPONENT": script, **given},
        capture_output=True,
        text=True,
        check=False,
    )
    expected = (1, "") if missing else (0, "body \n")
    assert (done.returncode, done.stdout) == expected
    if missing:
        assert f"missing or empty in the environment: {missing}\n" in done.stderr
