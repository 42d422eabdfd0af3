"""`diff`: what differs between two images, the loud things first."""

import copy
import json

import pytest

from kiln.base.errors import KilnError
from kiln.base.paths import ROOT
from kiln.image import sbom
from kiln.image.diff import compare_images, compare_records, diff_rows, diff_summary
from tests.unit.records import a_record

INFO = json.loads((ROOT / "tests/data/version-info.json").read_text())


@pytest.fixture
def other():
    return copy.deepcopy(INFO)


def package(info, name):
    return next(entry for entry in info["packages"] if entry["name"] == name)


def put(*path):
    """A change that sets a value: keys, then the value."""

    def change(info):
        *keys, last, value = path
        for key in keys:
            info = info[key]
        info[last] = value

    return change


def put_package(name, field, value):
    return lambda info: package(info, name).update({field: value})


def lose_old_kernel(info):
    info["packages"] = [e for e in info["packages"] if e["version"] != "6.1.100"]


def add_i686(info):
    info["packages"].append({**package(info, "glibc"), "arch": "i686"})


MOTD, CONF = "/etc/profile.d/motd.sh", "/etc/sysctl.d/60-kiln.conf"


@pytest.mark.parametrize(
    ("change", "severity", "what", "name"),
    [
        (put("components", "nvidia-driver", "version", "595.112.07"),
         "high", "changed", "nvidia-driver"),
        (put("components", "nvidia-driver", "version", "580.190.01"),
         "medium", "changed", "nvidia-driver"),
        (put("components", "cuda", "version", "12.9.1"), "high", "changed", "cuda"),
        (put("components", "cuda", "version", "13.2.0"), "medium", "changed", "cuda"),
        (put("kernel", "boots", "6.12.1-1.amzn2023.x86_64"), "high", "changed", "boots"),
        (put_package("libnccl", "version", "2.29.2"), "medium", "changed", "libnccl"),
        (put_package("tree", "version", "1.9.0"), "low", "changed", "tree"),
        (lose_old_kernel, "medium", "removed", "kernel"),
        (add_i686, "low", "added", "glibc:i686"),
        (put("modules", 0, "srcversion", "BBBB"), "medium", "changed", "nvidia"),
        (put("modules", []), "high", "removed", "nvidia"),
        (put("held", INFO["held"][1:]), "high", "removed", "kernel"),
        (put("units", 0, "state", "disabled"), "medium", "changed", "nvidia-persistenced.service"),
        (put("files", CONF, f"sha256:{'c' * 64} 0644"), "medium", "changed", CONF),
        (put("files", MOTD, f"sha256:{'b' * 64} 0666"), "low", "changed", MOTD),
        (put("sysctls", "net.core.rmem_max", "1"), "medium", "changed", "net.core.rmem_max"),
        (put("boot", "GRUB_CMDLINE_LINUX", "nokaslr"), "medium", "changed", "GRUB_CMDLINE_LINUX"),
    ],
)  # fmt: skip
def test_change_has_its_severity(other, change, severity, what, name):
    change(other)
    (found,) = compare_records(INFO, other)
    assert (found.severity, found.what, found.name) == (severity, what, name)
    assert (found.old is None, found.new is None) == (what == "added", what == "removed")


def test_new_glibc_moves_its_hold_quietly(other):
    package(other, "glibc")["release"] = "53.amzn2023"
    other["held"][1] = "glibc-2.34-53.amzn2023"
    assert [(c.severity, c.kind, c.what, c.new) for c in compare_records(INFO, other)] == [
        ("high", "package", "changed", "2.34-53.amzn2023"),
        ("low", "held", "changed", "glibc-2.34-53.amzn2023"),
    ]


def debians_arch(info):
    for entry in info["packages"]:
        entry["arch"] = "amd64"


@pytest.mark.parametrize(
    "change",
    [
        lambda info: None,
        lambda info: info.pop("arch"),
        debians_arch,
        put("components", "tuning", {"component": "tuning"}),
    ],
)
def test_images_without_a_difference(other, change):
    change(other)
    assert compare_records(INFO, other) == []


@pytest.fixture
def builds(tmp_path, monkeypatch):
    """Writes records that `diff` finds by the ids `old` and `new` of their AMIs' names."""
    monkeypatch.chdir(tmp_path)

    def write(name, versions=INFO, mig_config=None, **more):
        record = a_record(versions=versions, **more)
        data = record.to_dict()
        data["recipe"]["mig_config"] = mig_config
        (tmp_path / name).write_text(json.dumps(data))

    return write


def test_text_counts_by_severity(builds, other):
    other["components"]["cuda"]["version"] = "12.9.1"
    other["sysctls"]["net.core.rmem_max"] = ""
    builds("old")
    builds("new", versions=other)
    answer = compare_images("old", "new")
    assert diff_summary(answer) == ["1 high, 1 medium"]
    (high, medium) = (row[3:] for row in diff_rows(answer))
    assert (high[-1], medium) == ("13.0.2 → 12.9.1", ["net.core.rmem_max", "16777216 → (empty)"])


BROKEN = [{}, {"versions": None}]
BROKEN += [
    {**INFO, key: value}
    for key, value in (
        ("packages", None),
        ("packages", [{}]),
        ("components", {"cuda": "x"}),
        ("downloads", [{"url": "https://a/b", "sha256": "x"}]),
        ("kernel", 5),
    )
]


@pytest.mark.parametrize("content", BROKEN, ids=range(len(BROKEN)))
@pytest.mark.parametrize("answer", [sbom.image_sbom, lambda name: compare_images(name, name)])
def test_broken_version_info_is_bad_input(tmp_path, answer, content):
    path = tmp_path / "version-info.json"
    path.write_text(json.dumps(content))
    with pytest.raises(KilnError, match=r"version-info\.json") as refused:
        answer(str(path))
    assert refused.value.exit_status == 2


@pytest.mark.parametrize(
    ("digest", "layout", "words"),
    [
        ("a" * 64, None, "no difference; they have one recipe digest"),
        ("b" * 64, None, "(aaaaaaaaaaaa → bbbbbbbbbbbb): a file that is rendered or uploaded"),
        ("b" * 64, "all-1g.5gb", "the recipes differ in mig_config None → all-1g.5gb"),
    ],
)
def test_equal_images_are_told_apart_by_digest(builds, digest, layout, words):
    builds("old", recipe_digest="a" * 64)
    builds("new", recipe_digest=digest, mig_config=layout)
    answer = compare_images("old", "new")
    assert answer["asked"] == ({"mig_config": [None, layout]} if layout else {})
    assert words in diff_summary(answer)[0]


def test_what_one_image_did_not_record_is_no_change(builds, other):
    """As when a build is compared with one of an older checkout."""
    other.pop("sysctls")
    builds("old")
    builds("new", versions=other)
    assert diff_summary(compare_images("old", "new")) == [
        "old and new: no difference; they have one recipe digest",
        "not compared: kernel parameters (one image does not record them)",
    ]


def test_file_is_compared_with_a_build(builds, tmp_path):
    builds("build")
    (tmp_path / "version-info.json").write_text(json.dumps(INFO))
    answer = compare_images("build", "version-info.json")
    assert (answer["asked"], answer["changes"]) == ({}, [])
    assert "one has no recipe digest" in diff_summary(answer)[0]
