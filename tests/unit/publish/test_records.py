"""Records in S3: what one machine has built, another one publishes, lists and reports."""

from __future__ import annotations

import json
import shutil
from datetime import datetime, timezone
from pathlib import Path

import pytest

from kiln.base.errors import KilnError
from kiln.base.paths import build_dir
from kiln.base.processes import Stop
from kiln.base.progress import Progress
from kiln.base.tags import INPUT_DIGEST
from kiln.cli.options import RecordSettings
from kiln.cloud.runs import Run
from kiln.image import diff
from kiln.pipeline import plan as planning
from kiln.pipeline import record, records
from kiln.pipeline.draft import Draft, cleaned_up
from kiln.pipeline.records import RecordsBucket
from kiln.publish import channels
from kiln.publish.night import RowResult, finish_night, newest_builds, plan_night, read_plan
from tests.unit.publish import faults
from tests.unit.publish.channel import (
    AWS,
    HOME,
    LINE,
    RECIPE,
    Bake,
    Client,
    a_line,
    published,
    resolved,
)
from tests.unit.publish.faults import faulty
from tests.unit.records import a_record, checks

pytestmark = pytest.mark.slow
RUN = "20261121T000000Z-aaaa"


@pytest.fixture
def bucket(client: Client, tmp_path: Path) -> RecordsBucket:
    """A bucket of its own."""
    name = f"records-{tmp_path.name}".replace("_", "-").lower()[:60] + "0"
    client("s3").create_bucket(Bucket=name)
    return RecordsBucket(name, AWS)


def on_another_machine() -> None:
    shutil.rmtree(build_dir(), ignore_errors=True)


def test_build_of_another_machine_is_published(
    client: Client, bake: Bake, bucket: RecordsBucket
) -> None:
    ami_id = bake(1)
    bucket.keep(records.all_of(RECIPE.name)[0])
    on_another_machine()
    with pytest.raises(KilnError, match="no verified AMI"):
        published()
    published(bucket=bucket)
    assert resolved(client, "nightly") == ami_id
    (here,) = records.all_of(RECIPE.name)
    assert here.folder == str(build_dir() / RECIPE.name / here.run_id), "another machine's folder"


def test_record_is_kept_before_a_channel_moves(bake: Bake, bucket: RecordsBucket) -> None:
    bake(2)
    with (
        faulty(faults.refuses("PutObject", "AccessDenied")),
        pytest.raises(KilnError, match=rf"kept at s3://{bucket.name}/runs/.*AccessDenied"),
    ):
        published(bucket=bucket)
    assert channels.held(AWS, LINE, "nightly") is None
    published(bucket=bucket)
    on_another_machine()
    assert len(bucket.fetch_row(RECIPE.name, pytest.fail)) == 1
    assert records.all_of(RECIPE.name)[0].status == "verified"


WRONG = {
    "not JSON": (b"\xff{", "not a JSON record"),
    "another shape": (b'{"schema": 2}', "not a record of a run: `run_id`"),
    "a filter of EC2 as id": (
        json.dumps({**a_record().to_dict(), "run_id": RUN, "ami_id": "*"}).encode(),
        "`ami_id`: '*' is not an AMI's id",
    ),
    "another run": (record.as_text(a_record(run_id=RUN[:-1] + "b")).encode(), "another run's"),
}


@pytest.mark.parametrize("what", WRONG)
def test_invalid_record_is_left_out(client: Client, bucket: RecordsBucket, what: str) -> None:
    text, why = WRONG[what]
    s3, messages = client("s3"), []
    s3.put_object(Bucket=bucket.name, Key=bucket.key(RECIPE.name, RUN), Body=text)
    for key in (f"runs/{RECIPE.name}/{RUN}/notes.txt", f"runs/../{RUN}/record.json"):
        s3.put_object(Bucket=bucket.name, Key=key, Body=b"{}")
    bucket.fetch_row(RECIPE.name, messages.append)
    assert records.all_of(RECIPE.name) == []
    (line,) = messages
    assert f"s3://{bucket.name}/runs/{RECIPE.name}/{RUN}/record.json" in line
    assert why in line


