"""`amis.lock.yaml`: which bytes a bake downloads, who signed them, what builds on AWS saw."""

import json
import re
from dataclasses import replace

import pytest

from kiln import components
from kiln.base.errors import KilnError
from kiln.base.paths import PROVISIONERS, ROOT
from kiln.cli import matrix as tasks
from kiln.components import Download
from kiln.facts.packages import read_lock_file
from kiln.matrix.load import load_recipes
from kiln.packer import lock
from lab.target import LabTarget
from tests.unit.records import a_record

RECIPES = load_recipes(ROOT / "amis.yaml")
CLASSIC = next(
    recipe for recipe in RECIPES if (recipe.distro.id, recipe.stack) == ("al2", "classic")
)
RUN = "20261122T000000Z-abcd"
EMPTY = {"artifacts": [], "packages": []}
# Nobody has published its hash.
PLUGIN = (
    "https://github.com/aws/aws-ofi-nccl/releases/download/v1.9.2-aws/aws-ofi-nccl-1.9.2-aws.tar.gz"
)
EFA = "https://efa-installer.amazonaws.com/aws-efa-installer-1.34.0.tar.gz"
EFA_KEY = "https://efa-installer.amazonaws.com/aws-efa-installer.key"
EFA_SHA256 = "bd68839e741b0afd3ec2e37d50603803cfa7a279c120f0a736cc57c2ff2d7fdc"


@pytest.fixture
def locked(tmp_path, monkeypatch):
    """The lock of CLASSIC, in a file of its own."""
    path = tmp_path / "amis.lock.yaml"
    monkeypatch.setenv("KILN_LOCK", str(path))
    lock.update_lock([CLASSIC])
    return path


def artifact(path, url):
    """The entry of a URL in a lock file."""
    return next(entry for entry in read_lock_file(path)["artifacts"] if entry["url"] == url)


def test_committed_lock_is_what_the_matrix_downloads():
    assert lock.plan_lock(RECIPES, read_lock_file()).as_text() == "amis.lock.yaml is up to date"


def test_lock_has_hash_key_or_signer_of_each_file(locked):
    entry = artifact(locked, EFA)
    assert (entry["version"], entry["sha256"]) == ("1.34.0", EFA_SHA256)
    assert "parallelcluster" in entry["source"]
    url = "https://developer.download.nvidia.com/compute/cuda/repos/rhel7/x86_64/D42D0685.pub"
    assert artifact(locked, url)["fingerprint"].endswith("D42D0685")
    key = artifact(locked, EFA_KEY)["fingerprint"]
    assert artifact(locked, f"{EFA}.sig") == {"url": f"{EFA}.sig", "signs": EFA, "signed_by": key}


def test_new_version_shows_as_diff(locked):
    changes = lock.plan_lock([CLASSIC.changed(efa="1.36.0")], read_lock_file(locked)).as_text()
    assert f"- {EFA}  1.34.0  sha256 {EFA_SHA256}" in changes
    assert "+ https://efa-installer.amazonaws.com/aws-efa-installer-1.36.0.tar.gz" in changes


def test_download_called_latest_is_refused(monkeypatch):
    efa = components.get("efa")
    url = "https://efa-installer.amazonaws.com/aws-efa-installer-latest.tar.gz"
    bad = replace(efa, downloads=lambda recipe: (Download("EFA_INSTALLER", url),))
    monkeypatch.setattr(components, "get", lambda name: bad)
    with pytest.raises(KilnError, match="latest"):
        lock.wanted([CLASSIC], EMPTY)


def test_locked_hash_must_be_the_published_one(locked):
    locked.write_text(locked.read_text().replace(EFA_SHA256, "b" * 64))
    with pytest.raises(KilnError) as error:
        lock.plan_lock([CLASSIC], read_lock_file(locked))
    assert all(each in error.value.message for each in (EFA, EFA_SHA256, "b" * 64))
    with pytest.raises(KilnError):
        lock.update_lock([CLASSIC])


# ------------------------------------------------------------------- who signs what


SIGNED = [
    pytest.param(component, file, other, id=f"{component.name}: {other.env}")
    for component in (components.get(name).for_recipe(CLASSIC) for name in CLASSIC.components)
    for file in component.downloads
    for other in component.downloads
    if other.url == f"{file.url}.sig"
]


@pytest.mark.parametrize(("component", "file", "signature"), SIGNED)
def test_script_checks_signature_before_use(component, file, signature):
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


