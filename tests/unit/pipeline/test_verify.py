"""The verdict on an AMI or a running machine: which recipe it is held to, and who gets a tag."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from contextlib import nullcontext
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
from kiln.pipeline import verify
from kiln.pipeline.checks import Check, Checks
from kiln.pipeline.draft import Draft
from kiln.pipeline.record import Record
from kiln.pipeline.verify import ON_THE_IMAGE, Running, at_host, known_recipe, reached
from lab.target import LabHooks, LabTarget
from tests.unit.records import a_record, an_image

AMI = "ami-00000001"
ROW = load.load_recipes()[1]
OLD = ROW.changed(nccl="2.0.1")
WITH_OVERLAY = OLD.changed(components=(*OLD.components, "acme-baseline"))


def verdict(*outcomes: str) -> Checks:
    return Checks.counted([Check(f"c{n}", "f", o, 0.1) for n, o in enumerate(outcomes)])  # type: ignore[arg-type]


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
    monkeypatch.setenv("KILN_LAB_STATE", str(tmp_path / "lab"))
    return tmp_path / "build"


def record_here(build_dir: Path, recipe: Recipe) -> str:
    """Leave the record of an AMI's build in this checkout; its run."""
    folder = build_dir / ROW.name / "20261121T000001Z-aaaa"
    folder.mkdir(parents=True)
    built = a_record(recipe=recipe, ami_id=AMI, amis={"us-east-1": AMI})
    (folder / "record.json").write_text(json.dumps(built.to_dict()))
    return built.run_id


# ------------------------------------------------------------------- the recipe of an AMI


def test_ami_built_here_is_held_to_its_own_record(build_dir: Path) -> None:
    run_id = record_here(build_dir, OLD)
    recipe, source = known_recipe(AMI, tags(), [ROW])
    assert (recipe.nccl, source) == ("2.0.1", f"the record of run {run_id}")


def test_row_counts_only_with_the_digest_of_the_tag() -> None:
    same = tags(**{"kiln:recipe-digest": recipe_digest(ROW)})
    elsewhere = ROW.changed(row=ROW.row.changed(file="/team/amis.yaml"))
    assert known_recipe(AMI, same, [elsewhere]) == (
        elsewhere,
        "/team/amis.yaml, by the tagged digest",
    )
    assert known_recipe(AMI, tags(), [ROW]) == (ROW, ON_THE_IMAGE)
    gone = tags(**{"kiln:recipe": "al2-499"})
    assert known_recipe(AMI, gone, [ROW]) == (ROW, ON_THE_IMAGE)


def test_unknown_ami_or_distribution_is_refused() -> None:
    gone = tags(**{"kiln:recipe": "slackware", "kiln:distro": "slackware"})
    with pytest.raises(KilnError, match="the matrix has no row of that distribution") as caught:
        known_recipe(AMI, gone, [ROW])
    assert caught.value.exit_status == 2


def test_recipe_on_image_is_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine("i-0", "192.0.2.1", "nobody", tmp_path / "config", "run-1", tmp_path)
    said = OLD.model_dump(mode="json", exclude={"row"})
    monkeypatch.setattr(Machine, "read_json", lambda *_: said)
    recipe = verify.recipe_on(machine, AMI)
    assert recipe.to_dict() == {**said, "row": recipe.row.model_dump()}
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


# ------------------------------------------------------------------- the verdict


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
        object.__setattr__(hooks, "prepared", lambda *_, **__: nullcontext())
        return hooks


