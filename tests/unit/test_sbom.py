"""The CycloneDX bill of materials of an image."""

import json
from dataclasses import replace
from datetime import datetime, timezone

import pytest
from botocore.loaders import Loader
from cyclonedx.validation.json import JsonStrictValidator

from kiln.base.errors import KilnError
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
    "components": {
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


def bill(info=INFO, **more):
    return json.loads(cyclonedx(info, RECIPE, **more))


def named(name):
    return [component for component in bill()["components"] if component["name"] == name]


def test_it_is_valid_cyclonedx():
    assert JsonStrictValidator(SCHEMA).validate_str(cyclonedx(INFO, RECIPE)) is None
    broken = json.dumps({**bill(), "components": "many"})
    assert JsonStrictValidator(SCHEMA).validate_str(broken) is not None


def test_it_has_the_version_that_inspectors_scan_takes():
    model = Loader().load_service_model("inspector-scan", "service-2")
    asked = model["shapes"]["ScanSbomRequest"]["members"]["sbom"]["documentation"]
    assert f"CycloneDX {bill()['specVersion']} format" in asked


def test_the_image_is_what_it_is_about():
    image = bill()["metadata"]["component"]
    assert image["name"] == RECIPE.name
    assert image["type"] == "operating-system"
    assert {"name": "kiln:kernel", "value": KERNEL} in image["properties"]


def test_every_package_has_its_url_with_distribution_and_processor():
    (openssl,) = named("openssl")
    assert openssl["version"] == "1:1.0.2k-24.amzn2"
    assert openssl["purl"] == (
        "pkg:rpm/amzn/openssl@1.0.2k-24.amzn2?arch=x86_64&distro=amzn-2&epoch=1"
    )
    assert "epoch" not in named("glibc")[0]["purl"]


def test_packages_of_one_name_stay_apart():
    assert {entry["version"] for entry in named("kernel")} == {
        "5.10.230-1.amzn2",
        "5.10.240-1.amzn2",
    }
    assert len(named("glibc")) == 2
    first, second = named("gpg-pubkey")
    # A key has no architecture.
    assert first["purl"] == "pkg:rpm/amzn/gpg-pubkey@1-1?distro=amzn-2"
    assert second["bom-ref"] == f"{first['bom-ref']}#2"
    assert second["properties"] == [{"name": "kiln:occurrence", "value": "2"}]


def test_what_no_package_manager_knows_is_in_it():
    (module,) = named("nvidia.ko")
    assert module["type"] == "device-driver"
    assert {"name": "kiln:srcversion", "value": "AB12"} in module["properties"]
    assert {entry["type"] for entry in named(RUN)} == {"device-driver", "file"}
    assert named("aws-efa-installer")[0]["version"] == "1.34.0"
    assert named("aws-ofi-nccl")[0]["version"] == "1.9.2"
    assert named("nvidia-fabricmanager")
    assert not named("cuda")  # its packages are there


def test_a_download_has_its_checksum_and_a_key_is_not_software():
    (file,) = [entry for entry in named(RUN) if entry["type"] == "file"]
    assert file["hashes"] == [{"alg": "SHA-256", "content": "a" * 64}]
    assert not named("aws-efa-installer.key")
    assert not named("fsx-ubuntu-public-key.asc")


def test_the_same_image_gives_the_same_bill():
    made = datetime(2026, 11, 21, tzinfo=timezone.utc)
    assert cyclonedx(INFO, RECIPE, made=made) == cyclonedx(INFO, RECIPE, made=made)
    other = {**INFO, "packages": INFO["packages"][1:]}
    assert bill()["serialNumber"] != bill(other)["serialNumber"]


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


def test_a_version_info_of_broken_values_is_bad_input(tmp_path):
    path = tmp_path / "version-info.json"
    path.write_text(json.dumps({**INFO, "modules": [{"name": "nvidia"}]}))
    with pytest.raises(KilnError, match=r"version-info\.json") as refused:
        image_sbom(str(path))
    assert refused.value.exit_status == 2


def test_a_module_has_its_license_and_one_without_a_version_its_source_version():
    (module,) = named("nvidia.ko")
    assert module["licenses"] == [{"license": {"name": "NVIDIA"}}]
    bare = {**INFO["modules"][0], "version": None, "license": None}
    (module,) = [
        entry
        for entry in bill({**INFO, "modules": [bare]})["components"]
        if entry["name"] == "nvidia.ko"
    ]
    assert module["version"] == "AB12"
    assert "licenses" not in module


def test_what_a_provisioner_installed_without_a_package_says_where_it_is_from():
    (manager,) = named("nvidia-fabricmanager")
    assert manager["properties"] == [{"name": "kiln:from", "value": "fm-archive.tar.xz"}]
    of_source = {
        "gdrcopy": {"version": "2.5.1"},
        "nvidia-imex": {"archive": "imex.tar.xz"},
        "tuning": {"version": "1"},
    }
    names = [entry["bom-ref"] for entry in bill({**INFO, "components": of_source})["components"]]
    assert [name for name in names if name.startswith("component:")] == ["component:gdrcopy"]


def test_a_companys_component_is_listed_with_the_files_that_it_installed():
    own = {"acme-baseline": {"version": "3", "files": ["/etc/acme", "/usr/bin/acme"]}}
    paths = ("/etc/acme/banner", "/usr/bin/acme", "/usr/bin/acme-other", "/etc/other")
    hashes = dict.fromkeys(paths, f"sha256:{'d' * 64} 0644")
    content = bill({**INFO, "components": own, "files": hashes})["components"]
    (component,) = [entry for entry in content if entry["name"] == "acme-baseline"]
    files = [entry["value"].split()[0] for entry in component["properties"]]
    assert files == ["/etc/acme/banner", "/usr/bin/acme"]


def test_debian_packages_have_debian_urls():
    info = {
        **INFO,
        "os": {"id": "debian", "version_id": "12", "name": "Debian 12"},
        "packages": [
            {**rpm("libc6", "2.36", "9+deb12u10", arch="amd64"), "manager": "dpkg"},
            {**rpm("vim", "9.0.1378", "2", arch="amd64", epoch="2"), "manager": "dpkg"},
        ],
    }
    purls = {entry["name"]: entry.get("purl", "") for entry in bill(info)["components"]}
    assert purls["libc6"].startswith("pkg:deb/debian/libc6@2.36-9%2Bdeb12u10?arch=amd64")
    assert purls["vim"].startswith("pkg:deb/debian/vim@2:9.0.1378-2?")


def test_a_record_without_version_info_is_bad_input():
    with pytest.raises(KilnError, match="no version-info"):
        cyclonedx({"ami_id": "ami-1"}, RECIPE)
