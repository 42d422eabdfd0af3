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
from botocore.exceptions import ClientError

from kiln.base import needs
from kiln.base.account import Account
from kiln.base.errors import KilnError
from kiln.base.processes import Stop, StoppedError
from kiln.base.progress import Progress
from kiln.base.recipe import Recipe
from kiln.cloud import aws
from kiln.cloud.instance import Boot, Machine
from kiln.cloud.runs import Run
from kiln.cloud.target import OwnKernel
from kiln.matrix import load
from kiln.packer.render import recipe_digest
from kiln.pipeline import checks, verify
from kiln.pipeline.checks import Check, Checks
from kiln.pipeline.draft import Draft
from kiln.pipeline.verify import ON_THE_IMAGE, known_recipe
from lab.target import LabHooks, LabTarget
from tests.unit.records import a_record, an_image

LAB = LabTarget("a test", "us-east-1", endpoint="http://127.0.0.1:4599")


def verdict(*outcomes: str) -> Checks:
    return Checks.counted([Check(f"c{n}", "f", o, 0.1) for n, o in enumerate(outcomes)])  # type: ignore[arg-type]


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
    assert verdict(*outcomes).succeeded is passed


def test_a_verdict_counts_each_outcome_and_keeps_each_check() -> None:
    result = asdict(verdict("passed", "skipped", "passed", "failed"))
    assert (result["passed"], result["failed"], result["skipped"]) == (2, 1, 1)
    assert [check["name"] for check in result["checks"]] == ["c0", "c1", "c2", "c3"]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """An address for pytest to be given; the checks of these tests never go there."""
    return Machine("i-0", "192.0.2.1", "nobody", tmp_path / "config", "run-1", tmp_path)


def run(
    machine: Machine,
    tmp_path: Path,
    text: str,
    stop: Stop | None = None,
    keyword: str | None = None,
) -> Checks:
    """Run checks that are this text, by the real pytest."""
    tests = tmp_path / "test_some.py"
    tests.write_text(f"import os\nimport time\n\nimport pytest\n\n\n{text}\n")
    return checks.run_checks(
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


ROW = load.load_recipes()[1]
OLD = ROW.changed(nccl="2.0.1")


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
    recipe, source = known_recipe("ami-00000001", tags(), [ROW])
    assert (recipe.nccl, source) == ("2.0.1", f"the record of run {built.run_id}")


def test_a_row_counts_only_if_it_has_the_digest_that_the_ami_is_tagged_with() -> None:
    same = tags(**{"kiln:recipe-digest": recipe_digest(ROW)})
    assert known_recipe("ami-00000001", same, [ROW])[0] is ROW
    elsewhere = ROW.changed(row=ROW.row.changed(file="/team/amis.yaml"))
    source = known_recipe("ami-00000001", same, [elsewhere])[1]
    assert source == "/team/amis.yaml, by the tagged digest"


def test_an_ami_whose_row_is_gone_is_booted_as_one_of_its_distribution() -> None:
    gone = tags(**{"kiln:recipe": "al2-499"})
    assert known_recipe("ami-00000001", gone, [ROW]) == (ROW, ON_THE_IMAGE)


def test_an_ami_of_a_distribution_that_the_matrix_does_not_have_is_refused() -> None:
    gone = tags(**{"kiln:recipe": "slackware", "kiln:distro": "slackware"})
    with pytest.raises(KilnError, match="the matrix has no row of that distribution") as caught:
        known_recipe("ami-00000001", gone, [ROW])
    assert caught.value.exit_status == 2


def test_an_ami_that_ami_kiln_did_not_build_is_refused() -> None:
    with pytest.raises(KilnError, match="has no tag kiln:recipe") as caught:
        verify._require_name(an_image())
    assert caught.value.exit_status == 2


AMI = "ami-00000001"


class Ec2:
    """Notes the tags that an AMI gets, and what the record on disk says at that moment."""

    def __init__(self, folder: Path, refuses: str = "") -> None:
        self.folder, self.refuses = folder, refuses
        self.tags: dict[str, str] = {}
        self.recorded: list[str] = []

    def create_tags(self, Resources: list[str], Tags: list[dict[str, str]]) -> None:  # noqa: N803
        assert Resources == [AMI]
        self.recorded.append(json.loads((self.folder / "record.json").read_text())["status"])
        if self.refuses:
            raise ClientError({"Error": {"Code": self.refuses}}, "CreateTags")
        self.tags |= {tag["Key"]: tag["Value"].split()[0] for tag in Tags}


class OwnKernels(LabHooks):
    """Boots an own kernel."""

    def own_kernel(self, ami_id: str, recipe: Recipe, wanted: OwnKernel) -> Any:
        return nullcontext(({"own": "yes"}, "qemu"))


class Ready(LabTarget):
    """A lab that is up, whose machines are never reached."""

    @property
    def hooks(self) -> LabHooks:
        hooks = OwnKernels(self)
        object.__setattr__(hooks, "prepare", lambda *_, **__: None)
        return hooks


@pytest.fixture
def judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Draft]:
    """Judge an AMI whose checks end like this; the draft of the run."""
    machine = MagicMock(instance_id="i-0", read_json=lambda path: {})
    booted: list[Boot] = []

    def boot(asked: Boot, *_: Any) -> Any:
        booted.append(asked)
        return nullcontext(machine)

    def judge(outcomes: tuple[str, ...], ec2: Ec2, stop: Stop, **more: Any) -> Draft:
        monkeypatch.setattr(verify, "booted", boot)
        monkeypatch.setattr(verify.checks, "run_checks", lambda *_, **__: verdict(*outcomes))
        monkeypatch.setattr(aws, "ec2", lambda target: ec2)
        first = a_record(
            recipe=OLD, verify_instance_type="g4dn.xlarge", status="failed", ami_id=AMI
        )
        run = Run("20261121T000000Z-aaaa", "row", tmp_path)
        draft = Draft(first, run, Ready("a test"), Progress(io.StringIO()), stop)
        try:
            verify.judge(draft, MagicMock(), Account(), **more)
        finally:
            assert booted[0].tags == ({"own": "yes"} if more.get("own_kernel") else {})
        return draft

    return judge