@pytest.fixture
def judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Draft]:
    """Judge an AMI whose checks end like this; the draft of the run."""
    machine = MagicMock(instance_id="i-0", read_json=lambda path: {"of": path})
    booted: list[Boot] = []
    given: list[Any] = []

    def boot(asked: Boot, *_: Any) -> Any:
        booted.append(asked)
        return nullcontext(machine)

    def judge(outcomes: tuple[str, ...], ec2: Ec2, stop: Stop, **more: Any) -> Draft:
        def run_checks(machine: Any, expected: dict[str, Any], *_: Any, **chosen: Any) -> Checks:
            given.extend([expected["own_kernel"], expected["reboot"], chosen["keyword"]])
            return verdict(*outcomes)

        monkeypatch.setattr(verify, "booted", boot)
        monkeypatch.setattr(verify.checks, "run_checks", run_checks)
        monkeypatch.setattr(aws, "ec2", lambda target: ec2)
        first = a_record(
            recipe=OLD, verify_instance_type="g4dn.xlarge", status="failed", ami_id=AMI
        )
        run = Run("20261121T000000Z-aaaa", "row", tmp_path)
        draft = Draft(first, run, Ready("a test"), Progress(io.StringIO()), stop)
        keyword, own_kernel = more.get("keyword"), more.get("own_kernel") is not None
        try:
            verify.judge(draft, MagicMock(), Account(), **more)
        finally:
            assert booted[0].tags == ({"own": "yes"} if own_kernel else {})
            assert given == [own_kernel, keyword is None, keyword]
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
        # A part of the checks verifies nothing.
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
    assert draft.record.versions == {"of": "/etc/kiln/version-info.json"}
    assert draft.record.own_kernel == ("qemu" if own_kernel else None)
    # The record never says more than the AMI's tag.
    assert ec2.recorded == (["unverified"] if tag else [])
    assert not tag or json.loads((tmp_path / "record.json").read_text())["status"] == status


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


def test_run_without_its_recipe_leaves_no_record(tmp_path: Path) -> None:
    bucket, folder = MagicMock(), tmp_path / "run"
    folder.mkdir()
    run = Run("20261121T000000Z-aaaa", ROW.name, folder)
    draft = Draft(a_record(), run, Ready("a test"), Progress(io.StringIO()), Stop(), bucket)
    draft.recipe_unread = True
    draft.end()
    assert list(folder.iterdir()) == []
    draft.recipe_unread = False
    draft.end()
    assert (folder / "record.json").exists()
    assert [call[0] for call in bucket.method_calls] == ["keep"]


class BegunError(Exception):
    """The run would begin."""


@pytest.mark.parametrize("instance_type", [None, "p4d.24xlarge"])
def test_verify_boots_the_type_asked_for_once_dead_runs_are_gone(
    monkeypatch: pytest.MonkeyPatch, instance_type: str | None
) -> None:
    steps: list[Any] = []

    def recorded(*_: Any, delete_ami_on_failure: bool, **facts: Any) -> None:
        steps.extend([facts["verify_instance_type"], facts["status"], delete_ami_on_failure])
        raise BegunError

    image = an_image(tags=tags(**{"kiln:recipe-digest": recipe_digest(ROW)}))
    monkeypatch.setattr(needs, "ensure", lambda *groups, **more: steps.extend(groups))
    monkeypatch.setattr(verify, "require_image", lambda target, ami_id: image)
    monkeypatch.setattr(verify.runs, "clean_dead_runs", lambda *_: steps.append("cleaned"))
    monkeypatch.setattr(verify, "recorded", recorded)
    out = io.StringIO()

    def verified(**more: Any) -> Record:
        target, progress = Ready("a test"), Progress(out)
        return verify.verify_by_id(
            AMI, instance_type, target=target, progress=progress, install=False, **more
        )

    with pytest.raises(BegunError):
        verified()
    kind = instance_type or ROW.verify_instance_type
    assert steps == ["ssh", "cleaned", kind, "unverified", False]
    assert "checked against: " in out.getvalue()
    # Of an AMI whose recipe is on its disk alone, nobody knows which kernel it boots.
    image.tags["kiln:recipe-digest"] = "0" * 64
    draft = MagicMock(record=a_record())
    monkeypatch.setattr(verify, "recorded", lambda *_, **__: nullcontext(draft))
    monkeypatch.setattr(verify, "make_access", lambda *_, **__: None)
    monkeypatch.setattr(verify, "judge", lambda *_, **__: None)
    assert verified() is draft.record
    assert draft.recipe_unread is True
    with pytest.raises(KilnError, match="cannot boot its own kernel"):
        verified(own_kernel=OwnKernel())


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [("p5.48xlarge", True), ("g4dn.xlarge", False), ("p6-b300.48xlarge", False), ("other", False)],
)
def test_efa_interface_needs_efa_on_the_first_card(kind: str, *, wanted: bool) -> None:
    recipe = next(item for item in load.load_recipes() if item.efa)
    assert verify.attaches_efa(a_record(recipe=recipe, verify_instance_type=kind)) is wanted
    without = a_record(recipe=recipe.changed(efa=None), verify_instance_type=kind)
    assert not verify.attaches_efa(without)


