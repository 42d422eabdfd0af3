"""The catalog in a real browser, from files: choose, search, copy, compare, read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from devel import chromium
from kiln.base.paths import ROOT
from kiln.catalog.site import site_files, write_site
from kiln.image.diff import compare_records
from tests.unit.catalog import sample_catalog
from tests.unit.catalog.sample_catalog import ARM, EKS, HOSTILE

# One browser and one site for all tests of this file.
pytestmark = [pytest.mark.slow, pytest.mark.all]
IMAGES = 40
AXE = ROOT / "tests" / "data" / "axe" / "axe.min.js"
WHEN_THERE = (
    "new Promise(done => { const look = () => { const all = document.querySelectorAll('SELECTOR');"
    " all.length ? done(VALUE) : setTimeout(look, 20); }; look(); })"
)
# The hundredth row of a table is like the tenth.
LIKE_OTHERS = ["tbody tr:nth-child(n+15)", "section ~ section ~ section", "li:nth-child(n+15)"]
LINE = f"lines/{EKS.replace('/', '-')}.html"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("catalog") / "site"
    gathered = sample_catalog.published(count=IMAGES, name=f"newest {HOSTILE}")
    write_site(site_files(gathered, print), folder)
    return folder


@pytest.fixture(scope="module")
def the_page() -> Iterator[chromium.Page]:
    path = chromium.program()
    if path is None:
        pytest.skip("no chromium on PATH")
    with chromium.browser(path) as browser:
        yield browser.page()


@pytest.fixture
def page(the_page: chromium.Page, site: Path) -> Iterator[chromium.Page]:
    """A page that may complain of nothing, and ask for nothing but the site's files."""
    the_page.errors.clear()
    the_page.looks(1280)
    yield the_page
    assert the_page.errors == []
    strange = [url for url in the_page.requests if not url.startswith((site.as_uri(), "about:"))]
    assert strange == []


def shown(page: chromium.Page) -> list[str]:
    """The lines that the start page shows, in their order."""
    names: list[str] = page.run(
        "[...document.querySelectorAll('#lines li:not([hidden]) h2')].map(e => e.textContent)"
    )
    return names


def choose(page: chromium.Page, field: str, value: str) -> None:
    page.run(
        f"(() => {{ const e = document.getElementById('{field}'); e.value = '{value}';"
        " e.dispatchEvent(new Event('input', {bubbles: true})); })()"
    )


def test_instance_type_shows_the_best_lines_first(page: chromium.Page, site: Path) -> None:
    page.open((site / "index.html").as_uri())
    assert len(shown(page)) == 4
    choose(page, "type", "p5.48xlarge")
    served = next(kind for kind in sample_catalog.types() if kind.type == "p5.48xlarge").lines
    lines = [line.line for line in sample_catalog.known_lines()]
    assert shown(page) == [lines[index] for index, _ in served]
    warned = page.run("[...document.querySelectorAll('.warnings:not([hidden])')].length")
    assert warned == sum(warnings > 0 for _, warnings in served)
    choose(page, "flavor", "eks")
    assert shown(page) == [EKS]
    choose(page, "type", "g5g.xlarge")
    choose(page, "flavor", "")
    assert shown(page) == [ARM]
    url = page.run("location.href")
    page.open((site / "compare.html").as_uri())
    page.open(url)
    assert shown(page) == [ARM], "the address has the choice"
    choose(page, "type", "")
    page.type_in("#q", sample_catalog.image(7).images[sample_catalog.HOME])
    links = page.run("[...document.querySelectorAll('#others a')].map(e => e.href)")
    assert [link.rpartition("#")[2] for link in links] == [sample_catalog.image(7).key]


def test_document_is_copied_for_the_chosen_region(page: chromium.Page, site: Path) -> None:
    page.open(f"{site.as_uri()}/{LINE}")
    page.run(
        "(() => { const e = document.getElementById('region-stable'); e.value = 'eu-west-1';"
        " e.dispatchEvent(new Event('change')); })()"
    )
    script = (
        "new Promise(done => {"
        " navigator.clipboard.writeText = text => { done(text); return Promise.resolve(); };"
        " const pre = document.querySelector('pre[aria-label=KIND]');"
        " pre.closest('details').open = true;"
        " pre.closest('details').querySelector('button').click(); })"
    )
    copied = page.run(script.replace("KIND", "cli"))
    assert "--region eu-west-1" in copied and sample_catalog.HOME not in copied
    eksctl = page.run(script.replace("KIND", "eksctl"))
    assert sample_catalog.image(IMAGES).images[sample_catalog.OTHER] in eksctl
    page.type_in("#package", "nccl")
    found = page.run(
        WHEN_THERE.replace("SELECTOR", "#packages li").replace("VALUE", "all[0].textContent")
    )
    assert found == "libnccl 2.28.9-1+cuda13.0"


def test_two_images_differ_as_in_diff(page: chromium.Page, site: Path) -> None:
    """The page's own comparison is that of `./invoke diff`."""
    a, b = (sample_catalog.image(number) for number in (IMAGES - 1, IMAGES))
    page.open(f"{site.as_uri()}/compare.html#a={a.key}&b={b.key}")
    rows = page.run(
        WHEN_THERE.replace("SELECTOR", "tbody tr").replace(
            "VALUE", "[...all].map(row => [...row.cells].map(cell => cell.textContent))"
        )
    )
    before, after = (
        sample_catalog.record(driver).versions for driver in ("570.211.01", "580.178.04")
    )
    expected = [
        [record.severity, f"{record.kind} {record.name}", record.old or "–", record.new or "–"]
        for record in compare_records(before or {}, after or {})
    ]
    assert rows == expected and rows[0][0] == "high"


@pytest.mark.parametrize("name", ["index.html", LINE, "compare.html"])
def test_page_is_accessible_and_fits_the_window(page: chromium.Page, site: Path, name: str) -> None:
    """By axe-core, at 360 px dark and 1600 px light."""
    for width, scheme in ((360, "dark"), (1600, "light")):
        page.looks(width, scheme)
        page.open(f"{site.as_uri()}/{name}")
        assert page.run("document.documentElement.scrollWidth") <= width, width
        page.run(AXE.read_text() + ";0")
        found: list[dict[str, Any]] = page.run(
            f"axe.run({{exclude: {json.dumps(LIKE_OTHERS)}}},"
            " {resultTypes: ['violations'], preload: false})"
            ".then(all => all.violations.map(v =>"
            " ({id: v.id, nodes: v.nodes.slice(0, 3).map(n => n.html.slice(0, 160))})))"
        )
        assert found == [], json.dumps(found, indent=1)
