"""The CycloneDX bill of materials of an image.

`python -m tests.unit.image.test_sbom` writes the examples again: read the difference.
"""

import json
from dataclasses import replace
from datetime import datetime, timezone

from cyclonedx.validation.json import JsonStrictValidator

from kiln.base.paths import ROOT
from kiln.image.sbom import SCHEMA, build_sbom, cyclonedx, image_sbom
from kiln.matrix.load import load_recipes
from tests.unit.records import a_record

RECIPE = load_recipes(ROOT / "amis.yaml")[0]
MADE = datetime(2026, 11, 21, tzinfo=timezone.utc)
EXAMPLES = ROOT / "tests/data/sbom"
INFO, DEBIAN = (
    json.loads((EXAMPLES / f"{distro}-info.json").read_text()) for distro in ("amzn", "debian")
)


def examples():
    """A file name and its SBOM."""
    yield "amzn.json", cyclonedx(INFO, RECIPE, made=MADE)
    yield "debian.json", cyclonedx(DEBIAN, made=MADE)


def test_bills_are_the_committed_examples():
    for name, text in examples():
        assert JsonStrictValidator(SCHEMA).validate_str(text) is None
        assert json.loads(text) == json.loads((EXAMPLES / name).read_text()), name


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
    build.write_text(json.dumps(a_record(versions=INFO, recipe=recipe).to_dict()))
    info.write_text(json.dumps(INFO))
    names = [
        json.loads(image_sbom(str(path)))["metadata"]["component"]["name"] for path in (build, info)
    ]
    assert names == ["the-row", "amzn-2"]


if __name__ == "__main__":
    for file, document in examples():
        (EXAMPLES / file).write_text(document, encoding="utf-8")