@pytest.mark.parametrize(
    ("outcomes", "keyword", "own_kernel", "status", "tag"),
    [
        (("passed", "skipped"), None, None, "verified", "pass"),
        (("passed", "failed"), None, None, "failed", "fail"),
        (("skipped",), None, None, "failed", "fail"),
        (("passed",), None, OwnKernel(), "verified", "pass"),
        (("passed", "failed"), None, OwnKernel(), "failed", "fail"),
        (("passed",), "boot", None, "unverified", None),
        (("passed",), "boot", OwnKernel(), "unverified", None),
        (("failed",), "boot", None, "failed", None),
    ],
)
def test_only_all_checks_tag_an_ami_with_their_verdict(
    judged: Callable[..., Draft],
    tmp_path: Path,
    outcomes: tuple[str, ...],
    keyword: str | None,
    own_kernel: OwnKernel | None,
    status: str,
    tag: str | None,
) -> None:
    ec2 = Ec2(tmp_path)
    draft = judged(outcomes, ec2, Stop(), keyword=keyword, own_kernel=own_kernel)
    keys = ("kiln:verified", *(["kiln:own-kernel"] if own_kernel else []))
    assert ec2.tags == (dict.fromkeys(keys, tag) if tag else {})
    assert draft.record.status == status
    assert draft.record.own_kernel == ("qemu" if own_kernel else None)
    # The record never says more than the AMI's tag.
    assert ec2.recorded == (["unverified"] if tag else [])


def test_ami_that_cannot_be_tagged_is_not_verified(
    judged: Callable[..., Draft], tmp_path: Path
) -> None:
    with pytest.raises(KilnError, match="could not be tagged kiln:verified"):
        judged(("passed",), Ec2(tmp_path, refuses="UnauthorizedOperation"), Stop())
    assert json.loads((tmp_path / "record.json").read_text())["status"] == "unverified"


def test_stopped_run_gives_no_verdict(judged: Callable[..., Draft], tmp_path: Path) -> None:
    stop, ec2 = Stop(), Ec2(tmp_path)
    stop.set()
    with pytest.raises(StoppedError):
        judged(("passed",), ec2, stop)
    assert ec2.tags == {}


WITH_OVERLAY = OLD.changed(components=(*OLD.components, "acme-baseline"))


class Booted(Machine):
    """A machine with a component whose checks are not here."""

    def read_json(self, path: str) -> Any:
        return WITH_OVERLAY.model_dump(mode="json", exclude={"row"})

    def ssh(self, *_: Any, **__: Any) -> tuple[int, str, str]:
        return 0, "", ""


