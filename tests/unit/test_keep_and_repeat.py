"""`build --on-error keep` and `--from`: what is kept, until when, and what a state depends on."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from kiln.base.account import Account
from kiln.base.errors import KilnError, operation_failed
from kiln.base.progress import Progress
from kiln.base.stopping import Stop
from kiln.base.times import as_time, utc_now
from kiln.cli.channel_tables import sweep_text
from kiln.cloud import resources, runs
from kiln.cloud.aws_target import AwsTarget
from kiln.cloud.runs import Run
from kiln.cloud.target import ParentAmi
from kiln.matrix.load import load_recipes
from kiln.packer import uploads
from kiln.pipeline import (
    bake_start,
    build,
    continued_bake,
    kept_instance,
    states,
)
from kiln.pipeline.bake import BakedAmi
from kiln.pipeline.dead_runs import clean_dead_runs
from kiln.pipeline.failure import Failure, ProvisionerError
from kiln.pipeline.plan import Options, Plan
from kiln.pipeline.record_draft import Draft
from kiln.publish.sweep import leftovers, sweep
from tests.unit import commands
from tests.unit.records import a_record

AWS = AwsTarget("a test", "eu-central-1", account="123456789012")
PLACE = ("aws", "123456789012", "eu-central-1")
ROW = "al2-510.47.03-cuda11.6-base-x86_64"


def in_hours(hours: int) -> str:
    return f"{datetime.now(timezone.utc) + timedelta(hours=hours):%Y-%m-%dT%H:%M:%SZ}"


# ------------------------------------------------------------------- what is kept


@pytest.fixture
def keeps(ec2: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], str]:
    """A failed run's instance, kept until so many hours from now."""
    monkeypatch.setenv("KILN_BUILD_DIR", str(tmp_path / "build"))

    def kept(hours: int) -> str:
        with runs.started(ROW, AWS) as run:
            launched = ec2.run_instances(
                ImageId="ami-0123456789abcdef0",
                InstanceType="g4dn.xlarge",
                MinCount=1,
                MaxCount=1,
                TagSpecifications=[
                    {
                        "ResourceType": "instance",
                        "Tags": resources.tags(run.id, **{"kiln:kept-until": in_hours(hours)}),
                    }
                ],
            )
            instance = str(launched["Instances"][0]["InstanceId"])
            run.keeps(instance, in_hours(hours))
        return instance

    return kept


def state_of(ec2: Any, instance: str) -> str:
    answer = ec2.describe_instances(InstanceIds=[instance])
    return str(answer["Reservations"][0]["Instances"][0]["State"]["Name"])


def test_the_next_build_leaves_what_is_kept_alone_and_says_so(
    ec2: Any, keeps: Callable[[int], str], capsys: pytest.CaptureFixture[str]
) -> None:
    instance = keeps(2)
    clean_dead_runs(AWS, Progress())
    assert state_of(ec2, instance) == "running"
    assert f"{instance} of {ROW}" in capsys.readouterr().err
    assert [kept.instance_id for kept in runs.kept(ROW, PLACE)] == [instance]


def test_after_its_deadline_the_next_build_removes_it(
    ec2: Any, keeps: Callable[[int], str]
) -> None:
    instance = keeps(-1)
    clean_dead_runs(AWS, Progress())
    assert state_of(ec2, instance) == "terminated"
    assert runs.kept(ROW, PLACE) == []


def test_what_it_leaves_when_it_has_ended_itself_is_removed_before_its_deadline(
    ec2: Any, keeps: Callable[[int], str], tmp_path: Path
) -> None:
    ec2.terminate_instances(InstanceIds=[keeps(2)])
    clean_dead_runs(AWS, Progress())
    assert not list((tmp_path / "build").glob("*/*/run.json"))


