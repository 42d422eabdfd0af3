"""Screenshots of a catalogue for the docs, by Debian's chromium."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from devel import chromium
from kiln.base.errors import KilnError, operation_failed
from kiln.base.paths import ROOT

FOLDER = ROOT / "docs" / "images"
# As wide as it is read there.
_WIDTH = 1100


def take_pictures(site: Path) -> list[Path]:
    """Write docs/images/catalogue-….png of a site's start page, of its first published line, if it
    has one, and of the page about MIG; returns the files.

    Raises KilnError: exit status 2 for a folder without a site, 1 without chromium.
    """
    data = site / "catalogue.json"
    if not data.is_file():
        raise KilnError(f"{site}: no catalogue is here", hint="./invoke catalogue --out DIR")
    program = chromium.program()
    if program is None:
        raise operation_failed("chromium is not here", hint="apt-get install chromium")
    made = []
    with chromium.browser(program) as browser:
        page = browser.page()
        page.looks(_WIDTH)
        for name, place in _places(json.loads(data.read_text(encoding="utf-8"))):
            page.open(f"{site.resolve().as_uri()}/{place}")
            path = FOLDER / f"catalogue-{name}.png"
            path.write_bytes(page.picture())
            made.append(path)
    return made


def _places(catalogue: object) -> Iterator[tuple[str, str]]:
    """A picture's name, and the page within the site."""
    yield "start", "index.html"
    lines = catalogue["lines"] if isinstance(catalogue, dict) else []
    published = next((line for line in lines if line["images"]), None)
    if published is not None:
        yield "line", published["page"]
    yield "mig", "mig.html#p4d.24xlarge"
