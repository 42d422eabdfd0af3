"""The hashes that a bake saw: those of a build on AWS come into `amis.lock.yaml`."""

import json
from threading import Thread

import pytest

from kiln.base.errors import KilnError
from kiln.cli import matrix as tasks
from kiln.packer import lock, seen_hashes
from kiln.pipeline.record import Record
from lab.target import LabTarget
from tests.unit.locks import CLASSIC, EFA, EFA_KEY, EFA_SHA256, PLUGIN, artifact, locked_file


def downloads(url, sha256):
    return [{"url": url, "sha256": sha256, "sha256_was": "first-seen", "component": "x"}]


@pytest.fixture
def locked(tmp_path):
    return locked_file(tmp_path)


def test_what_a_build_on_aws_saw_is_recorded_and_kept(locked):
    seen_hashes.record_hashes(downloads(PLUGIN, "a" * 64), note="", when="build 7", path=locked)
    assert artifact(locked, PLUGIN)["sha256"] == "a" * 64
    assert artifact(locked, PLUGIN)["source"] == "seen by build 7"
    assert not lock.update_lock([CLASSIC], locked)
    assert artifact(locked, PLUGIN)["sha256"] == "a" * 64


def test_an_update_of_the_lock_loses_no_hash_that_is_recorded_meanwhile(locked, monkeypatch):
    beside = Thread(
        target=seen_hashes.record_hashes,
        args=(downloads(PLUGIN, "a" * 64),),
        kwargs={"note": "", "when": "build 7", "path": locked},
    )
    wanted = lock.wanted

    def slowly(*arguments):
        beside.start()
        beside.join(0.5)
        return wanted(*arguments)

    monkeypatch.setattr(lock, "wanted", slowly)
    assert lock.update_lock([CLASSIC, CLASSIC.changed(driver="550.163.01")], locked)
    beside.join()
    assert artifact(locked, PLUGIN)["sha256"] == "a" * 64


def test_a_build_on_aws_confirms_a_hash_that_nobody_had_confirmed(locked):
    recipe = CLASSIC.changed(driver="550.163.01")
    lock.update_lock([recipe], locked)
    url = next(e["url"] for e in lock.load_lock(locked)["artifacts"] if e.get("confirmed") is False)
    sha256 = artifact(locked, url)["sha256"]
    seen_hashes.record_hashes(downloads(url, sha256), note="", when="build 7", path=locked)
    for again in range(2):
        entry = artifact(locked, url)
        assert "confirmed" not in entry, f"after update {again}"
        assert (entry["sha256"], entry["source"]) == (sha256, "seen by build 7")
        lock.update_lock([recipe], locked)


def test_a_download_that_the_lock_has_no_checksum_of_is_first_seen(locked):
    seen = downloads(PLUGIN, "a" * 64) + downloads(EFA, EFA_SHA256) + downloads(EFA_KEY, "d" * 64)
    assert seen_hashes.first_seen(seen, locked) == [PLUGIN]
    seen_hashes.record_hashes(seen, note="", when="build 7", path=locked)
    assert seen_hashes.first_seen(seen, locked) == []


def test_a_checksum_that_differs_stops_with_both(locked):
    with pytest.raises(KilnError) as error:
        seen_hashes.record_hashes(downloads(EFA, "b" * 64), note="", when="build 8", path=locked)
    assert error.value.exit_status == 1
    assert EFA_SHA256 in error.value.message
    assert "b" * 64 in error.value.message
    assert artifact(locked, EFA)["sha256"] == EFA_SHA256


def test_the_labs_stand_ins_are_never_recorded(locked):
    note = LabTarget("for the test").image_note
    with pytest.raises(KilnError) as error:
        seen_hashes.record_hashes(downloads(PLUGIN, "c" * 64), note=note, when="run 1", path=locked)
    assert error.value.exit_status == 2
    assert error.value.message == (
        "run 1 is of an AMI of the lab on this machine: its hashes are not locked"
    )
    assert artifact(locked, PLUGIN)["sha256"] is None


