"""`amis.lock.yaml`: which bytes a bake downloads, who signed them, what builds on AWS saw."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from kiln import components
from kiln.base.errors import KilnError
from kiln.base.paths import PROVISIONERS, ROOT
from kiln.cli import matrix as tasks
from kiln.components import Download
from kiln.facts.packages import read_lock_file
from kiln.matrix.load import load_recipes
from kiln.packer import lock
from kiln.pipeline.record import Record
from lab.target import LabTarget
from tests.unit.records import a_recipe

RECIPES = load_recipes(ROOT / "amis.yaml")
CLASSIC = next(
    recipe for recipe in RECIPES if (recipe.distro.id, recipe.stack) == ("al2", "classic")
)
EMPTY = {"artifacts": [], "packages": []}
# Nobody has published its hash.
PLUGIN = (
    "https://github.com/aws/aws-ofi-nccl/releases/download/v1.9.2-aws/aws-ofi-nccl-1.9.2-aws.tar.gz"
)
EFA = "https://efa-installer.amazonaws.com/aws-efa-installer-1.34.0.tar.gz"
EFA_KEY = "https://efa-installer.amazonaws.com/aws-efa-installer.key"
EFA_SHA256 = "bd68839e741b0afd3ec2e37d50603803cfa7a279c120f0a736cc57c2ff2d7fdc"


@pytest.fixture
def locked(tmp_path):
    """The lock of CLASSIC, in a file of its own."""
    path = tmp_path / "amis.lock.yaml"
    lock.update_lock([CLASSIC], path)
    return path


def artifact(path, url):
    """The entry of a URL in a lock file."""
    return next(entry for entry in read_lock_file(path)["artifacts"] if entry["url"] == url)


def test_the_committed_lock_is_what_the_matrix_downloads():
    assert lock.plan_lock(RECIPES, read_lock_file()).as_text() == "amis.lock.yaml is up to date"


def test_a_checksum_the_facts_know_is_in_the_lock_with_its_source(locked):
    entry = artifact(locked, EFA)
    assert entry["version"] == "1.34.0"
    assert entry["sha256"] == EFA_SHA256
    assert "parallelcluster" in entry["source"]


def test_a_new_version_shows_as_a_readable_diff(locked):
    changes = lock.plan_lock([CLASSIC.changed(efa="1.36.0")], read_lock_file(locked)).as_text()
    assert f"- {EFA}  1.34.0  sha256 {EFA_SHA256}" in changes
    assert "+ https://efa-installer.amazonaws.com/aws-efa-installer-1.36.0.tar.gz" in changes


def test_a_download_called_latest_is_refused(monkeypatch):
    efa = components.get("efa")
    url = "https://efa-installer.amazonaws.com/aws-efa-installer-latest.tar.gz"
    bad = replace(efa, downloads=lambda recipe: (Download("EFA_INSTALLER", url),))
    monkeypatch.setattr(components, "get", lambda name: bad)
    with pytest.raises(KilnError, match="latest"):
        lock.wanted([CLASSIC], EMPTY)


def test_a_locked_checksum_that_is_not_the_published_one_is_told_with_both(locked):
    locked.write_text(locked.read_text().replace(EFA_SHA256, "b" * 64))
    with pytest.raises(KilnError) as error:
        lock.plan_lock([CLASSIC], read_lock_file(locked))
    assert EFA in error.value.message
    assert EFA_SHA256 in error.value.message
    assert "b" * 64 in error.value.message
    with pytest.raises(KilnError):
        lock.update_lock([CLASSIC], locked)


def test_a_process_that_is_killed_while_it_writes_the_lock_leaves_the_old_one(locked, monkeypatch):
    before = locked.read_text()

    def killed(path, text, **more):
        path.write_bytes(text.encode()[:100])
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "write_text", killed)
    with pytest.raises(KeyboardInterrupt):
        lock.update_lock([], locked)
    assert locked.read_text() == before


# ------------------------------------------------------------------- who signs what


def test_a_key_file_is_known_by_its_fingerprint(locked):
    url = "https://developer.download.nvidia.com/compute/cuda/repos/rhel7/x86_64/D42D0685.pub"
    assert artifact(locked, url)["fingerprint"].endswith("D42D0685")


def test_a_signature_is_known_by_the_file_it_signs_and_its_key(locked):
    signature = artifact(locked, f"{EFA}.sig")
    assert signature == {
        "url": f"{EFA}.sig",
        "signs": EFA,
        "signed_by": artifact(locked, EFA_KEY)["fingerprint"],
    }


SIGNED = [
    pytest.param(component, file, other, id=f"{component.name}: {other.env}")
    for component in (components.get(name).for_recipe(CLASSIC) for name in CLASSIC.components)
    for file in component.downloads
    for other in component.downloads
    if other.url == f"{file.url}.sig"
]


@pytest.mark.parametrize(("component", "file", "signature"), SIGNED)
def test_what_the_lock_knows_by_its_signature_is_checked_before_it_is_used(
    component, file, signature
):
    lines = (PROVISIONERS / f"{component.name}.sh").read_text().splitlines()
    variable = {
        result[2]: result[1]
        for line in lines
        if (result := re.fullmatch(r"\s*(\w+)=\$\(kiln_download (\w+)\) \|\| exit 1", line))
    }
    (key,) = (name for name in variable if name.endswith("_KEY"))
    (fingerprint,) = component.keys
    archive = f'"${variable[file.env]}"'
    used = next(line.strip() for line in lines if archive in line)
    assert used == (
        f'kiln_check_signature {archive} "${variable[signature.env]}" "${variable[key]}" '
        f'"${fingerprint}"'
    )


@pytest.mark.parametrize("keys", [{}, {"EFA_KEY_FINGERPRINT": "efa", "OTHER": "fsx-lustre"}])
def test_a_signature_without_the_one_key_to_check_it_with_is_refused(monkeypatch, keys):
    efa = components.get("efa")
    bad = replace(efa, keys=keys, urls=efa.urls[:2])
    monkeypatch.setattr(components, "get", lambda name: bad)
    with pytest.raises(KilnError, match=f"names {len(keys)} keys to check it with") as error:
        lock.wanted([CLASSIC], EMPTY)
    assert error.value.exit_status == 2


def test_packages_are_locked_by_repository_key_and_version(locked):
    repositories = {entry["repository"]: entry for entry in read_lock_file(locked)["packages"]}
    cuda = repositories["https://developer.download.nvidia.com/compute/cuda/repos/rhel7/x86_64"]
    assert cuda["signed_by"].endswith("D42D0685")
    assert "cuda-toolkit-11-6=11.6.2" in cuda["packages"]


def test_the_distributions_own_driver_is_not_said_to_come_from_nvidia():
    recipe = CLASSIC.changed(driver_source="distro")
    (archive,) = [
        entry
        for entry in lock.wanted([recipe], EMPTY)["packages"]
        if entry["repository"] == "archive of al2"
    ]
    assert any(package.endswith("=510.47.03") for package in archive["packages"])


# ------------------------------------------------------------------- what a build on AWS saw


def downloads(url, sha256):
    return [{"url": url, "sha256": sha256, "sha256_was": "first-seen", "component": "x"}]


def test_what_a_build_on_aws_saw_is_recorded_and_kept(locked):
    lock.record_hashes(downloads(PLUGIN, "a" * 64), note="", when="build 7", path=locked)
    assert artifact(locked, PLUGIN)["sha256"] == "a" * 64
    assert artifact(locked, PLUGIN)["source"] == "seen by build 7"
    assert not lock.update_lock([CLASSIC], locked)
    assert artifact(locked, PLUGIN)["sha256"] == "a" * 64


def test_a_build_on_aws_confirms_a_hash_that_nobody_had_confirmed(locked):
    recipe = CLASSIC.changed(driver="550.163.01")
    lock.update_lock([recipe], locked)
    url = next(e["url"] for e in read_lock_file(locked)["artifacts"] if e.get("confirmed") is False)
    sha256 = artifact(locked, url)["sha256"]
    lock.record_hashes(downloads(url, sha256), note="", when="build 7", path=locked)
    for again in range(2):
        entry = artifact(locked, url)
        assert "confirmed" not in entry, f"after update {again}"
        assert (entry["sha256"], entry["source"]) == (sha256, "seen by build 7")
        lock.update_lock([recipe], locked)


def test_a_download_that_the_lock_has_no_checksum_of_is_first_seen(locked):
    seen = downloads(PLUGIN, "a" * 64) + downloads(EFA, EFA_SHA256) + downloads(EFA_KEY, "d" * 64)
    assert lock.first_seen(seen, locked) == [PLUGIN]
    lock.record_hashes(seen, note="", when="build 7", path=locked)
    assert lock.first_seen(seen, locked) == []


def test_a_checksum_that_differs_stops_with_both(locked):
    with pytest.raises(KilnError) as error:
        lock.record_hashes(downloads(EFA, "b" * 64), note="", when="build 8", path=locked)
    assert error.value.exit_status == 1
    assert EFA_SHA256 in error.value.message
    assert "b" * 64 in error.value.message
    assert artifact(locked, EFA)["sha256"] == EFA_SHA256


def test_the_labs_stand_ins_are_never_recorded(locked):
    note = LabTarget("for the test").record_fields("x86_64")["image_note"]
    with pytest.raises(KilnError) as error:
        lock.record_hashes(downloads(PLUGIN, "c" * 64), note=note, when="run 1", path=locked)
    assert error.value.exit_status == 2
    assert error.value.message == (
        "run 1 is of an AMI of the lab on this machine: its hashes are not locked"
    )
    assert artifact(locked, PLUGIN)["sha256"] is None


@pytest.mark.parametrize("url", [EFA_KEY, f"{EFA}.sig"])
def test_the_checksum_of_a_key_or_a_signature_is_not_recorded(locked, url):
    seen = downloads(url, "d" * 64) + downloads(PLUGIN, "e" * 64)
    lock.record_hashes(seen, note="", when="build 9", path=locked)
    assert artifact(locked, PLUGIN)["sha256"] == "e" * 64
    assert "sha256" not in artifact(locked, url)


def locking(*, update, run):
    """`./invoke lock`; its exit status."""
    return tasks.lock.body.__wrapped__(update=update, from_=run)


def written(path, run_id, **data):
    """The record of a run in the build folder."""
    folder = path / "build" / "al2-classic" / run_id
    folder.mkdir(parents=True)
    versions = {"downloads": downloads(PLUGIN, "a" * 64)}
    known = {"kind": "build", "status": "verified", "recipe": a_recipe(), "target": "aws"}
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
    assert f"+ {PLUGIN}" in capsys.readouterr().out
