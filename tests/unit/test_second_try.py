"""A whole `./invoke test` runs a few failed tests once more and names them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from devel import second_try, testing

ONCE = """
from pathlib import Path
import pytest

class TestBusy:
    @pytest.mark.xdist_group("browser")
    @pytest.mark.parametrize("word", ["a@b::c.d [e]"])
    def test_unlucky(self, word):
        before = Path(__file__).with_suffix(".before")
        if not before.exists():
            before.touch()
            pytest.fail("busy")
        {then}

def test_sound(): pass
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copy(testing.ROOT / "pyproject.toml", tmp_path)  # pytest's options are there
    monkeypatch.setattr(testing, "ROOT", tmp_path)
    # No test of the folder uses them, and each process would import them.
    monkeypatch.setenv("PYTEST_ADDOPTS", "-pno:hypothesispytest -pno:pytest11.testinfra")
    return tmp_path


def whole_run(folder: Path, *options: str, again: bool = True) -> tuple[int, str]:
    """The exit status of a run of the tests in the folder, and what is listed at its end."""
    report = folder / "unit.xml"
    with (folder / "output").open("w") as output:
        status = testing.run_pytest(report, [".", *options], output, again=again)
    return status, second_try.as_text([report])


def unlucky(folder: Path, name: str = "test_x", then: str = "pass") -> None:
    (folder / f"{name}.py").write_text(ONCE.format(then=then))


@pytest.mark.parametrize("options", [(), ("-n", "2", "--dist", "loadgroup")])
def test_a_test_that_passes_by_itself_is_named_and_the_run_has_passed(
    folder: Path, options: tuple[str, ...]
) -> None:
    unlucky(folder)
    status, listed = whole_run(folder, *options)
    assert status == 0
    assert listed.splitlines()[1:] == ["  test_x.py::TestBusy::test_unlucky[a@b::c.d [e]]"]


@pytest.mark.parametrize("then", ["assert False", "pytest.skip('no time')"])
def test_a_test_that_does_not_pass_by_itself_either_has_failed(folder: Path, then: str) -> None:
    unlucky(folder, then=then)
    assert whole_run(folder) == (1, "")


def test_failures_all_over_the_place_are_not_bad_luck(folder: Path) -> None:
    for number in range(second_try.MOST_FILES + 1):
        unlucky(folder, f"test_{number}")
    assert whole_run(folder) == (1, "")
    assert not second_try.report_of(folder / "unit.xml").exists()


def test_a_run_of_chosen_tests_tries_nothing_again(folder: Path) -> None:
    unlucky(folder)
    assert whole_run(folder, again=False)[0] == 1


LEFT_BEHIND = """
import pytest

@pytest.fixture(scope="session")
def lab():
    yield
    pytest.fail("a traceback in the lab's log")

def test_x(lab): pass
"""


def test_what_fails_when_the_tests_are_over_is_not_tried_again(folder: Path) -> None:
    (folder / "test_x.py").write_text(LEFT_BEHIND)
    assert whole_run(folder) == (1, "")
    assert not second_try.report_of(folder / "unit.xml").exists()
