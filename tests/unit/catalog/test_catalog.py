"""The catalog's files: what they say, what they never say, where they may be written."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from functools import cache
from html.parser import HTMLParser
from pathlib import Path

import jsonschema
import pytest

from kiln.base.errors import KilnError
from kiln.base.paths import ROOT
from kiln.catalog.model import Gathered
from kiln.catalog.site import MANIFEST, site_files, write_site
from tests.unit import commands
from tests.unit.catalog import sample_catalog
from tests.unit.catalog.sample_catalog import EKS, HOSTILE

pytestmark = pytest.mark.slow

PAGE = f"lines/{EKS.replace('/', '-')}.html"


def made(gathered: Gathered) -> dict[str, str]:
    messages: list[str] = []
    files = dict(site_files(gathered, messages.append))
    assert messages == []
    return files


@cache
def usual() -> dict[str, str]:
    """Two images of a line, the newest in a channel."""
    return made(sample_catalog.published())


class Tags(HTMLParser):
    """The elements of a page, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def test_markup_from_aws_stays_text() -> None:
    files = made(sample_catalog.published(name=f"ami {HOSTILE}"))
    for name in (PAGE, "index.html", "compare.html"):
        scripts = [each for tag, each in Tags(files[name]).found if tag == "script"]
        assert all(each.get("src") for each in scripts), name
    text = Tags(files[PAGE]).text
    assert (
        f"ami {HOSTILE}" in text and "a <b>reason</b>" in text and f"no EFA here {HOSTILE}" in text
    )
    # In scripts no parser of HTML can find an end.
    assert not any("<" in text for name, text in files.items() if name.endswith("data.js"))
    entry = ET.fromstring(files["feed.xml"]).find("{*}entry/{*}title")
    assert entry is not None and HOSTILE in str(entry.text)


@pytest.mark.parametrize("trust", ["not verified", "gone"])
def test_unverified_image_is_not_shown_as_verified(trust: str) -> None:
    files = made(sample_catalog.published(count=1, trust=trust))
    for name in (PAGE, "index.html", "compare.html"):
        words = re.sub(r"not verified|nothing verified it", "", Tags(files[name]).text)
        assert "verified" not in words, name
        assert trust in Tags(files[name]).text, name
    warned = {"gone": "AMI is not there any more", "not verified": "AMI is not verified"}
    assert warned[trust] in Tags(files[PAGE]).text
    (line,) = [line for line in json.loads(files["catalog.json"])["lines"] if line["channels"]]
    assert {entry["trust"] for entry in (*line["channels"], *line["images"])} == {trust}


def test_published_schema_takes_the_json() -> None:
    schema = json.loads((ROOT / "docs/catalog.schema.json").read_text())
    for files in (usual(), made(Gathered(sample_catalog.catalog()))):
        jsonschema.Draft202012Validator(schema).validate(json.loads(files["catalog.json"]))
        assert files["catalog.schema.json"] == (ROOT / "docs/catalog.schema.json").read_text()


def test_links_between_pages_are_there() -> None:
    files = usual()
    ids = {name: {each.get("id") for _, each in Tags(text).found}
           for name, text in files.items() if name.endswith(".html")}  # fmt: skip
    for name in ids:
        for _, each in Tags(files[name]).found:
            for target in filter(None, (each.get("href"), each.get("src"))):
                path, _, anchor = target.partition("#")
                there = (
                    str((Path("/") / name).parent.joinpath(path).resolve())[1:] if path else name
                )
                assert there in files, (name, target)
                if anchor and "=" not in anchor:
                    assert anchor in ids[there], (name, target)


def test_filled_channels_have_their_documents() -> None:
    text = usual()[PAGE]
    sections = re.split(r'<section class="launch" data-channel="([a-z]+)"', text)
    # The last channel, which most follow, comes first.
    assert sections[1::2] == ["stable", "candidate"]
    for channel, section in zip(sections[1::2], sections[2::2], strict=True):
        assert f"ssmParameter: /ami-kiln/{EKS}/{channel}/image_id" in section
    # eksctl takes an id: that of its channel.
    ids = [re.search(r"ami: (ami-[0-9a-f]+)", section) for section in sections[2::2]]
    assert len({found[1] for found in ids if found}) == 2


def test_site_replaces_the_one_before_and_nothing_else(tmp_path: Path) -> None:
    site = tmp_path / "a" / "site"
    write_site([("index.html", "1"), ("lines/old.html", "1")], site)
    write_site([("index.html", "2")], site)
    assert sorted(str(p.relative_to(site)) for p in site.rglob("*")) == [MANIFEST, "index.html"]
    assert sorted(p.name for p in site.parent.iterdir()) == ["site"]
    (site / MANIFEST).rename(site / "thesis.odt")
    with pytest.raises(KilnError, match="holds other files than a catalog") as refused:
        write_site([("index.html", "")], site)
    assert refused.value.exit_status == 2
    assert (site / "thesis.odt").exists()


def test_empty_account_and_lab_say_so() -> None:
    files = made(Gathered(sample_catalog.catalog(target="lab")))
    text = Tags(files["index.html"]).text
    assert "Nothing is published yet" in text
    assert "AWS has none of these AMIs" in text
    assert "AWS has none of these AMIs" not in usual()["index.html"]


def test_records_hide_the_folder_and_pages_run_no_inline_code() -> None:
    files = usual()
    (first, *_) = [text for name, text in files.items() if name.endswith(".record.json")]
    assert json.loads(first)["folder"] == "", "nobody learns how to reach a machine"
    for name, text in files.items():
        for tag, each in Tags(text).found if name.endswith(".html") else ():
            assert tag != "style" and "style" not in each, (name, tag)
            assert not [key for key in each if key.startswith("on")], (name, tag)


@pytest.mark.parametrize(
    "flags", [["--publish", "s3://bucket/../x"], ["--regions", "eu-wst-1"], ["--target", "moon"]]
)
def test_wrong_flag_is_refused(flags: list[str]) -> None:
    done = commands.invoke("catalog", *flags)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert flags[1] in done.stderr