@pytest.mark.parametrize("name", [RUN, "ami-0fade000"])
def test_diff_finds_a_build_of_another_machine(
    bucket: RecordsBucket, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket.keep(a_record(run_id=RUN, versions={"packages": []}))
    monkeypatch.setattr("kiln.cli.targets.choose", lambda *_: AWS)
    RecordSettings(records_bucket=bucket.name).fetch_builds(name, name)
    assert diff.compare_images(name, name)["changes"] == []


def test_list_shows_the_newest_run_of_any_machine(
    bucket: RecordsBucket, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("kiln.cli.targets.choose", lambda *_: AWS)
    with faulty(faults.region_down(HOME)):
        RecordSettings(records_bucket=bucket.name).fetch_newest([RECIPE.name])
    assert "only what was built here is shown" in capsys.readouterr().err
    for day in (20, 22, 21):
        bucket.keep(a_record(run_id=f"202611{day}T000000Z-aaaa"))
    monkeypatch.setenv("KILN_AWS_RECORDS_BUCKET", bucket.name)
    RecordSettings().fetch_newest([RECIPE.name, "al2023-other"])
    last = records.last(RECIPE.name)
    assert last
    assert last.run_id == "20261122T000000Z-aaaa"


def test_record_of_a_failed_run_reaches_the_bucket(bucket: RecordsBucket, tmp_path: Path) -> None:
    run = Run(RUN, RECIPE.name, build_dir() / RECIPE.name / RUN)
    run.folder.mkdir(parents=True)
    first = a_record(run_id=RUN, status="failed", ami_id=None)
    draft = Draft(first, run, AWS, Progress(), Stop(), bucket)
    with pytest.raises(KilnError), cleaned_up(draft, delete_ami_on_failure=True):
        raise KilnError("yum knows no such package")
    on_another_machine()
    bucket.fetch_row(RECIPE.name, pytest.fail)
    (there,) = records.all_of(RECIPE.name)
    assert (there.status, there.error) == ("failed", "yum knows no such package")


def a_night(bake: Bake) -> str:
    """An AMI built this night from today's inputs; its id."""
    digest = planning.plan_build(RECIPE, AWS, planning.Options()).input_digest
    return bake(
        3,
        tags={INPUT_DIGEST: digest},
        checks=checks(("test_x", "test_y", "passed", "")),
        instance_type="g4dn.xlarge",
    )


def moved_to_tonight(bucket: RecordsBucket) -> None:
    """The bucket has the record with a run id of this night."""
    made = records.all_of(RECIPE.name)[0]
    data = {**made.to_dict(), "run_id": f"{datetime.now(timezone.utc):%Y%m%dT%H%M%SZ}-aaaa"}
    bucket.keep(record.parse_record(data, "x"))


def finished(planned: dict[str, str]) -> RowResult:
    night = plan_night([a_line()], AWS)
    builds = newest_builds([RECIPE], lambda recipe: None, pytest.fail)
    (result,) = finish_night(night, planned, builds)
    return result


def test_finish_reports_builds_of_other_machines(bake: Bake, bucket: RecordsBucket) -> None:
    ami_id = a_night(bake)
    published(bucket=bucket)
    moved_to_tonight(bucket)
    on_another_machine()
    assert finished({}).action == "skipped"
    bucket.fetch_row(RECIPE.name, pytest.fail)
    result = finished({RECIPE.name: "it has no verified AMI"})
    assert (result.action, result.ami_id) == ("built", ami_id)
    assert (result.why, result.checks) == ("it has no verified AMI", "1 passed, 0 failed")
    assert (result.line, result.channel, result.seconds) == (LINE, "nightly", 68.3)
    assert result.usd


def test_wrong_bucket_or_plan_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text('{"items": [{"row": "a"}]}')
    with pytest.raises(KilnError, match=r"plan\.json: not ") as refused:
        read_plan(path)
    assert refused.value.exit_status == 2
    with pytest.raises(KilnError, match="--records-bucket") as refused:
        RecordSettings(records_bucket="s3://mine").fetch_builds(RUN)
    assert refused.value.exit_status == 2


def test_stray_parameter_is_no_channel(bake: Bake, client: Client) -> None:
    bake()
    published()
    for name in ("/ami-kiln/image_id", "/ami-kiln/x/image_id"):
        client("ssm").put_parameter(Name=name, Value="ami-0123456789abcdef0", Type="String")
    assert [held.line for held in channels.all_held(AWS)] == [LINE]


def test_forged_release_is_refused(bake: Bake, client: Client) -> None:
    bake()
    published()
    ssm, name = client("ssm"), channels.release_parameter(LINE, "nightly")
    release = json.loads(ssm.get_parameter(Name=name)["Parameter"]["Value"])
    for field, value in (
        ("recipe", "../../../etc"),
        ("run_id", "*"),
        ("moved", {"at": "9" * 30, "by": "me", "action": "rollback"}),
        ("images", {"us-east-1": "*"}),
    ):
        ssm.put_parameter(Name=name, Value=json.dumps({**release, field: value}), Overwrite=True)
        with pytest.raises(KilnError, match=f"not a release: `{field}"):
            list(channels.past(AWS, LINE, "nightly"))