@pytest.mark.parametrize("status", ["verified", "failed"])
def test_smoke_test_needs_a_verified_ami(monkeypatch: pytest.MonkeyPatch, status: str) -> None:
    monkeypatch.setattr(verify, "verify_by_id", lambda *_, **__: a_record(status=status))
    boot = verify.smoke_test(install=False)
    refused = pytest.raises(KilnError, match="failed its checks, so no channel moved")
    with nullcontext() if status == "verified" else refused:
        boot(Ready("a test"), AMI)


# ------------------------------------------------------------------- a running machine


class Booted(Machine):
    """A machine that says it is `RECIPE`, and answers ssh with `TYPE`."""

    RECIPE, TYPE, STATUS = WITH_OVERLAY, "g5.xlarge", 0

    def read_json(self, path: str) -> Any:
        return self.RECIPE.model_dump(mode="json", exclude={"row"})

    def ssh(self, *_: Any, **__: Any) -> tuple[int, str, str]:
        return self.STATUS, f"{self.TYPE}\n", "Connection refused"


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Booted:
    """A running machine, which `verify_running` and `judge` reach."""
    made = Booted("i-0", "192.0.2.1", "admin", tmp_path / "config", "run-1", tmp_path)
    monkeypatch.setattr(needs, "ensure", lambda *groups, **more: None)
    monkeypatch.setattr(verify, "booted", lambda *_: nullcontext(made))
    monkeypatch.setattr(verify, "reached", lambda *_, **__: nullcontext(made))
    return made


def verify_host(keyword: str | None = None, *, exercise: bool = False) -> Record:
    return verify.verify_running(
        at_host("admin@192.0.2.1"),
        Ready("a test"),
        Progress(io.StringIO()),
        key=None,
        keyword=keyword,
        exercise=exercise,
        install=False,
        kind_of_machine=lambda machine: "lab",
    )


def by_record(monkeypatch: pytest.MonkeyPatch, build_dir: Path) -> None:
    record_here(build_dir, WITH_OVERLAY)
    monkeypatch.setattr(verify, "require_image", lambda target, ami_id: an_image(tags=tags()))
    monkeypatch.setattr(verify, "recorded", lambda *_, **__: pytest.fail("it is booted"))
    target, progress = Ready("a test"), Progress(io.StringIO())
    verify.verify_by_id(AMI, None, target=target, progress=progress, install=False)


def by_image(*_: Any) -> None:
    verify.judge(MagicMock(), MagicMock(), Account())


def by_host(*_: Any) -> None:
    verify_host()


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize("verified", [by_record, by_image, by_host])
def test_component_whose_checks_are_not_here_is_refused(
    verified: Callable[..., None], build_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify.checks, "run_checks", lambda *_, **__: pytest.fail("it is checked"))
    with pytest.raises(KilnError, match="has acme-baseline: nothing here checks that") as error:
        verified(monkeypatch, build_dir)
    assert error.value.exit_status == 2
    assert "KILN_OVERLAY=DIR" in error.value.hint


@pytest.mark.parametrize(
    ("says", "outcome", "keyword", "kind", "status"),
    [
        ("g5.xlarge", "passed", None, "g5.xlarge", "verified"),
        ("curl: no route", "passed", "boot", None, "unverified"),
        ("g5.xlarge", "failed", "boot", "g5.xlarge", "failed"),
    ],
)
def test_running_machine_gets_a_record_and_a_report(
    machine: Booted,
    monkeypatch: pytest.MonkeyPatch,
    says: str,
    outcome: str,
    keyword: str | None,
    kind: str | None,
    status: str,
) -> None:
    monkeypatch.setattr(Booted, "RECIPE", OLD)
    monkeypatch.setattr(Booted, "TYPE", says)
    # The machine's own settings, as its recipe.
    monkeypatch.setattr(verify.checks, "require_match", lambda keyword: None)
    monkeypatch.setattr(verify.checks, "run_checks", lambda *_, **__: verdict(outcome))
    record = verify_host(keyword)
    assert (record.verify_instance_type, record.status, record.kind) == (kind, status, "verify")
    assert record.recipe.nccl == "2.0.1"
    assert {path.name for path in Path(record.folder).iterdir()} == {"record.json", "report.html"}


