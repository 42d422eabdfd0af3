"""Build records: written whole or not at all, and found again by any of a build's names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from kiln.base import paths
from kiln.base.errors import KilnError
from kiln.base.paths import ROOT
from kiln.cloud import runs
from kiln.image.version_info import record_json_schema
from kiln.matrix import load
from kiln.pipeline import record, records
from lab.target import LabTarget
from tests.unit.records import a_record

LAB = LabTarget("a test", "us-east-1", endpoint="http://127.0.0.1:4599")
ROW = "al2-510.47.03-cuda11.6-base-x86_64"


@pytest.fixture(autouse=True)
def build_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KILN_BUILD_DIR", str(tmp_path / "build"))
    return tmp_path / "build"


def built(row: str = ROW, run_id: str | None = None, **more: Any) -> Path:
    """A run of that row with a record; its file."""
    if run_id is None:
        with runs.started(row, LAB) as run:
            record.write_record(run, a_record(run_id=run.id, **more))
        return run.record
    named = runs.Run(run_id, row, paths.build_dir() / row / run_id)
    named.folder.mkdir(parents=True)
    record.write_record(named, a_record(run_id=run_id, **more))
    return named.record


def test_failed_write_leaves_the_old_record() -> None:
    path = built(status="verified")
    run = runs.Run(path.parent.name, ROW, path.parent)
    with pytest.raises(ValueError, match="serialize"):
        record.write_record(run, a_record(versions={"schema": object()}))
    assert json.loads(path.read_text())["status"] == "verified"


def test_newest_readable_record_is_the_last() -> None:
    built(run_id="20261121T000001Z-ffff", status="failed")
    built(run_id="20261121T000002Z-0000", status="verified")
    assert [item.status for item in records.all_of(ROW)] == ["verified", "failed"]
    # A run that judged nothing is no newer judgment.
    built(run_id="20261121T000003Z-0000", kind="verify", status="unverified")
    for text in ("", "{", "[]", "3", "\xff", '{"amis": 3}'):
        torn = built(run_id=f"20261121T000004Z-{len(text):04x}", status="failed")
        torn.write_bytes(text.encode("latin-1"))
        last = records.last(ROW)
        assert last and last.run_id == "20261121T000002Z-0000"
        torn.unlink()
        torn.parent.rmdir()


def test_build_is_found_by_file_ami_run_and_name() -> None:
    build = {"ami_id": "ami-00000001", "versions": {"schema": 1}}
    amis = {"us-east-1": "ami-00000001", "eu-west-1": "ami-00000002"}
    first = "20261121T000001Z-aaaa"
    path = built(run_id=first, **build, amis=amis)
    # A verification that came later is not taken for the build.
    built(run_id="20261121T000002Z-bbbb", kind="verify", **build)
    built(run_id="20261121T000003Z-cccc", kind="verify", **{**build, "ami_id": "ami-00000009"})
    for name in (str(path), "ami-00000001", "ami-00000002", first, ROW):
        assert records.find_record(name).run_id == first, name
    assert records.find_record("20261121T000002Z-bbbb").kind == "verify"
    assert records.find_record("ami-00000009").kind == "verify"
    with pytest.raises(KilnError, match="No such file"):
        records.find_record("nowhere.json")
    made = records.newest_of_ami("ami-00000002")
    assert made and made.run_id == first
    assert records.newest_of_ami("ami-00000009") is None


def test_folder_of_running_machines_is_no_row(build_dir: Path) -> None:
    built(run_id="20261121T000001Z-aaaa", versions={"schema": 1})
    (build_dir / ROW).rename(build_dir / records.RUNNING_MACHINES)
    with pytest.raises(KilnError, match="no build record of") as caught:
        records.find_record("running-machines")
    assert caught.value.hint == "./invoke build writes one"
    assert records.find_record("20261121T000001Z-aaaa").run_id == "20261121T000001Z-aaaa"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("{", "not a JSON record"),
        ("[]", "it is not a mapping"),
        ('{"amis": 3}', "not a record of a run: `run_id`"),
        ({"driver": None}, "not a record of a run: `recipe.driver`"),
        ({"drivers": "1"}, "not a record of a run: `recipe.drivers`: Extra inputs"),
    ],
)
def test_damaged_record_names_file_and_field(change: Any, says: str) -> None:
    path = built(ami_id="ami-00000001")
    data = json.loads(path.read_text())
    damaged = {**data, "recipe": {**data["recipe"], **change}} if "driver" in str(change) else None
    path.write_text(json.dumps(damaged) if damaged else change)
    for name in (str(path), "ami-00000001"):
        with pytest.raises(KilnError) as caught:
            records.find_record(name)
        assert f"{path}: " in f"{caught.value.message} {caught.value.hint}"
        assert says in f"{caught.value.message} {caught.value.hint}"


PUBLISHED = json.loads(record_json_schema())
AS_PUBLISHED = jsonschema.Draft202012Validator(PUBLISHED)


# As apt 2.6 and dnf 4.14 print them; yum 3 wraps a long name. The lines about security are those of
# dnf/cli/cli.py, _check_running_kernel.
APT = """Listing...
libssl3/stable-security 3.0.17-1~deb12u3 amd64 [upgradable from: 3.0.17-1~deb12u2]
vim/stable 2:9.0.1378-2+deb12u2 amd64 [upgradable from: 2:9.0.1378-2]
"""
DNF = """
bash.x86_64                 5.2.15-1.amzn2023.0.3      amazonlinux
a-package-with-a-name-that-is-longer-than-its-column.noarch
                            1:2.0-1.amzn2023           amazonlinux