@pytest.mark.parametrize("full", ["keeps", "set_timer"])
def test_a_full_disk_keeps_no_instance_and_ends_no_clean_up(
    plan: Plan, monkeypatch: pytest.MonkeyPatch, full: str
) -> None:
    def refuse(*given: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    there = {"InstanceId": "i-1", "State": {"Name": "running"}, "PrivateIpAddress": "10.0.0.1"}
    draft = MagicMock(launched=["i-1"])
    monkeypatch.setattr(kept_instance, "_described", lambda *given: there)
    monkeypatch.setattr(kept_instance, "_tag", lambda *given: None)
    monkeypatch.setattr(kept_instance, "set_timer", refuse if full == "set_timer" else MagicMock())
    draft.run.keeps = refuse if full == "keeps" else MagicMock()
    assert not kept_instance.keep(plan, draft, MagicMock())
    assert "cannot be kept: [Errno 28]" in draft.progress.say.call_args[0][0]


def test_a_kept_instance_of_which_no_ami_could_be_made_still_ends_itself(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*given: Any) -> None:
        raise operation_failed("i-1 could not be made into an AMI")

    timed: list[object] = []
    for name in ("running_machine", "renew", "stop_timer"):
        monkeypatch.setattr(kept_instance, name, MagicMock())
    monkeypatch.setattr(kept_instance, "set_timer", lambda *given: timed.append(given))
    monkeypatch.setattr(continued_bake.bake, "go_on", lambda *given: {})
    monkeypatch.setattr(continued_bake, "_image", refuse)
    begun = replace(plan, options=replace(plan.options, start=plan.recipe.components[0]))
    with pytest.raises(KilnError, match="could not be made into an AMI"):
        continued_bake.bake_on(
            begun, MagicMock(), MagicMock(), MagicMock(), MagicMock(), MagicMock()
        )
    assert len(timed) == 1


@pytest.fixture
def goes_on(
    ec2: Any, keeps: Callable[[int], str], plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., BakedAmi]:
    """A bake that continues on an instance whose deadline is near, and how its bake there ends.
    SSH is not used."""
    keeps(1)
    (on,) = runs.kept(ROW, PLACE)
    for name in ("stop_timer", "set_timer"):
        monkeypatch.setattr(kept_instance, name, MagicMock())

    def bake(end: BaseException | None, draft: Any = None) -> BakedAmi:
        monkeypatch.setattr(continued_bake.bake, "go_on", MagicMock(side_effect=end))
        begun = replace(plan, options=Options(start="tuning"))
        draft = draft or MagicMock(record=a_record())
        return continued_bake.bake_on(begun, MagicMock(), draft, on, MagicMock(), Stop())

    return bake


def a_failure(component: str = "tuning") -> ProvisionerError:
    script = f"provisioners/{component}.sh"
    return ProvisionerError(ROW, Failure(component, script, "it broke"), log="log")


def test_an_instance_on_which_a_bake_goes_on_has_a_new_deadline(
    ec2: Any, goes_on: Callable[..., BakedAmi]
) -> None:
    """A build of another row, and `sweep` on another machine, would remove it in the middle."""
    with pytest.raises(KeyboardInterrupt):
        goes_on(KeyboardInterrupt())
    (kept,) = runs.kept(ROW, PLACE)
    assert kept.until > in_hours(3)
    (tagged,) = ec2.describe_instances(InstanceIds=[kept.instance_id])["Reservations"]
    assert {"Key": "kiln:kept-until", "Value": kept.until} in tagged["Instances"][0]["Tags"]


def test_a_failure_on_a_kept_instance_is_in_the_record_with_the_deadline(
    goes_on: Callable[..., BakedAmi],
) -> None:
    draft = MagicMock(record=a_record())
    with pytest.raises(ProvisionerError, match="it broke") as failed:
        goes_on(a_failure(), draft)
    (kept,) = runs.kept(ROW, PLACE)
    assert f"kept: {kept.instance_id} until {kept.until}" in failed.value.hint
    assert (draft.record.kept.instance_id, draft.record.kept.until) == (
        kept.instance_id,
        kept.until,
    )


@pytest.mark.parametrize(
    ("component", "logs_in", "left"), [("hygiene", False, 0), ("cleanup", True, 1)]
)
def test_a_kept_instance_to_which_nobody_can_log_in_any_more_is_removed(
    goes_on: Callable[..., BakedAmi],
    monkeypatch: pytest.MonkeyPatch,
    component: str,
    logs_in: bool,
    left: int,
) -> None:
    """`cleanup` removes the run's key from it; if it fails before that, the bake can go on."""
    monkeypatch.setattr(kept_instance, "_ssh", lambda *given: logs_in)
    draft = MagicMock(record=a_record())
    with pytest.raises(ProvisionerError, match="it broke"):
        goes_on(a_failure(component), draft)
    assert len(runs.kept(ROW, PLACE)) == left
    said = "cleanup has removed the keys, so nobody can log in"
    assert (said in str(draft.progress.say.call_args)) is not logs_in


def test_a_failure_is_told_though_the_kept_instance_is_gone(
    goes_on: Callable[..., BakedAmi], monkeypatch: pytest.MonkeyPatch
) -> None:
    draft = MagicMock(record=a_record())
    gone = operation_failed("the kept instance is gone")
    monkeypatch.setattr(kept_instance, "renew", MagicMock(side_effect=["", gone]))
    with pytest.raises(ProvisionerError, match="it broke"):
        goes_on(a_failure(), draft)
    assert draft.progress.say.call_args[0][0].endswith("gone")


def test_an_interruption_stays_one_though_the_kept_instance_does_not_answer(
    goes_on: Callable[..., BakedAmi], monkeypatch: pytest.MonkeyPatch
) -> None:
    refuses = MagicMock(side_effect=operation_failed("no route to host"))
    monkeypatch.setattr(kept_instance, "set_timer", refuses)
    with pytest.raises(KeyboardInterrupt):
        goes_on(KeyboardInterrupt())


def test_the_ami_of_a_kept_instance_is_waited_for_though_ec2_does_not_know_it_at_once(
    ec2: Any, goes_on: Callable[..., BakedAmi], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, Any]] = []
    real = continued_bake.aws.ec2

    def forgetful(target: Any) -> Any:
        client = MagicMock(wraps=real(target))

        def describe_images(**request: Any) -> Any:
            asked.append(request)
            if len(asked) == 1:
                return {"Images": []}
            return real(target).describe_images(**request)

        def create_image(**request: Any) -> Any:
            # moto does not take tags of snapshots.
            return real(target).create_image(InstanceId=request["InstanceId"], Name="continued")

        client.create_image = create_image
        client.describe_images = describe_images
        return client

    monkeypatch.setattr(continued_bake.aws, "ec2", forgetful)
    monkeypatch.setattr(continued_bake, "_tags", lambda *given: {})
    monkeypatch.setattr(Stop, "sleep", lambda *given: None)
    assert goes_on(None).ami_id.startswith("ami-")
    assert len(asked) == 2