def test_packages_are_locked_by_repository_and_key(locked):
    repositories = {entry["repository"]: entry for entry in read_lock_file(locked)["packages"]}
    cuda = repositories["https://developer.download.nvidia.com/compute/cuda/repos/rhel7/x86_64"]
    assert cuda["signed_by"].endswith("D42D0685")
    assert "cuda-toolkit-11-6=11.6.2" in cuda["packages"]


def test_distributions_driver_is_locked_by_its_archive():
    wanted = lock.wanted([CLASSIC.changed(driver_source="distro")], EMPTY)["packages"]
    (archive,) = [entry for entry in wanted if entry["repository"] == "archive of al2"]
    assert any(package.endswith("=510.47.03") for package in archive["packages"])


# ------------------------------------------------------------------- what a build on AWS saw


def downloads(url, sha256):
    return [{"url": url, "sha256": sha256, "sha256_was": "first-seen", "component": "x"}]


def test_hash_seen_in_aws_is_recorded_and_kept(locked):
    lock.record_hashes(downloads(PLUGIN, "a" * 64), note="", when="build 7")
    assert artifact(locked, PLUGIN)["sha256"] == "a" * 64
    assert artifact(locked, PLUGIN)["source"] == "seen by build 7"
    assert not lock.update_lock([CLASSIC])
    assert artifact(locked, PLUGIN)["sha256"] == "a" * 64


def test_build_in_aws_confirms_a_hash(locked):
    recipe = CLASSIC.changed(driver="550.163.01")
    lock.update_lock([recipe])
    url = next(e["url"] for e in read_lock_file(locked)["artifacts"] if e.get("confirmed") is False)
    sha256 = artifact(locked, url)["sha256"]
    lock.record_hashes(downloads(url, sha256), note="", when="build 7")
    for again in range(2):
        entry = artifact(locked, url)
        assert "confirmed" not in entry, f"after update {again}"
        assert (entry["sha256"], entry["source"]) == (sha256, "seen by build 7")
        lock.update_lock([recipe])


def test_download_without_locked_hash_is_first_seen(locked):
    seen = downloads(PLUGIN, "a" * 64) + downloads(EFA, EFA_SHA256) + downloads(EFA_KEY, "d" * 64)
    assert lock.first_seen(seen) == [PLUGIN]
    lock.record_hashes(seen, note="", when="build 7")
    assert lock.first_seen(seen) == []


def test_seen_hash_must_be_the_locked_one(locked):
    with pytest.raises(KilnError) as error:
        lock.record_hashes(downloads(EFA, "b" * 64), note="", when="build 8")
    assert error.value.exit_status == 1
    assert artifact(locked, EFA)["sha256"] == EFA_SHA256


def test_hashes_of_the_lab_are_never_recorded(locked):
    note = LabTarget("for the test").record_fields("x86_64")["image_note"]
    with pytest.raises(KilnError) as error:
        lock.record_hashes(downloads(PLUGIN, "c" * 64), note=note, when="run 1")
    assert error.value.exit_status == 2
    assert artifact(locked, PLUGIN)["sha256"] is None


@pytest.mark.parametrize("url", [EFA_KEY, f"{EFA}.sig"])
def test_hash_of_key_or_signature_is_not_recorded(locked, url):
    seen = downloads(url, "d" * 64) + downloads(PLUGIN, "e" * 64)
    lock.record_hashes(seen, note="", when="build 9")
    assert artifact(locked, PLUGIN)["sha256"] == "e" * 64
    assert "sha256" not in artifact(locked, url)


def test_hashes_are_locked_from_a_record(tmp_path, locked, monkeypatch, capsys):
    monkeypatch.setenv("KILN_BUILD_DIR", str(tmp_path / "build"))
    monkeypatch.setenv("KILN_LOCK", str(locked))
    record = a_record(run_id=RUN, versions={"downloads": downloads(PLUGIN, "a" * 64)})
    folder = tmp_path / "build" / "al2-classic" / RUN
    folder.mkdir(parents=True)
    (folder / "record.json").write_text(json.dumps(record.to_dict()))
    assert tasks.lock.body.__wrapped__(update=False, from_=RUN) == 0
    assert artifact(locked, PLUGIN)["sha256"] == "a" * 64
    assert artifact(locked, PLUGIN)["source"] == f"seen by run {RUN}"
    assert f"+ {PLUGIN}" in capsys.readouterr().out
