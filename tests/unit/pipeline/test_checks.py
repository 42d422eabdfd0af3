"""The checks of an instance: each one's outcome, and no verdict unless all ran to their end."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from kiln.base.errors import KilnError
from kiln.base.processes import Stop, StoppedError
from kiln.cloud.instance import Machine
from kiln.pipeline import checks
from kiln.pipeline.checks import Check, Checks

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("outcomes", "passed"),
    [
        (("passed", "skipped"), True),
        (("passed", "failed"), False),
        (("skipped", "skipped"), False),
        ((), False),
    ],
)
def test_verdict_needs_a_pass_and_no_failure(outcomes: tuple[str, ...], passed: bool) -> None:
    made = [Check(f"c{n}", "f", o, 0.1) for n, o in enumerate(outcomes)]  # type: ignore[arg-type]
    result = Checks.counted(made)
    assert result.succeeded is passed
    assert (result.passed, result.skipped) == (outcomes.count("passed"), outcomes.count("skipped"))
    assert result.checks == tuple(made)


def run(
    folder: Path,
    text: str,
    stop: Stop | None = None,
    keyword: str | None = None,
    conftest: str = "",
) -> Checks:
    """Run checks that are this text, by the real pytest; they never go to the machine."""
    machine = Machine("i-0", "192.0.2.1", "nobody", folder / "config", "run-1", folder)
    (folder / "test_some.py").write_text(f"import os\nimport time\n\nimport pytest\n\n\n{text}\n")
    (folder / "conftest.py").write_text(conftest)
    return checks.run_checks(
        machine, {"mig": "x"}, folder, stop=stop or Stop(), tests=[folder], keyword=keyword
    )


def test_each_check_has_its_outcome_and_reason(tmp_path: Path) -> None:
    result = run(
        tmp_path,
        "def test_a(): assert 'mig' in open(os.environ['KILN_EXPECT']).read()\n"
        "def test_b(): assert 1 == 2, 'two is not one'\n"
        "def test_c(): pytest.skip('no GPU here')\n"
        "@pytest.fixture\ndef broken(): raise OSError('gone')\n"
        "def test_d(broken): pass\n",
    )
    assert [(check.file, check.name, check.outcome) for check in result.checks] == [
        ("test_some", "test_a", "passed"),
        ("test_some", "test_b", "failed"),
        ("test_some", "test_c", "skipped"),
        ("test_some", "test_d", "failed"),
    ]
    messages = [check.message for check in result.checks]
    assert "two is not one" in messages[1]
    assert messages[2] == "no GPU here"
    assert "gone" in messages[3]
    assert "test_b" in (tmp_path / "checks.log").read_text()


LEFT_OUT = """def pytest_collection_modifyitems(config, items):
    if not config.option.collectonly: del items[1:]
"""
FAILED = "def pytest_sessionfinish(session): session.exitstatus = 1\n"
TWO = "def test_a(): pass\ndef test_b(): "


@pytest.mark.parametrize(
    ("text", "conftest", "says"),
    [
        ("", "", "no tests ran"),
        ("import not_there", "", "error"),
        (f"{TWO}os._exit(0)", "", ""),
        (f"{TWO}pytest.exit('enough', 0)", "", "1 of 2"),
        (f"{TWO}assert False", LEFT_OUT, "1 of 2"),
        ("def test_a(): pass", FAILED, ""),
    ],
    ids=["none", "broken", "crashed", "ended early", "left out", "failed without a failure"],
)
def test_unfinished_checks_give_no_verdict(
    tmp_path: Path, text: str, conftest: str, says: str
) -> None:
    with pytest.raises(KilnError, match="the checks did not run to their end") as caught:
        run(tmp_path, text, conftest=conftest)
    assert caught.value.exit_status == 1
    assert says in caught.value.message
    assert "checks.log" in caught.value.hint


def test_environment_of_caller_does_not_change_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {
        "PYTEST_ADDOPTS": "-k test_a --maxfail=1",
        "PYTEST_PLUGINS": "no_such_plugin",
        "PYTHONOPTIMIZE": "1",
        "FORCE_COLOR": "1",
        "PY_COLORS": "1",
    }.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "helping.py").write_text("def fail():\n    assert [] == [1]\n")
    text = "import helping\ndef test_a(): pass\ndef test_b(): helping.fail()\n"
    result = run(tmp_path, f"{text}def test_c(): assert {{1: 2}} == {{1: 3}}")
    assert [check.outcome for check in result.checks] == ["passed", "failed", "failed"]
    assert not [check.message for check in result.checks if "x1B" in check.message]


def test_only_the_checks_of_the_keyword_count(tmp_path: Path) -> None:
    result = run(tmp_path, f"{TWO}assert False", keyword="test_a")
    assert (result.succeeded, [check.name for check in result.checks]) == (True, ["test_a"])


def test_keyword_without_a_check_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(KilnError, match="no check of this image has 'mig' in its name") as caught:
        run(tmp_path, "def test_a(): pass", keyword="mig")
    assert caught.value.exit_status == 2


def test_checks_end_when_the_end_is_asked_for(tmp_path: Path) -> None:
    stop, began, ended = Stop(), tmp_path / "began", tmp_path / "ended"

    def watch() -> None:
        while not began.exists():
            pass_time.wait(0.05)
        stop.set()

    pass_time = threading.Event()
    threading.Thread(target=watch, daemon=True).start()
    body = f"os.mkdir({str(began)!r}); time.sleep(120); os.mkdir({str(ended)!r})"
    with pytest.raises(StoppedError):
        run(tmp_path, f"def test_a(): {body}", stop)
    assert not ended.exists()
