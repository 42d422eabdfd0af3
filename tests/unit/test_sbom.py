"""The CycloneDX bill of materials of an image.

`python -m tests.unit.test_sbom` writes the examples again: read the difference.
"""

import json
from dataclasses import replace
from datetime import datetime, timezone

from botocore.loaders import Loader
from cyclonedx.validation.json import JsonStrictValidator

from kiln.base.paths import ROOT
from kiln.image.sbom import SCHEMA, build_sbom, cyclonedx, image_sbom
from kiln.matrix.load import load_recipes
from tests.unit.records import a_record

RECIPE = load_recipes(ROOT / "amis.yaml")[0]
RUN = "NVIDIA-Linux-x86_64-510.47.03.run"
KERNEL = "5.10.240-1.amzn2.x86_64"


def rpm(name, version, release, arch="x86_64", epoch="0"):
    return {
        "manager": "rpm", "name": name, "epoch": epoch, "version": version, "release": release,
        "arch": arch,
    }  # fmt: skip


INFO = {
    "schema": 1,
    "os": {"id": "amzn", "version_id": "2", "name": "Amazon Linux 2"},
    "arch": "x86_64",
    "kernel": {"boots": KERNEL, "running": KERNEL},
    "packages": [
        rpm("glibc", "2.26", "64.amzn2"),
        rpm("glibc", "2.26", "64.amzn2", arch="i686"),
        rpm("kernel", "5.10.230", "1.amzn2"),
        rpm("kernel", "5.10.240", "1.amzn2"),
        rpm("openssl", "1.0.2k", "24.amzn2", epoch="1"),
        rpm("gpg-pubkey", "1", "1", arch="(none)"),
        rpm("gpg-pubkey", "1", "1", arch="(none)"),
    ],
    "modules": [
        {
            "name": "nvidia", "kernel": KERNEL, "version": "510.47.03", "srcversion": "AB12",
            "vermagic": f"{KERNEL} SMP", "license": "NVIDIA", "path": "/lib/modules/x/nvidia.ko",
        }
    ],
    "runfiles": [{"name": RUN, "version": "510.47.03"}],
    "efa": {"installer": "1.34.0", "packages": ["libfabric-aws-1.22.0amzn1.0"]},
    "files": dict.fromkeys(
        ("/etc/acme/banner", "/usr/bin/acme", "/usr/bin/acme-other", "/etc/other"),
        f"sha256:{'d' * 64} 0644",
    ),
    "components": {
        "acme-baseline": {"version": "3", "files": ["/etc/acme", "/usr/bin/acme"]},
        "gdrcopy": {"version": "2.5.1"},
        "nvidia-imex": {"archive": "imex.tar.xz"},
        "tuning": {"version": "1"},
        "nvidia-fabricmanager": {"version": "510.47.03", "archive": "fm-archive.tar.xz"},
        "aws-ofi-nccl": {"version": "1.9.2", "plugin": "/opt/aws-ofi-nccl/lib/libnccl-net.so"},
        "cuda": {"version": "11.6.2", "packages": ["cuda-toolkit-11-6"]},
    },
    "downloads": [
        {"url": f"https://us.download.nvidia.com/tesla/510.47.03/{RUN}", "sha256": "a" * 64},
        {"url": "https://efa-installer.amazonaws.com/aws-efa-installer.key", "sha256": "b" * 64},
        {"url": "https://fsx.example/fsx-ubuntu-public-key.asc", "sha256": "c" * 64},
    ],
}  # fmt: skip


DEBIAN = {
    **INFO,
    "os": {"id": "debian", "version_id": "12", "name": "Debian 12"},
    "packages": [
        {**rpm("libc6", "2.36", "9+deb12u10", arch="amd64"), "manager": "dpkg"},
        {**rpm("vim", "9.0.1378", "2", arch="amd64", epoch="2"), "manager": "dpkg"},
    ],
    # Without a version and a license of its own.
    "modules": [{**INFO["modules"][0], "version": None, "license": None}],
    "components": {},
    "downloads": [],
    "efa": None,
}
MADE = datetime(2026, 11, 21, tzinfo=timezone.utc)
EXAMPLES = ROOT / "tests/data/sbom"


def examples():
    """A file name and its SBOM."""
    yield "amzn.json", cyclonedx(INFO, RECIPE, made=MADE)
    yield "debian.json", cyclonedx(DEBIAN, made=MADE)


def test_bills_are_the_committed_examples():
    for name, text in examples():
        assert JsonStrictValidator(SCHEMA).validate_str(text) is None
        assert json.loads(text) == json.loads((EXAMPLES / name).read_text()), name


def test_it_has_the_version_that_inspectors_scan_takes():
    model = Loader().load_service_model("inspector-scan", "service-2")
    asked = model["shapes"]["ScanSbomRequest"]["members"]["sbom"]["documentation"]
    assert f"CycloneDX {SCHEMA.to_version()} format" in asked


def test_another_image_has_another_serial_number():
    other = {**INFO, "packages": INFO["packages"][1:]}
    bills = [json.loads(cyclonedx(info, RECIPE)) for info in (INFO, INFO, other)]
    first, same, changed = [bill["serialNumber"] for bill in bills]
    assert first == same != changed


def test_the_bill_of_a_build_has_the_time_of_its_bake():
    build = replace(a_record(), started="2026-11-21T10:00:00Z")
    bill = build_sbom(build, INFO)
    assert json.loads(bill)["metadata"]["timestamp"] == "2026-11-21T10:00:00+00:00"
    assert bill == build_sbom(build, INFO)


def test_a_build_and_a_file_are_found_by_name(tmp_path):
    build, info = tmp_path / "record.json", tmp_path / "version-info.json"
    recipe = RECIPE.changed(name="the-row")
    build.write_text(json.dumps(a_record(versions=INFO, recipe=recipe).as_json()))
    info.write_text(json.dumps(INFO))
    names = [
        json.loads(image_sbom(str(path)))["metadata"]["component"]["name"] for path in (build, info)
    ]
    assert names == ["the-row", "amzn-2"]


if __name__ == "__main__":
    for file, document in examples():
        (EXAMPLES / file).write_text(document, encoding="utf-8")
