"""The corpus of bad inputs: each ends with its exit status and words, and none with a traceback.

Every fourth of them, in the order of their names, is tried here. All of them take 24 s of CPU:
KILN_BAD_INPUTS=all tries them.
"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

from devel import bad_inputs
from devel.bad_inputs import Case

CASES = bad_inputs.cases()
TRIED = CASES if os.environ.get("KILN_BAD_INPUTS") == "all" else CASES[::4]


@pytest.mark.parametrize("case", TRIED, ids=[case.name for case in TRIED])
def test_a_bad_input_is_refused_with_its_words(case: Case) -> None:
    result = bad_inputs.run(case)
    assert not result.traceback, result.traceback
    if "the lab cannot run here" in result.wrong:
        pytest.skip("the lab needs root")
    assert not result.wrong, result.wrong


def test_every_case_that_is_refused_has_words() -> None:
    assert [case.name for case in CASES if case.exit and not case.words] == []
    assert len(CASES) >= 250


def test_every_folder_of_the_corpus_is_tried() -> None:
    assert {Path(case.name).parent for case in TRIED} == {Path(case.name).parent for case in CASES}


GOOD = Case("good", "the base matrix", ("list",), {"amis.yaml": {"from": "amis.yaml"}}, exit=0)


@pytest.mark.parametrize(
    ("changed", "wrong"),
    [
        ({"exit": 2}, "exit status 0, not 2"),
        ({"words": ("no such words",)}, "the output lacks"),
    ],
)
def test_the_corpus_sees_another_end(changed: dict[str, object], wrong: str) -> None:
    assert not bad_inputs.run(GOOD).wrong
    assert wrong in bad_inputs.run(dataclasses.replace(GOOD, **changed)).wrong  # type: ignore[arg-type]


def test_the_corpus_sees_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(*given: object, **named: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("kiln.matrix.load.load_recipes", crash)
    result = bad_inputs.run(GOOD)
    assert "ZeroDivisionError" in result.traceback


def test_the_corpus_sees_a_control_character(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kiln.cli.front.printable", str)
    case = Case("escape", "an escape", ("sbom", "\x1b[31m"))
    assert "a control character" in bad_inputs.run(case).wrong


def test_the_cases_leave_the_checkout_alone(tmp_path: Path) -> None:
    environment = bad_inputs.environment_of(GOOD, str(tmp_path))
    for name in ("KILN_BUILD_DIR", "KILN_PACKER_DIR", "KILN_LAB_STATE", "KILN_MATRIX", "HOME"):
        assert environment[name].startswith(str(tmp_path))