Security: kernel-6.1.160-1.amzn2023.x86_64 is an installed security update
Security: kernel-6.1.158-1.amzn2023.x86_64 is the currently running version
Obsoleting Packages
old.noarch                  1-1                        amazonlinux
    older.noarch            1-1                        @System
"""


@pytest.fixture(scope="module")
def info(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the provisioner writes, for the machine that runs the tests, after two components.

    What is held and what could be upgraded is not the machine's: apt takes seconds to say it.
    """
    etc = tmp_path_factory.mktemp("kiln")
    (etc / "components").mkdir()
    for name, more in (("nvidia-driver", {"runfile": "NVIDIA.run"}), ("tuning", {"files": ["/a"]})):
        made = {"component": name, "version": "510.47.03", **more}
        (etc / "components" / f"{name}.json").write_text(json.dumps(made))
    fetched = [{"url": "https://x/y", "sha256": "d" * 64, "sha256_was": "locked", "component": "a"}]
    (etc / "downloads.json").write_text(json.dumps(fetched))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "provisioners" / "lib"))
        import version_info

        patch.setattr(version_info, "kernels", list)  # a container has no /lib/modules
        ask = version_info.run
        units = "chrony.service enabled enabled\n"
        answers = {"apt": APT, "apt-mark": "vim\n", "dnf": DNF, "yum": DNF, "systemctl": units}
        patch.setattr(
            version_info, "run", lambda *command: answers.get(command[0]) or ask(*command)
        )
        written: dict[str, Any] = version_info.collect("6.1.0", str(etc))
    assert written["packages"]
    return written


@pytest.mark.slow
def test_version_info_lists_upgradable_packages(info: dict[str, Any]) -> None:
    assert info["upgradable"] == [
        {
            "name": "a-package-with-a-name-that-is-longer-than-its-column",
            "version": "1:2.0-1.amzn2023",
        },
        {"name": "bash", "version": "5.2.15-1.amzn2023.0.3"},
        {"name": "libssl3", "version": "3.0.17-1~deb12u3"},
        {"name": "vim", "version": "2:9.0.1378-2+deb12u2"},
    ]


@pytest.mark.slow
def test_schema_describes_what_is_written(info: dict[str, Any]) -> None:
    AS_PUBLISHED.check_schema(PUBLISHED)
    AS_PUBLISHED.validate(json.loads(json.dumps(a_record(versions=info).to_dict())))
    for recipe in load.load_recipes():
        data = a_record(recipe=recipe, versions=few(info)).to_dict()
        AS_PUBLISHED.validate(json.loads(json.dumps(data)))
    described = PUBLISHED["$defs"]["VersionInfo"]
    assert set(info) == set(described["properties"])
    # Images baked before have none of these.
    assert set(info) - set(described["required"]) == {"files", "sysctls", "boot", "upgradable"}


def few(info: dict[str, Any]) -> dict[str, Any]:
    """The same with three of the machine's packages: what differs elsewhere is not in them."""
    return info | {"packages": info["packages"][:3]}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("status",), "good"),
        (("recipe", "driver"), 510),
        (("versions", "packages", 0), {"name": "bash"}),
    ],
)
def test_damaged_record_does_not_fit_the_schema(
    info: dict[str, Any], path: tuple[str | int, ...], value: Any
) -> None:
    data = json.loads(json.dumps(a_record(versions=few(info)).to_dict()))
    AS_PUBLISHED.validate(data)
    part = data
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = value
    with pytest.raises(jsonschema.ValidationError):
        AS_PUBLISHED.validate(data)
