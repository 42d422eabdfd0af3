"""The verdict on an AMI: honest about what ran, what did not, and what nobody knows."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from kiln.base import needs
from kiln.base.account import Account
from kiln.base.errors import KilnError
from kiln.base.progress import Progress
from kiln.base.stopping import Stop, StoppedError
from kiln.cloud.machine import Machine
from kiln.matrix import load
from kiln.packer.digest import recipe_digest
from kiln.pipeline import ami_checks, verify, verify_running
from kiln.pipeline.ami_checks import Check, Verdict
from kiln.pipeline.baked_recipe import ON_THE_IMAGE, baked
from kiln.pipeline.record import Checks
from lab.target import LabTarget
from tests.unit.records import a_record, an_image

LAB = LabTarget("a test", "us-east-1", endpoint="http://127.0.0.1:4599")


def verdict(*outcomes: str) -> Verdict:
    return Verdict(tuple(Check(f"c{n}", "f", o, 0.1) for n, o in enumerate(outcomes)))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("outcomes", "passed"),
    [
        (("passed",), True),
        (("passed", "skipped"), True),
        (("passed", "failed"), False),
        (("skipped", "skipped"), False),
        ((), False),
    ],
)
def test_an_ami_has_passed_when_something_passed_and_nothing_failed(
    outcomes: tuple[str, ...], passed: bool
) -> None:
    assert verdict(*outcomes).passed is passed


def test_a_verdict_counts_each_outcome_and_keeps_each_check() -> None:
    result = asdict(Checks.of(verdict("passed", "skipped", "passed", "failed")))
    assert (result["passed"], result["failed"], result["skipped"]) == (2, 1, 1)
    assert [check["name"] for check in result["checks"]] == ["c0", "c1", "c2", "c3"]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """An address for pytest to be given; the checks of these tests never go there."""
    return Machine("i-0", "192.0.2.1", "nobody", tmp_path / "config", "run-1", tmp_path)


def run(
    machine: Machine,
    tmp_path: Path,
    checks: str,
    stop: Stop | None = None,
    keyword: str | None = None,
) -> Verdict:
    """Run checks that are this text, by the real pytest."""
    tests = tmp_path / "test_some.py"
    tests.write_text(f"import os\nimport time\n\nimport pytest\n\n\n{checks}\n")
    return ami_checks.run_checks(
        machine, {}, tmp_path, stop=stop or Stop(), tests=[tests.parent], keyword=keyword
    )


def test_each_check_is_kept_with_its_outcome_and_why(machine: Machine, tmp_path: Path) -> None:
    result = run(
        machine,
        tmp_path,
        "def test_a(): pass\n"
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


@pytest.mark.parametrize(
    ("checks", "says"),
    [
        ("", "no tests ran"),
        ("import not_there", "error"),
        ("def test_a(): pass\ndef test_b(): os._exit(0)", ""),
        ("def test_a(): pytest.exit('192.0.2.1 cannot be reached', 3)", "cannot be reached"),
        ("def test_a(): pass\ndef test_b(): pytest.exit('enough', 0)", "1 of 2"),
    ],
)
def test_checks_that_do_not_finish_give_no_verdict(
    machine: Machine, tmp_path: Path, checks: str, says: str
) -> None:
    with pytest.raises(KilnError, match="the checks did not run to their end") as caught:
        run(machine, tmp_path, checks)
    assert caught.value.exit_status == 1
    assert says in caught.value.message
    assert "checks.log" in caught.value.hint


def test_checks_left_out_by_a_conftest_give_no_verdict(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(
        "def pytest_collection_modifyitems(config, items):\n"
        "    if not config.option.collectonly: del items[1:]\n"
    )
    with pytest.raises(KilnError, match="1 of 2"):
        run(machine, tmp_path, "def test_a(): pass\ndef test_b(): assert False")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PYTEST_ADDOPTS", "-k test_a"),
        ("PYTEST_ADDOPTS", "--maxfail=1"),
        ("PYTEST_PLUGINS", "no_such_plugin"),
        ("PYTHONOPTIMIZE", "1"),
        ("FORCE_COLOR", "1"),
        ("PY_COLORS", "1"),
    ],
)
def test_environment_of_caller_does_not_change_verdict(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    (tmp_path / "helping.py").write_text("def fail():\n    assert [] == [1]\n")
    checks = "import helping\ndef test_a(): pass\ndef test_b(): helping.fail()\n"
    result = run(machine, tmp_path, f"{checks}def test_c(): assert {{1: 2}} == {{1: 3}}")
    assert [check.outcome for check in result.checks] == ["passed", "failed", "failed"]
    assert not [check.message for check in result.checks if "x1B" in check.message]


def test_a_keyword_of_no_check_of_the_image_is_said_so(machine: Machine, tmp_path: Path) -> None:
    with pytest.raises(KilnError, match="no check of this image has 'mig' in its name") as caught:
        run(machine, tmp_path, "def test_a(): pass", keyword="mig")
    assert caught.value.exit_status == 2


def test_a_report_of_an_earlier_run_is_not_taken_for_this_one(
    machine: Machine, tmp_path: Path
) -> None:
    run(machine, tmp_path, "def test_a(): pass")
    with pytest.raises(KilnError):
        run(machine, tmp_path, "def test_a(): os._exit(0)")


def test_a_report_without_a_failure_from_a_pytest_that_failed_is_not_believed(
    machine: Machine, tmp_path: Path
) -> None:
    conftest = "def pytest_sessionfinish(session): session.exitstatus = 1\n"
    (tmp_path / "conftest.py").write_text(conftest)
    with pytest.raises(KilnError, match="did not run to their end"):
        run(machine, tmp_path, "def test_a(): pass")


def test_checks_end_when_the_end_is_asked_for(machine: Machine, tmp_path: Path) -> None:
    stop = Stop()
    threading.Timer(1, stop.set).start()
    ended = tmp_path / "ended"
    with pytest.raises(StoppedError):
        run(machine, tmp_path, f"def test_a(): time.sleep(120); os.mkdir({str(ended)!r})", stop)
    assert not ended.exists()


def test_checks_are_told_what_the_instance_type_has() -> None:
    recipe = {"name": "row", "flavor": "base"}
    result = ami_checks.expectations(recipe, "p4d.24xlarge", LAB)
    assert result["gpu"]["count"] == 8
    assert result["gpu"]["nvswitch"] is True
    assert (result["target"], result["instance_type"]) == ("lab", "p4d.24xlarge")
    assert ami_checks.expectations(recipe, "m5.large", LAB)["gpu"] is None


ROW = load.load_recipes()[1]
OLD = {**ROW.as_json(), "nccl": "2.0.1"}


def tags(**more: str) -> dict[str, str]:
    return {
        "kiln:recipe": ROW.name,
        "kiln:recipe-digest": "0" * 64,
        "kiln:distro": ROW.distro.id,
        "kiln:arch": ROW.arch,
        **more,
    }


@pytest.fixture(autouse=True)
def build_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KILN_BUILD_DIR", str(tmp_path / "build"))
    return tmp_path / "build"


def test_an_ami_that_was_built_here_is_checked_against_its_own_record(build_dir: Path) -> None:
    folder = build_dir / ROW.name / "20261121T000001Z-aaaa"
    folder.mkdir(parents=True)
    built = a_record(recipe=OLD, ami_id="ami-00000001", amis={"us-east-1": "ami-00000001"})
    (folder / "record.json").write_text(json.dumps(built.as_json()))
    known = baked("ami-00000001", tags(), [ROW])
    assert (known.recipe or {})["nccl"] == "2.0.1"
    assert known.recipe_from == f"the record of run {built.run_id}"


def test_a_row_counts_only_if_it_has_the_digest_that_the_ami_is_tagged_with() -> None:
    same = tags(**{"kiln:recipe-digest": recipe_digest(ROW)})
    assert baked("ami-00000001", same, [ROW]).recipe == ROW.as_json()
    elsewhere = ROW.changed(row=ROW.row.changed(file="/team/amis.yaml"))
    known = baked("ami-00000001", same, [elsewhere])
    assert known.recipe_from == "/team/amis.yaml, by the tagged digest"


def test_an_ami_of_a_row_that_was_changed_since_is_checked_against_what_is_on_it() -> None:
    known = baked("ami-00000001", tags(), [ROW])
    assert (known.recipe, known.recipe_from) == (None, ON_THE_IMAGE)
    assert known.ssh_user == ROW.distro.ssh_user


def test_an_ami_whose_row_is_gone_is_booted_as_one_of_its_distribution() -> None:
    known = baked("ami-00000001", tags(**{"kiln:recipe": "al2-499"}), [ROW])
    assert (known.name, known.recipe_from) == ("al2-499", ON_THE_IMAGE)


def test_an_ami_of_a_distribution_that_the_matrix_does_not_have_is_refused() -> None:
    gone = tags(**{"kiln:recipe": "slackware", "kiln:distro": "slackware"})
    with pytest.raises(KilnError, match="the matrix has no row of that distribution") as caught:
        baked("ami-00000001", gone, [ROW])
    assert caught.value.exit_status == 2


def test_an_ami_that_ami_kiln_did_not_build_is_refused() -> None:
    with pytest.raises(KilnError, match="has no tag kiln:recipe") as caught:
        baked("ami-00000001", {}, [ROW])
    assert caught.value.exit_status == 2


@pytest.mark.parametrize(("keyword", "status"), [(None, "verified"), ("boot", "unverified")])
def test_only_all_checks_tag_an_ami(
    monkeypatch: pytest.MonkeyPatch, keyword: str | None, status: str
) -> None:
    booted = MagicMock(instance_id="i-0", read_json=lambda path: {})
    marked: list[str] = []
    monkeypatch.setattr(verify.verdict, "booted", lambda *_, **__: nullcontext(booted))
    monkeypatch.setattr(ami_checks, "run_checks", lambda *_, **__: verdict("passed"))
    monkeypatch.setattr(verify.verdict, "mark", lambda target, ami, *_, **__: marked.append(ami))
    draft = MagicMock(record=a_record(recipe=OLD, verify_instance_type="g4dn.xlarge"), target=LAB)
    image = an_image()
    judge = verify.verdict.judge
    judge(draft, MagicMock(), image, user="u", stop=Stop(), account=Account(), keyword=keyword)
    assert (draft.record.status, marked) == (status, ["ami-00000001"] * (status == "verified"))


WITH_OVERLAY = {**OLD, "components": [*OLD["components"], "acme-baseline"]}


class Ready(LabTarget):
    """A lab that is up, whose machines are never reached."""

    def check_host(self) -> None:
        """Any machine."""

    def prepare(self, recipes: Any, say: Any) -> LabTarget:
        """Nothing."""
        return self


def refused_for_its_overlay(verifies: Callable[[], object]) -> None:
    with pytest.raises(KilnError, match="has acme-baseline: nothing here checks that") as error:
        verifies()
    assert error.value.exit_status == 2
    assert "KILN_OVERLAY=DIR" in error.value.hint


def test_an_ami_with_a_component_whose_checks_are_not_here_is_not_booted(
    build_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KILN_LAB_STATE", str(tmp_path / "lab"))
    monkeypatch.setattr(needs, "ensure", lambda *groups, **more: None)
    folder = build_dir / ROW.name / "20261121T000001Z-aaaa"
    folder.mkdir(parents=True)
    ami_id = "ami-00000001"
    built = a_record(recipe=WITH_OVERLAY, ami_id=ami_id, amis={"us-east-1": ami_id})
    (folder / "record.json").write_text(json.dumps(built.as_json()))
    image = an_image(tags=tags())
    monkeypatch.setattr(verify, "require_image", lambda target, ami_id: image)
    monkeypatch.setattr(verify, "verify_ami", lambda *_: pytest.fail("it is booted"))
    progress = Progress(io.StringIO())
    refused_for_its_overlay(
        lambda: verify.verify_by_id(
            ami_id, None, target=Ready("a test"), progress=progress, install=False
        )
    )


def test_what_is_read_on_the_image_must_be_here_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Booted(Machine):
        def read_json(self, path: str) -> Any:
            return WITH_OVERLAY

        def ssh(self, *_: Any, **__: Any) -> tuple[int, str, str]:
            return 0, "", ""

    booted = Booted("i-0", "192.0.2.1", "nobody", tmp_path / "config", "run-1", tmp_path)
    monkeypatch.setattr(ami_checks, "run_checks", lambda *_, **__: pytest.fail("it is checked"))
    draft = MagicMock()
    draft.record.recipe_from = ON_THE_IMAGE
    monkeypatch.setattr(verify.verdict, "booted", lambda *_, **__: nullcontext(booted))
    image = an_image(tags=tags())
    refused_for_its_overlay(
        lambda: verify.verdict.judge(
            draft, MagicMock(), image, user="nobody", stop=Stop(), account=Account()
        )
    )
    running = verify_running.of_host("nobody@192.0.2.1")
    monkeypatch.setattr(needs, "ensure", lambda *groups, **more: None)
    monkeypatch.setattr(verify_running, "connected", lambda *_, **__: nullcontext(booted))
    progress = Progress(io.StringIO())
    refused_for_its_overlay(
        lambda: verify_running.verify_running(
            running,
            Ready("a test"),
            progress,
            key=None,
            keyword=None,
            exercise=False,
            install=False,
            kind_of_machine=lambda machine: "lab",
        )
    )