def by_record(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = tmp_path / "build" / ROW.name / "20261121T000001Z-aaaa"
    folder.mkdir(parents=True)
    built = a_record(recipe=WITH_OVERLAY, ami_id=AMI, amis={"us-east-1": AMI})
    (folder / "record.json").write_text(json.dumps(built.as_json()))
    monkeypatch.setattr(verify, "require_image", lambda target, ami_id: an_image(tags=tags()))
    monkeypatch.setattr(verify, "recorded", lambda *_, **__: pytest.fail("it is booted"))
    verify.verify_by_id(
        AMI, None, target=Ready("a test"), progress=Progress(io.StringIO()), install=False
    )


def by_image(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    machine = Booted("i-0", "192.0.2.1", "nobody", tmp_path / "config", "run-1", tmp_path)
    monkeypatch.setattr(verify, "booted", lambda *_: nullcontext(machine))
    draft = MagicMock()
    verify.judge(draft, MagicMock(), Account())


def by_host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    machine = Booted("i-0", "192.0.2.1", "nobody", tmp_path / "config", "run-1", tmp_path)
    monkeypatch.setattr(verify, "reached", lambda *_, **__: nullcontext(machine))
    verify.verify_running(
        verify.at_host("nobody@192.0.2.1"),
        Ready("a test"),
        Progress(io.StringIO()),
        key=None,
        keyword=None,
        exercise=False,
        install=False,
        kind_of_machine=lambda machine: "lab",
    )


@pytest.mark.parametrize("verified", [by_record, by_image, by_host])
def test_component_whose_checks_are_not_here_is_refused(
    verified: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KILN_LAB_STATE", str(tmp_path / "lab"))
    monkeypatch.setattr(needs, "ensure", lambda *groups, **more: None)
    monkeypatch.setattr(verify.checks, "run_checks", lambda *_, **__: pytest.fail("it is checked"))
    with pytest.raises(KilnError, match="has acme-baseline: nothing here checks that") as error:
        verified(monkeypatch, tmp_path)
    assert error.value.exit_status == 2
    assert "KILN_OVERLAY=DIR" in error.value.hint


def test_recipe_on_image_is_read_whole(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    said = OLD.model_dump(mode="json", exclude={"row"})
    monkeypatch.setattr(Machine, "read_json", lambda *_: said)
    recipe = verify.recipe_on(machine, AMI)
    assert recipe.as_json() == {**said, "row": recipe.row.model_dump()}
    assert recipe.row.file == f"/etc/kiln/recipe.json on {AMI}"
    for wrong, says in (
        (None, f"{AMI} has no readable /etc/kiln/recipe.json"),
        ({**said, "driver": None}, f"/etc/kiln/recipe.json on {AMI}: `driver`"),
        ({**said, "new": 1}, f"/etc/kiln/recipe.json on {AMI}: `new`: Extra"),
    ):
        monkeypatch.setattr(Machine, "read_json", lambda *_, wrong=wrong: wrong)
        with pytest.raises(KilnError, match=says) as caught:
            verify.recipe_on(machine, AMI)
        assert caught.value.exit_status == 1


def test_run_without_its_recipe_leaves_no_record(tmp_path: Path) -> None:
    bucket = MagicMock()
    run = Run("20261121T000000Z-aaaa", ROW.name, tmp_path)
    draft = Draft(a_record(), run, Ready("a test"), Progress(io.StringIO()), Stop(), bucket)
    draft.recipe_unread = True
    draft.end()
    assert list(tmp_path.iterdir()) == []
    draft.recipe_unread = False
    draft.end()
    assert (tmp_path / "record.json").exists()
    assert [call[0] for call in bucket.method_calls] == ["keep"]


class BegunError(Exception):
    """The run would begin."""


@pytest.mark.parametrize("instance_type", [None, "p4d.24xlarge"])
def test_verify_boots_the_type_that_is_asked_for_after_dead_runs_are_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, instance_type: str | None
) -> None:
    steps: list[Any] = []

    def recorded(*_: Any, delete_ami_on_failure: bool, **facts: Any) -> None:
        steps.extend([facts["verify_instance_type"], facts["status"], delete_ami_on_failure])
        raise BegunError

    image = an_image(tags=tags(**{"kiln:recipe-digest": recipe_digest(ROW)}))
    monkeypatch.setenv("KILN_LAB_STATE", str(tmp_path / "lab"))
    monkeypatch.setattr(needs, "ensure", lambda *groups, **more: steps.extend(groups))
    monkeypatch.setattr(verify, "require_image", lambda target, ami_id: image)
    monkeypatch.setattr(verify.runs, "clean_dead_runs", lambda *_: steps.append("cleaned"))
    monkeypatch.setattr(verify, "recorded", recorded)
    out = io.StringIO()
    with pytest.raises(BegunError):
        verify.verify_by_id(
            AMI, instance_type, target=Ready("a test"), progress=Progress(out), install=False
        )
    kind = instance_type or ROW.verify_instance_type
    assert steps == ["ssh", "cleaned", kind, "unverified", False]
    assert "checked against: " in out.getvalue()
    image.tags["kiln:recipe-digest"] = "0" * 64
    with pytest.raises(KilnError, match="neither a record of its build nor a row"):
        verify.verify_by_id(
            AMI, None, target=Ready("a test"), progress=Progress(out), install=False,
            own_kernel=OwnKernel(),
        )  # fmt: skip