@pytest.mark.parametrize("url", [EFA_KEY, f"{EFA}.sig"])
def test_the_checksum_of_a_key_or_a_signature_is_not_recorded(locked, url):
    seen = downloads(url, "d" * 64) + downloads(PLUGIN, "e" * 64)
    seen_hashes.record_hashes(seen, note="", when="build 9", path=locked)
    assert artifact(locked, PLUGIN)["sha256"] == "e" * 64
    assert "sha256" not in artifact(locked, url)


@pytest.mark.parametrize("entries", ["text", [1], [{"url": "x"}]])
def test_broken_downloads_are_bad_input(locked, entries):
    with pytest.raises(KilnError, match="malformed"):
        seen_hashes.record_hashes(entries, note="", when="x", path=locked)


def locking(*, update, run):
    """`./invoke lock`; its exit status."""
    return tasks.lock.body.__wrapped__(update=update, from_=run)


def written(path, run_id, **data):
    """The record of a run in the build folder."""
    folder = path / "build" / "al2-classic" / run_id
    folder.mkdir(parents=True)
    versions = {"downloads": downloads(PLUGIN, "a" * 64)}
    known = {"kind": "build", "status": "verified", "recipe": {}, "target": "aws"}
    where = {"region": "us-east-1", "started": "2026-11-22T00:00:00Z", "folder": str(folder)}
    record = Record(run_id=run_id, **{**known, **where, "versions": versions, **data})
    (folder / "record.json").write_text(json.dumps(record.as_json()))
    return folder / "record.json"


@pytest.fixture
def builds(tmp_path, locked, monkeypatch):
    """A build folder and a lock file of their own."""
    monkeypatch.setenv("KILN_BUILD_DIR", str(tmp_path / "build"))
    monkeypatch.setenv("KILN_LOCK", str(locked))
    return tmp_path


@pytest.mark.parametrize("by", ["run id", "record"])
def test_the_checksums_of_a_build_on_aws_are_locked_from_its_record(builds, locked, capsys, by):
    path = written(builds, "20261122T000000Z-abcd")
    named = str(path) if by == "record" else "20261122T000000Z-abcd"
    assert locking(update=False, run=named) == 0
    assert artifact(locked, PLUGIN)["sha256"] == "a" * 64
    assert artifact(locked, PLUGIN)["source"] == "seen by run 20261122T000000Z-abcd"
    assert f"~ {PLUGIN}" in capsys.readouterr().out


def test_a_hash_that_is_locked_changes_no_other_line(builds, locked):
    before = locked.read_text().splitlines()
    written(builds, "20261121T000004Z-aaaa")
    locking(update=False, run="20261121T000004Z-aaaa")
    assert len(set(locked.read_text().splitlines()) - set(before)) == 2
    assert [line for line in locked.read_text().splitlines() if line in before][:20] == before[:20]


def test_the_checksums_of_a_build_in_the_lab_are_refused(builds, locked):
    before = locked.read_text()
    note = LabTarget("for the test").image_note
    written(builds, "20261121T000001Z-aaaa", target="lab", image_note=note)
    with pytest.raises(
        KilnError, match="run 20261121T000001Z-aaaa is of an AMI of the lab on this machine"
    ) as error:
        locking(update=False, run="20261121T000001Z-aaaa")
    assert error.value.exit_status == 2
    assert locked.read_text() == before


def test_a_run_that_never_got_to_its_checks_has_nothing_to_lock(builds):
    written(builds, "20261121T000002Z-aaaa", versions=None)
    with pytest.raises(KilnError, match="run 20261121T000002Z-aaaa has no versions"):
        locking(update=False, run="20261121T000002Z-aaaa")


def test_a_run_that_nobody_knows_is_bad_input(builds):
    with pytest.raises(KilnError, match="no record of such a build") as error:
        locking(update=False, run="20261121T000003Z-aaaa")
    assert error.value.exit_status == 2


def test_update_and_from_are_not_mixed(builds):
    with pytest.raises(KilnError, match="not both"):
        locking(update=True, run="20261121T000001Z-aaaa")