@pytest.mark.parametrize("exercise", [False, True])
def test_interrupted_checks_of_a_machine_are_one_message(
    machine: Booted, monkeypatch: pytest.MonkeyPatch, *, exercise: bool
) -> None:
    def interrupted(*_: Any, **__: Any) -> Checks:
        raise StoppedError

    monkeypatch.setattr(Booted, "RECIPE", OLD)
    monkeypatch.setattr(verify.checks, "run_checks", interrupted)
    with pytest.raises(KilnError, match=r"admin@192\.0\.2\.1: interrupted") as error:
        verify_host(exercise=exercise)
    assert error.value.exit_status == 1
    assert ("test Xid" in error.value.hint) is exercise


@pytest.mark.parametrize(
    ("state", "tagged", "says"),
    [
        ("running", tags(), ""),
        ("stopped", tags(), "is stopped: only a running instance"),
        ("running", {}, "has no tag kiln:distro"),
    ],
)
def test_running_instance_is_found_by_its_id(
    monkeypatch: pytest.MonkeyPatch, state: str, tagged: dict[str, str], says: str
) -> None:
    instance_id, address = "i-0123456789abcdef0", "10.0.0.5"
    instance = {"State": {"Name": state}, "ImageId": AMI, "InstanceType": "g5.xlarge"}
    answer = {"Reservations": [{"Instances": [{**instance, "PrivateIpAddress": address}]}]}
    client = MagicMock(describe_instances=lambda **_: answer)
    monkeypatch.setattr(aws, "ec2", lambda target: client)
    monkeypatch.setattr(verify, "require_image", lambda target, ami_id: an_image(tags=tagged))
    with pytest.raises(KilnError, match=says) if says else nullcontext():
        found = verify.at_instance(instance_id, Ready("a test"))
        assert found == Running(instance_id, ROW.distro.ssh_user, address, "g5.xlarge", AMI)


def test_machine_that_does_not_answer_is_one_message(
    machine: Booted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Booted, "STATUS", 255)
    with pytest.raises(KilnError, match=r"admin@192\.0\.2\.1 cannot be reached over SSH") as error:
        verify_host()
    assert error.value.exit_status == 1


@pytest.mark.parametrize("host", ["203.0.113.7", "a@", "a b@c", "-o@c", "a@-oProxyCommand=x"])
def test_host_is_a_user_and_an_address(host: str) -> None:
    with pytest.raises(KilnError, match="is not user@address"):
        at_host(host)


@pytest.mark.parametrize(
    ("theirs", "counts"),
    [("", "accept-new"), ("Host *\n  StrictHostKeyChecking yes\n", "true")],
)
def test_users_own_ssh_settings_count_below_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, theirs: str, counts: str
) -> None:
    real, program, log = str(shutil.which("ssh")), tmp_path / "bin" / "ssh", tmp_path / "config"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\ncp "$2" "{log}"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    run_id = f"20261124T000000Z-{os.getpid() % 65536:04x}"
    with reached(Running("a machine", "ec2-user", "192.0.2.1"), run_id, tmp_path, None) as made:
        assert made.ssh("true")[0] == 0
    assert "~/.ssh/known_hosts\n" in log.read_text()
    (tmp_path / "theirs").write_text(theirs)
    (tmp_path / "ours").write_text(log.read_text().replace("~/.ssh/config", f"{tmp_path}/theirs"))
    command = [real, "-G", "-F", str(tmp_path / "ours"), "gpu-7"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert f"stricthostkeychecking {counts}\n" in shown