def test_sweep_names_it_until_its_deadline_and_takes_it_then_however_young_it_is(
    ec2: Any, keeps: Callable[[int], str]
) -> None:
    kept, late = keeps(2), keeps(-1)
    listed = leftovers(AWS, ["eu-central-1"], timedelta(hours=24))
    until = {resource.id: resource.kept_until for resource in listed}
    assert until[kept] > in_hours(1)
    assert until[late] == ""
    shown = sweep_text(listed, [], applied=False)
    assert f"kept until {until[kept]}" in shown
    done = sweep(AWS, listed)
    assert late in {resource.id for resource in done}
    assert kept not in {resource.id for resource in done}
    assert state_of(ec2, kept) == "running"
    assert f"kept until {until[kept]}" in sweep_text(listed, done, applied=True)


def test_another_place_has_no_kept_instance_of_the_row(keeps: Callable[[int], str]) -> None:
    keeps(2)
    assert runs.kept(ROW, ("aws", "999999999999", "eu-central-1")) == []


@pytest.mark.parametrize("field", ["kept_instance", "kept_until"])
def test_a_damaged_deadline_is_refused_and_nothing_is_removed(
    ec2: Any, keeps: Callable[[int], str], tmp_path: Path, field: str
) -> None:
    instance = keeps(-1)
    (path,) = (tmp_path / "build").glob("*/*/run.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), field: "*"}))
    clean_dead_runs(AWS, Progress())
    assert state_of(ec2, instance) == "running"


# ------------------------------------------------------------------- the words


def test_an_unknown_component_is_refused_with_those_of_the_row() -> None:
    done = commands.invoke("build", "--name", ROW, "--from", "tunin", "--target", "lab")
    assert done.returncode == 2
    assert "nvidia-driver, nvidia-fabricmanager, cuda" in done.stderr
    assert "did you mean tuning?" in done.stderr


def test_another_word_than_keep_is_refused() -> None:
    done = commands.invoke("build", "--name", ROW, "--on-error", "ask", "--target", "lab")
    assert done.returncode == 2
    assert "--on-error ask is neither keep nor clean-up" in done.stderr


@pytest.mark.parametrize(
    ("account", "words"),
    [
        (
            Account(ssh_interface="session_manager", iam_instance_profile="ours"),
            "not by ssh_interface session_manager",
        ),
        (Account(spot=True), "not for Spot instances"),
    ],
)
def test_settings_with_which_nothing_can_be_kept_are_refused(account: Account, words: str) -> None:
    recipe = load_recipes()[0]
    mine = replace(recipe, row=replace(recipe.row, account=account))
    with pytest.raises(KilnError, match=words):
        build.announce([mine], Options(keep_instance=True), AWS, lambda line: None)


# ------------------------------------------------------------------- what a state depends on


@pytest.fixture(scope="module")
def plan() -> Plan:
    recipe = next(recipe for recipe in load_recipes() if recipe.name == ROW)
    return Plan(
        recipe=recipe,
        target=AWS,
        source=ParentAmi("ami-0123456789abcdef0", "", "", ""),
        instance_types=("g4dn.xlarge",),
        verify_instance_type="g4dn.xlarge",
        recipe_digest="",
        account=Account(),
        options=Options(),
    )


def with_changed(
    plan: Plan, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> str:
    """The digest of the state before a component when a file that is uploaded has changed."""
    files = uploads.uploaded_files(plan.recipe)
    changed = tmp_path / "changed"
    changed.write_bytes(files[path].read_bytes() + b"\n")
    monkeypatch.setattr(uploads, "uploaded_files", lambda recipe: {**files, path: changed})
    return states.digest_before(plan, name)


@pytest.mark.parametrize(
    "path",
    [
        "provisioners/tuning.sh",
        "provisioners/hygiene.sh",
        "runtime/opt/kiln/lib/kiln-agent-sources",
    ],
)
def test_a_state_outlives_changes_of_what_comes_after_it(
    plan: Plan, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = states.digest_before(plan, "tuning")
    assert with_changed(plan, path, tmp_path, monkeypatch, "tuning") == before


@pytest.mark.parametrize(
    "path",
    [
        "provisioners/kernel.sh",
        "provisioners/lib/packages.sh",
        "runtime/usr/local/bin/gpu-mig",
        # Named by a variable: nobody knows which script reads it.
        "runtime/etc/systemd/system/slurmd.service.d/20-gpu-mig.conf",
        "runtime-variants/systemd-before-240/etc/systemd/system/aws-gpu-mig.service",
    ],
)
def test_a_state_does_not_outlive_changes_of_what_went_into_it(
    plan: Plan, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = states.digest_before(plan, "tuning")
    assert with_changed(plan, path, tmp_path, monkeypatch, "tuning") != before


def test_a_state_depends_on_parent_variables_and_mirrors_but_not_on_tags(plan: Plan) -> None:
    def digest(**changed: Any) -> str:
        return states.digest_before(replace(plan, **changed), "tuning")

    other = replace(plan.recipe, driver="510.108.03")
    late = replace(plan.recipe, cloudwatch_agent="1.300071.1")
    assert len({digest(), digest(recipe=other), digest(source=ParentAmi("ami-1", "", "", ""))}) == 3
    assert digest(account=Account(mirrors={"https://a.example": "https://b.example"})) != digest()
    assert digest(account=Account(tags={"team": "a"})) == digest(recipe=late) == digest()


def test_a_bake_that_starts_at_hygiene_starts_at_what_hygiene_judges(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine booted from what `cleanup` has left has a machine id and keys again."""
    monkeypatch.setattr(kept_instance, "kept_of", lambda plan: MagicMock())
    progress = MagicMock()
    begun = replace(plan, options=Options(start="hygiene"))
    bake_start.start_of(begun, MagicMock(), a_record(), progress, Stop())
    assert "it judges what cleanup leaves" in progress.say.call_args_list[0][0][0]
    assert begun.start == "cleanup"
    assert [step.partition(":")[0] for step in begun.steps[1:3]] == ["bake cleanup", "bake hygiene"]


def test_a_bake_begins_at_the_latest_state_that_fits(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(states, "digest_before", lambda plan, name: f"digest of {name}")
    kept = {"digest of cuda": "ami-1", "digest of efa": "ami-2", "of another row": "ami-3"}
    names = ("cuda", "efa", "tuning")
    assert states.latest_state(plan, names, kept) == states.BakeState("efa", "ami-2")
    assert states.latest_state(plan, ("tuning",), kept) is None


@pytest.fixture
def bakes(ec2: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Packer is not run: a bake makes an image of the run, and nothing else."""
    monkeypatch.setenv("KILN_BUILD_DIR", str(tmp_path / "build"))
    builder = {"ImageId": "ami-0123456789abcdef0", "InstanceType": "g4dn.xlarge"}
    builder_id = ec2.run_instances(**builder, MinCount=1, MaxCount=1)["Instances"][0]["InstanceId"]

    def bake(plan: Plan, packer: Any, draft: Draft, *more: Any) -> BakedAmi:
        marks = [{"ResourceType": "image", "Tags": resources.tags(draft.run.id)}]
        image = ec2.create_image(InstanceId=builder_id, Name="state", TagSpecifications=marks)
        return BakedAmi(image["ImageId"], "g4dn.xlarge", {})

    monkeypatch.setattr(states.bake, "bake", bake)


@pytest.mark.usefixtures("bakes")
def test_a_state_of_which_a_file_changes_while_it_is_baked_is_not_kept(
    ec2: Any, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    digests = iter(["as asked", "as edited"])
    monkeypatch.setattr(states, "digest_before", lambda *_: next(digests))
    with pytest.raises(KilnError, match="a file of the state before tuning changed") as refused:
        states.state_before(plan, "tuning", MagicMock(), a_record(), Progress(), Stop())
    assert refused.value.exit_status == 1
    assert states.kept_states(AWS) == {}
    assert ec2.describe_images(Owners=["self"])["Images"] == []


@pytest.mark.usefixtures("bakes")
def test_a_state_is_kept_by_what_went_into_it(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(states, "latest_state", lambda *_: None)
    made = states.state_before(plan, "tuning", MagicMock(), a_record(), Progress(), Stop())
    assert made is not None
    assert states.kept_states(AWS) == {states.digest_before(plan, "tuning"): made.ami_id}


def test_in_aws_a_bake_goes_on_only_on_an_instance_that_is_kept_here(
    plan: Plan, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("KILN_BUILD_DIR", str(tmp_path / "build"))
    asked = replace(plan, options=Options(start="tuning"))
    nothing: Any = None
    with pytest.raises(KilnError, match=f"in AWS .* no build instance of {ROW} is kept") as refused:
        bake_start.start_of(asked, nothing, nothing, Progress(), Stop())
    assert refused.value.exit_status == 2


def make_states(ec2: Any, count: int) -> list[str]:
    """So many kept states; their AMIs."""
    launched = ec2.run_instances(
        ImageId="ami-0123456789abcdef0", InstanceType="g4dn.xlarge", MinCount=1, MaxCount=1
    )
    instance = launched["Instances"][0]["InstanceId"]
    made = []
    for number in range(count):
        image = ec2.create_image(InstanceId=instance, Name=f"state {number}")["ImageId"]
        ec2.create_tags(Resources=[image], Tags=[{"Key": "kiln:state", "Value": str(number)}])
        made.append(str(image))
    ec2.create_image(InstanceId=instance, Name="no state")
    return made


def test_six_states_are_kept_and_none_for_more_than_a_week(
    ec2: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_states(ec2, 8)
    monkeypatch.setattr(states, "_IN_USE", timedelta(seconds=-1))
    states.remove_old_states(AWS, Progress())
    assert len(states.kept_states(AWS)) == 6
    assert len(ec2.describe_images(Owners=["self"])["Images"]) == 7
    assert len(ec2.describe_snapshots(OwnerIds=["self"])["Snapshots"]) <= 7
    monkeypatch.setattr(states, "_OLDEST", timedelta(seconds=-1))
    assert states.kept_states(AWS) == {}
    states.remove_old_states(AWS, Progress())
    assert len(ec2.describe_images(Owners=["self"])["Images"]) == 1


def test_a_state_that_a_bake_is_about_to_begin_on_is_not_removed_by_another_bake(
    ec2: Any, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than six rows may be baked side by side, each from a state of its own."""
    made = make_states(ec2, 8)
    states.remove_old_states(AWS, Progress())
    assert set(states.kept_states(AWS).values()) == set(made)
    # Two hours later they are idle, but for the one that a bake has just chosen.
    later = utc_now() + timedelta(hours=2)
    monkeypatch.setattr(states, "utc_now", lambda: later)
    monkeypatch.setattr(states, "now", lambda: as_time(later))
    monkeypatch.setattr(states, "digest_before", lambda plan, name: "0")
    here = replace(plan, target=AWS)
    nothing: Any = None
    begun = states.state_before(here, "tuning", nothing, nothing, Progress(), Stop())
    assert begun == states.BakeState("tuning", made[0])
    states.remove_old_states(AWS, Progress())
    kept = set(states.kept_states(AWS).values())
    assert len(kept) == 6
    assert made[0] in kept


def test_a_tag_that_somebody_has_written_does_not_end_the_next_bake(ec2: Any) -> None:
    (made,) = make_states(ec2, 1)
    ec2.create_tags(Resources=[made], Tags=[{"Key": "kiln:state-used", "Value": "yesterday"}])
    assert list(states.kept_states(AWS).values()) == [made]


def test_a_run_that_keeps_names_its_key(tmp_path: Path) -> None:
    kept = runs.KeptRun("20261121T000000Z-aaaa", "i-0123456789abcdef0", in_hours(1), tmp_path / "r")
    assert isinstance(kept.run, Run)
    assert kept.key_file == tmp_path / "ssh" / "key.pem"
