"""`amis.lock.yaml`: which bytes a bake downloads."""

import re
from dataclasses import replace
from pathlib import Path

import hcl2
import pytest

from kiln import components
from kiln.base.errors import KilnError
from kiln.components import Download
from kiln.facts import known_sha256, table
from kiln.packer import lock, render
from tests.unit.locks import CLASSIC, EFA, EFA_SHA256, EMPTY, PLUGIN, RECIPES, artifact, locked_file

INSTALLER = "https://efa-installer.amazonaws.com/aws-efa-installer-{}.tar.gz"
FABRIC = (
    "https://developer.download.nvidia.com/compute/nvidia-driver/redist/fabricmanager/"
    "linux-x86_64/fabricmanager-linux-x86_64-{}-archive.tar.xz"
)


@pytest.fixture
def locked(tmp_path):
    return locked_file(tmp_path)


def test_the_committed_lock_is_what_the_matrix_downloads():
    assert lock.plan_lock(RECIPES, lock.load_lock()).as_text() == "amis.lock.yaml is up to date"


@pytest.mark.parametrize(
    ("url", "own"),
    [
        (
            INSTALLER.format("1.34.0"),
            ["https://docs.aws.amazon.com", "github:aws/aws-parallelcluster"],
        ),
        (INSTALLER.format("1.42.0"), ["https://docs.aws.amazon.com"]),
        (FABRIC.format("580.178.04"), ["github:siderolabs/extensions"]),
        (FABRIC.format("550.163.01"), ["https://developer.download.nvidia.com"]),
    ],
)
def test_the_source_of_a_hash_is_what_has_that_version(url, own):
    parts = known_sha256(url).source.split("; ")
    assert len(parts) == len(own)
    assert all(part.startswith(start) for part, start in zip(parts, own, strict=True))


def test_every_download_of_a_recipe_is_in_the_lock(locked):
    urls = {entry["url"] for entry in lock.load_lock(locked)["artifacts"]}
    hcl = hcl2.loads(
        render.render_files(CLASSIC)[render.RECIPE],
        serialization_options=hcl2.SerializationOptions(strip_string_quotes=True),
    )
    listed = hcl["locals"][0]["components"].values()
    downloaded = {url for component in listed for url in component.get("downloads", {}).values()}
    assert len(downloaded) > 5
    assert downloaded <= urls


def test_a_checksum_the_facts_know_is_in_the_lock_with_its_source(locked):
    entry = artifact(locked, EFA)
    assert entry["version"] == "1.34.0"
    assert entry["sha256"] == EFA_SHA256
    assert "parallelcluster" in entry["source"]


PUBLISHED = [
    pytest.param(files, version, id=files["url"].format(version=version))
    for files in table("checksums")["files"]
    for version in files["sha256"]
]
DEBIAN = next(recipe for recipe in RECIPES if recipe.distro.id == "debian12")
UBUNTU = next(recipe for recipe in RECIPES if recipe.distro.id == "ubuntu2404")


VERSIONED = ("efa", "gdrcopy", "driver", "cloudwatch_agent")


def of_version(version, arch):
    """Recipes for which every component would be asked for that version."""
    recipe = CLASSIC.changed(arch=arch, **dict.fromkeys(VERSIONED, version))
    newest = {"cuda": "13.0.2", "driver_source": "repo"}
    return recipe, *(recipe.changed(distro=row.distro, **newest) for row in (DEBIAN, UBUNTU))


@pytest.mark.parametrize(("files", "version"), PUBLISHED)
def test_a_published_checksum_is_of_a_file_that_a_component_downloads(files, version):
    url = files["url"].format(version=version)
    downloaded = {
        download.url
        for arch in ("x86_64", "arm64")
        for recipe in of_version(version, arch)
        for component in components.everything()
        if component.needs in (None, "nccl", *VERSIONED)
        for download in component.for_recipe(recipe).downloads
    }
    assert url in downloaded
    assert re.fullmatch("[0-9a-f]{64}", files["sha256"][version])
    known = known_sha256(url)
    assert known is not None
    assert known.sha256 == files["sha256"][version]


def test_no_file_has_two_published_checksums_and_no_two_files_the_same():
    urls = [
        files["url"].format(version=v)
        for files in table("checksums")["files"]
        for v in files["sha256"]
    ]
    hashes = [
        sha256 for files in table("checksums")["files"] for sha256 in files["sha256"].values()
    ]
    assert len(set(urls)) == len(urls)
    assert len(set(hashes)) == len(hashes)


def test_the_checksum_of_a_file_whose_version_no_recipe_names_is_in_the_lock(locked):
    url = "https://github.com/NVIDIA/nccl-tests/archive/refs/tags/v2.13.6.tar.gz"
    entry = artifact(locked, url)
    assert entry["version"] == "2.13.6"
    assert entry["sha256"].startswith("52b472a58a49")
    assert "spack" in entry["source"]


def test_an_artifact_nobody_downloaded_yet_has_no_checksum(locked):
    assert artifact(locked, PLUGIN)["sha256"] is None


def test_a_new_version_shows_as_a_readable_diff(locked):
    changes = lock.plan_lock([CLASSIC.changed(efa="1.36.0")], lock.load_lock(locked)).as_text()
    assert f"- {EFA}  1.34.0  sha256 {EFA_SHA256}" in changes
    assert "+ https://efa-installer.amazonaws.com/aws-efa-installer-1.36.0.tar.gz" in changes


def test_an_update_tells_a_better_source_of_the_same_hash(locked):
    before = locked.read_text()
    source = artifact(locked, EFA)["source"]
    locked.write_text(before.replace(source, "an older source"))
    assert not lock.update_lock([CLASSIC], locked)
    assert artifact(locked, EFA)["source"] == source


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
        lock.plan_lock([CLASSIC], lock.load_lock(locked))
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
        lock.save_lock(EMPTY, locked)
    assert locked.read_text() == before


def test_a_lock_that_a_link_leads_to_is_written_where_it_is(locked):
    link = locked.with_name("link.yaml")
    link.symlink_to(locked)
    lock.save_lock(EMPTY, link)
    assert link.is_symlink()
    assert lock.load_lock(locked) == EMPTY
